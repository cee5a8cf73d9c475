"""Several Datasets as one: one after the other, side by side, or mixed row by row.

Each Dataset keeps its own stream, and a position holds the positions of all of them. So a resumed run goes on exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator.data.chunk import Chunk, concat_chunks
from torch_estimator.data.columns import Array
from torch_estimator.data.stream import Signature, State, Stream
from torch_estimator.errors import DataError

_BLOCK = 4096
"""Rows that are mixed at a time."""

MakeStream = Callable[[Any], tuple[Stream, Signature]]
"""Function that opens a Dataset: its stream of raw rows, and its signature."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CombinedSource(ABC):
    """Source of the rows of several Datasets.

    `runs_user_code` says whether one of them runs a user's function or iterable.
    """

    datasets: Sequence[Any]
    runs_user_code: bool

    def open(self, make: MakeStream) -> tuple[Stream, Signature]:
        """Return the stream of all rows, and what must be equal for a saved position to be valid."""
        opened = [make(dataset) for dataset in self.datasets]
        signature = {"source": self.kind, "of": [one for _, one in opened], **self.settings()}
        return self.stream([stream for stream, _ in opened]), signature

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of the way to combine, for messages."""

    def settings(self) -> Signature:
        """Return the settings that must be equal for a saved position to be valid."""
        return {}

    @abstractmethod
    def stream(self, streams: Sequence[Stream]) -> Stream:
        """Return one stream of several."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Concatenated(CombinedSource):
    """Source of the rows, or the batches, of one Dataset after the other."""

    kind = "concatenated datasets"

    def stream(self, streams: Sequence[Stream]) -> Stream:
        return _ConcatenatedStream(streams)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Zipped(CombinedSource):
    """Source of the rows of several Datasets side by side. It ends with the shortest.

    `features` is their structure: an index into `datasets`, or a dict, tuple or list of these. `labels` is the same, or
    None.
    """

    features: Any
    labels: Any

    kind = "zipped datasets"

    def stream(self, streams: Sequence[Stream]) -> Stream:
        return _ZippedStream(streams, self.features, self.labels)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Mixed(CombinedSource):
    """Source of the rows of several Datasets in turn, or, with a probability of each (`weights`), at random.

    In turn, `block_length` rows of one Dataset come at a time. `drawn_seed` was drawn when the Dataset was made, for a
    user's seed that is None. If `stop_on_empty`, the first Dataset that has ended ends the source.
    """

    weights: tuple[float, ...] | None = None
    block_length: int = 1
    seed: int | None = None
    drawn_seed: int = 0
    stop_on_empty: bool = False

    kind = "mixed datasets"

    def settings(self) -> Signature:
        return {
            "weights": None if self.weights is None else list(self.weights),
            "block_length": self.block_length,
            "seed": self.seed,
            "stop_on_empty": self.stop_on_empty,
        }

    def stream(self, streams: Sequence[Stream]) -> Stream:
        return _MixedStream(streams, self)


class _ConcatenatedStream(Stream):
    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = streams
        self._epoch = 0
        self._number = 0
        self._columns: str | None = None

    def start(self, epoch: int) -> None:
        self._epoch = epoch
        self._number = 0
        self._streams[0].start(epoch)

    def next(self) -> Chunk | None:
        while self._number < len(self._streams):
            chunk = self._streams[self._number].next()
            if chunk is not None:
                return self._checked(chunk)
            self._number += 1
            if self._number < len(self._streams):
                self._streams[self._number].start(self._epoch)
        return None

    def state(self) -> State:
        of = self._streams[self._number].state() if self._number < len(self._streams) else None
        return {"epoch": self._epoch, "number": self._number, "of": of}

    def restore(self, state: State) -> None:
        self._epoch, self._number = state["epoch"], state["number"]
        if state["of"] is not None:
            self._streams[self._number].restore(state["of"])

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _checked(self, chunk: Chunk) -> Chunk:
        self._columns = check_columns(chunk, self._columns)
        return chunk


