"""Batching: cutting a stream of rows into batches, and padding lists of unequal length."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator.data.arguments import check_count
from torch_estimator.data.chunk import Chunk, concat_chunks
from torch_estimator.data.lists import is_list_type, is_lists, list_lengths, padded
from torch_estimator.data.stream import PassThroughStream, State, Stream
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError

LENGTH_SUFFIX = "_length"
"""Suffix that turns the name of a list column into the name of the column that holds the lists' lengths."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """Settings for padding the lists of a batch to one length.

    `values` are the padding value, or a dict of them by column; None for 0, False or ''. `lengths` adds the lists'
    original lengths to the features, as ``<column>_length`` (int64 ``[rows]``).
    """

    values: Any = None
    lengths: bool = False

    def __post_init__(self) -> None:
        for value in self.values.values() if isinstance(self.values, Mapping) else (self.values,):
            if value is not None and not isinstance(value, numbers.Real | str):
                raise InvalidTypeError(
                    f"padding_values must be a number or a string, or a dict of them by column, but got {value!r}."
                )

    def apply(self, chunk: Chunk, length: int | None = None) -> Chunk:
        """Return a batch in which columns of lists are padded to numpy arrays.

        Lists are padded to `length`, or to the longest list of each column for None.
        """
        features = self._padded(chunk.features, None, length, chunk)
        if self.lengths and isinstance(chunk.features, dict):
            features = {**features, **self._lengths(chunk)}
        return chunk.with_columns(features, self._padded(chunk.labels, None, length, chunk))

    def _padded(self, structure: Any, name: str | None, length: int | None, chunk: Chunk) -> Any:
        if isinstance(structure, dict):
            return {key: self._padded(column, key, length, chunk) for key, column in structure.items()}
        if isinstance(structure, tuple):
            return tuple(self._padded(column, name, length, chunk) for column in structure)
        if not is_lists(structure):
            return structure
        if length is not None:
            _check_length(structure, name, length, chunk)
        value = self.values.get(name) if isinstance(self.values, Mapping) else self.values
        try:
            return padded(structure, value=value, length=length)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidValueError(
                f"padding_values has {value!r} for column {name!r}, which holds {structure.type.value_type}."
            ) from error

    def _lengths(self, chunk: Chunk) -> dict[str, Any]:
        lengths = {f"{name}{LENGTH_SUFFIX}": list_lengths(c) for name, c in chunk.features.items() if is_lists(c)}
        for name in lengths:
            if name in chunk.features:
                raise DataError(
                    f"{chunk.locate(0)}: there is a column {name!r}, which is where the lengths of the lists go; "
                    "rename it."
                )
        return lengths


DEFAULT_PADDING = Padding()
"""Padding with 0, False or '', to the longest list of the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """Operation that cuts rows into batches of `size` rows. If `drop_remainder`, a smaller last batch is dropped."""

    size: int
    drop_remainder: bool = False
    padding: Padding = DEFAULT_PADDING

    def __post_init__(self) -> None:
        check_count("batch's size", self.size, at_least=1)

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream that cuts the rows of `upstream` into batches, and pads their lists."""
        return _BatchStream(upstream, self)

    def signature(self) -> str:
        """Return "batch" without the batch size. A saved position counts rows, so the size may change."""
        return "batch"


class _BatchStream(Stream):
    """Stream that cuts the chunks of another stream into batches. A batch within one chunk is not copied.

    A position consists of the position of the current chunk, and the number of rows used in this chunk.
    """

    def __init__(self, upstream: Stream, batching: Batching) -> None:
        self._upstream = upstream
        self._size = batching.size
        self._drop_remainder = batching.drop_remainder
        self._padding = batching.padding
        self._has_lists = False
        self._has_uneven_lists = False
        self._before = upstream.state()
        self._row = 0
        self._chunk: Chunk | None = None

    def start(self, epoch: int) -> None:
        self._upstream.start(epoch)
        self._reset(self._upstream.state(), 0)

    def next(self) -> Chunk | None:
        start = self._row
        stop = start + self._size
        if self._chunk is not None and stop <= self._chunk.rows:
            self._row = stop
            batch: Chunk | None = self._chunk.slice(start, stop)
        else:
            batch = self._straddling_batch()
        return self._padding.apply(batch) if self._has_lists and batch is not None else batch

    def next_block(self, max_rows: int, max_chunks: int) -> tuple[Chunk | None, int]:
        left = 0 if self._chunk is None or self._has_uneven_lists else self._chunk.rows - self._row
        count = min(max_chunks, min(max_rows, left) // self._size)
        if self._chunk is None or count < 2:
            return self.next(), 1
        start, self._row = self._row, self._row + count * self._size
        return self._chunk.slice(start, self._row), count

    def state(self) -> State:
        return {"row": self._row, "of": self._before}

    def block_positions(self, count: int) -> Callable[[int], State]:
        size, before, after = self._size, self._before, self._row
        return lambda used: {"row": after - (count - used) * size, "of": before}

    def restore(self, state: State) -> None:
        self._upstream.restore(state["of"])
        self._reset(state["of"], state["row"])

    def close(self) -> None:
        self._chunk = None
        self._upstream.close()

    def _reset(self, before: State, row: int) -> None:
        self._before = before
        self._row = row
        self._chunk = None

    def _straddling_batch(self) -> Chunk | None:
        parts: list[Chunk] = []
        missing = self._size
        while missing and self._advance():
            assert self._chunk is not None
            stop = min(self._row + missing, self._chunk.rows)
            parts.append(self._chunk.slice(self._row, stop))
            missing -= stop - self._row
            self._row = stop
        if not parts or (missing and self._drop_remainder):
            return None
        return concat_chunks(parts)

    def _advance(self) -> bool:
        """Read the next chunk if the current one is used up. Return False at the end of the stream."""
        if self._chunk is not None and self._row < self._chunk.rows:
            return True
        before = self._upstream.state()
        chunk = self._upstream.next()
        if chunk is None:
            return False
        if self._chunk is not None:
            self._row = 0
        elif self._row > chunk.rows:
            raise DataError(f"{chunk.locate(0)}: the data has fewer rows than when the position was saved.")
        self._before = before
        self._chunk = chunk
        # All chunks have the same columns, so the answer for this chunk also holds for a batch that spans chunks.
        self._has_lists = has_lists(chunk)
        # Batches with uneven lists are not joined to a block. A block would be padded to the longest list of all its
        # batches, which may be much longer than the lists of most batches. This includes lists that a model's
        # columns pad later.
        self._has_uneven_lists = any(
            not isinstance(column, np.ndarray) and is_list_type(column.type) for column in chunk.columns()
        )
        return self._row < chunk.rows or self._advance()


def has_lists(chunk: Chunk) -> bool:
    """Return whether a chunk has columns of lists that may differ in length."""
    return any(map(is_lists, chunk.columns()))


class PadStream(PassThroughStream):
    """Stream that pads lists in the batches of another stream. Batches of a map or an iterable may hold lists."""

    def next(self) -> Chunk | None:
        chunk = self._upstream.next()
        return DEFAULT_PADDING.apply(chunk) if chunk is not None and has_lists(chunk) else chunk


def _check_length(lists: Any, name: str | None, length: int, chunk: Chunk) -> None:
    lengths = list_lengths(lists)
    if lengths.max(initial=0) > length:
        row = int((lengths > length).argmax())
        which = "a list" if name is None else f"the list in column {name!r}"
        raise DataError(
            f"{chunk.locate(row)}: {which} has length {lengths[row]}, but the bucket's batches are padded to {length}; "
            "give more bucket_boundaries."
        )