class _Cursor:
    """Position in the rows of a stream, of which some are taken at a time."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        # The chunk whose rows are taken, the position of the stream before it, and how many of its rows are taken.
        self._chunk: Chunk | None = None
        self._before = stream.state()
        self._row = 0

    def start(self, epoch: int) -> None:
        self._stream.start(epoch)
        self._begin(self._stream.state(), 0)

    def left(self) -> int:
        """Return how many rows there are without reading on; 0 at the end."""
        if self._chunk is None or self._row == self._chunk.rows:
            before = self._stream.state()
            chunk = self._stream.next()
            if chunk is None:
                return 0
            if self._chunk is not None:
                self._row = 0
            self._before, self._chunk = before, chunk
        left = self._chunk.rows - self._row
        if left < 0:
            raise DataError(f"{self._chunk.locate(0)}: the data has fewer rows than when the position was saved.")
        return left or self.left()

    def take(self, rows: int) -> list[Chunk]:
        """Return the next rows, or fewer at the end."""
        parts = []
        while rows and (left := self.left()):
            count = min(rows, left)
            assert self._chunk is not None
            parts.append(self._chunk.slice(self._row, self._row + count))
            self._row += count
            rows -= count
        return parts

    def state(self) -> State:
        return {"row": self._row, "of": self._before}

    def restore(self, state: State) -> None:
        self._stream.restore(state["of"])
        self._begin(state["of"], state["row"])

    def close(self) -> None:
        self._chunk = None
        self._stream.close()

    def _begin(self, before: State, row: int) -> None:
        self._before = before
        self._row = row
        self._chunk = None


class _CursorStream(Stream):
    """Base class of streams that take rows of several streams."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._cursors = [_Cursor(stream) for stream in streams]

    def start(self, epoch: int) -> None:
        for cursor in self._cursors:
            cursor.start(epoch)

    def state(self) -> State:
        return {"of": [cursor.state() for cursor in self._cursors]}

    def restore(self, state: State) -> None:
        for cursor, of in zip(self._cursors, state["of"], strict=True):
            cursor.restore(of)

    def close(self) -> None:
        for cursor in self._cursors:
            cursor.close()


class _ZippedStream(_CursorStream):
    def __init__(self, streams: Sequence[Stream], features: Any, labels: Any) -> None:
        super().__init__(streams)
        self._features = features
        self._labels = labels

    def next(self) -> Chunk | None:
        rows = min(cursor.left() for cursor in self._cursors)
        if not rows:
            return None
        parts = [concat_chunks(cursor.take(rows)) for cursor in self._cursors]
        labelled = [part for part in parts if part.labels is not None]
        if len(labelled) > 1 or (labelled and self._labels is not None):
            raise DataError(
                f"{labelled[-1].locate(0)}: the zipped Datasets have several labels; give one of them labels at most."
            )
        features = _put(self._features, parts)
        if self._labels is not None:
            return Chunk(features, _put(self._labels, parts), rows, parts[0].locate)
        labels, column = (labelled[0].labels, labelled[0].label_column) if labelled else (None, None)
        return Chunk(features, labels, rows, parts[0].locate, column)


def _put(structure: Any, parts: Sequence[Chunk]) -> Any:
    """Return features in a structure of indices: a list puts columns together, a dict names them."""
    if isinstance(structure, int):
        return parts[structure].features
    if isinstance(structure, tuple):
        return tuple(_put(one, parts) for one in structure)
    if isinstance(structure, dict):
        return {name: _only_column(_put(one, parts)) for name, one in structure.items()}
    together: dict[str, Any] = {}
    for number in structure:
        columns = _put(number, parts)
        if not isinstance(columns, dict):
            raise DataError(
                "a list of zipped Datasets puts their named columns together, but one has columns without names; give "
                "a dict of the Datasets, which names them."
            )
        for name in columns:
            if name in together:
                raise DataError(f"two of the zipped Datasets have a column {name!r}; rename one, as with map.")
        together |= columns
    return together


def _only_column(features: Any) -> Any:
    return next(iter(features.values())) if isinstance(features, dict) and len(features) == 1 else features


class _MixedStream(_CursorStream):
    def __init__(self, streams: Sequence[Stream], settings: Mixed) -> None:
        super().__init__(streams)
        self._settings = settings
        self._seed = settings.drawn_seed if settings.seed is None else settings.seed
        self._columns: str | None = None
        self._go_to(0, 0, [])

    def start(self, epoch: int) -> None:
        super().start(epoch)
        self._go_to(epoch, 0, [])

    def next(self) -> Chunk | None:
        while len(self._ended) < len(self._cursors) and not (self._ended and self._settings.stop_on_empty):
            choices = self._choices()
            self._block += 1
            chunk = self._mixed(choices)
            if chunk is not None:
                self._columns = check_columns(chunk, self._columns)
                return chunk
        return None

    def state(self) -> State:
        return {
            **super().state(),
            "epoch": self._epoch,
            "block": self._block,
            "ended": list(self._ended),
            "seed": self._seed,
        }

    def restore(self, state: State) -> None:
        super().restore(state)
        self._seed = state["seed"]
        self._go_to(state["epoch"], state["block"], state["ended"])

    def _go_to(self, epoch: int, block: int, ended: Sequence[int]) -> None:
        self._epoch = epoch
        self._block = block
        self._ended = list(ended)

    def _choices(self) -> Array:
        """Return the number of the Dataset of each of the next rows."""
        left = np.array([number for number in range(len(self._cursors)) if number not in self._ended])
        weights = self._settings.weights
        if weights is None:
            length = self._settings.block_length
            rounds = max(1, _BLOCK // (len(left) * length))
            return np.tile(np.repeat(left, length), rounds)
        draw = np.random.Generator(np.random.PCG64([self._seed, self._epoch, self._block]))
        share = np.array([weights[number] for number in left])
        if not share.sum():
            # Only Datasets that are never chosen are left.
            self._ended = list(range(len(self._cursors)))
            return left[:0]
        return draw.choice(left, size=_BLOCK, p=share / share.sum())

    def _mixed(self, choices: Array) -> Chunk | None:
        """Return rows in the order of the choices, without those of Datasets that have ended."""
        parts: list[Chunk] = []
        places: list[Array] = []
        end = len(choices)
        for number, cursor in enumerate(self._cursors):
            wanted = np.flatnonzero(choices == number)
            if not len(wanted):
                continue
            taken = cursor.take(len(wanted))
            rows = sum(one.rows for one in taken)
            if rows < len(wanted):
                self._ended.append(number)
                if self._settings.stop_on_empty:
                    end = min(end, int(wanted[rows]))
            parts += taken
            places.append(wanted[:rows])
        if not parts:
            return None
        for one in parts:
            self._columns = check_columns(one, self._columns)
        order = np.argsort(np.concatenate(places), kind="stable")
        kept = order[np.concatenate(places)[order] < end]
        return concat_chunks(parts).take(kept) if len(kept) else None


def check_columns(chunk: Chunk, before: str | None) -> str:
    """Return the columns of a chunk as text; raise DataError if they are not those of the chunks before it."""
    names = f"features {_names(chunk.features)}" + (
        "" if chunk.labels is None else f" and labels {_names(chunk.labels)}"
    )
    if before is not None and names != before:
        raise DataError(
            f"{chunk.locate(0)}: this Dataset has {names}, but another one that it is combined with has {before}; give "
            "all the same columns, as with map."
        )
    return names


def _names(structure: Any) -> str:
    if isinstance(structure, dict):
        return "{" + ", ".join(sorted(f"{name!r}" for name in structure)) + "}"
    return f"of {len(structure)} columns" if isinstance(structure, tuple) else "without names"
