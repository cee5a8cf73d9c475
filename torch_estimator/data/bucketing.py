"""Batches of rows whose sequences are of similar length."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from torch_estimator.data.checks import check_count
from torch_estimator.data.chunk import Chunk, concat_chunks
from torch_estimator.data.columns import Array
from torch_estimator.data.lists import is_lists, list_lengths
from torch_estimator.data.padding import Padding
from torch_estimator.data.source import missing_column
from torch_estimator.data.stream import State, Stream
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucketing:
    """Puts every row into the bucket of its length; a full bucket is a batch.

    Attributes:
        column: The list column that is measured.
        boundaries: Upper limits, excluded, of the buckets' lengths, ascending; there is one bucket more.
        batch_sizes: Rows of a batch, by bucket.
        drop_remainder: Whether rows that fill no batch at the end are left out.
        to_boundary: Whether lists are filled up to the bucket's longest, not to the batch's.
        padding: How.
    """

    column: str
    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    drop_remainder: bool
    to_boundary: bool
    padding: Padding

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise InvalidTypeError(f"bucket_by_sequence_length takes the name of a column, but got {self.column!r}.")
        for boundary in self.boundaries:
            check_count("a boundary in bucket_boundaries", boundary, at_least=1)
        if not self.boundaries or list(self.boundaries) != sorted(set(self.boundaries)):
            raise InvalidValueError(f"bucket_boundaries must be ascending numbers, but got {list(self.boundaries)}.")
        for size in self.batch_sizes:
            check_count("a size in bucket_batch_sizes", size, at_least=1)
        if len(self.batch_sizes) != len(self.boundaries) + 1:
            raise InvalidValueError(
                f"bucket_batch_sizes must have one size more than the {len(self.boundaries)} bucket_boundaries, but "
                f"has {len(self.batch_sizes)}."
            )

    def stream(self, upstream: Stream) -> Stream:
        """Returns the batches of ``upstream``."""
        return _Buckets(upstream, self)

    def signature(self) -> str:
        """What a position depends on."""
        return f"buckets({self.column!r}, {list(self.boundaries)}, {list(self.batch_sizes)})"

    def measure(self, chunk: Chunk) -> Chunk:
        """Returns the chunk with the lengths of its rows, for when the column is no longer there."""
        measured = chunk.with_columns(chunk.features, chunk.labels)
        measured.lengths = self.lengths(chunk)
        return measured

    def lengths(self, chunk: Chunk) -> Array:
        """Returns the lengths of the rows: int64 ``[rows]``.

        Raises:
            DataError: There is no such column, or it holds no lists.
        """
        if not isinstance(chunk.features, dict) or self.column not in chunk.features:
            names = chunk.features if isinstance(chunk.features, dict) else ["(they have no names)"]
            raise missing_column(self.column, f"the features ({chunk.place(0)})", names)
        column = chunk.features[self.column]
        if not is_lists(column):
            kind = f"{column.dtype} of shape {list(column.shape)}" if isinstance(column, np.ndarray) else column.type
            raise DataError(
                f"{chunk.place(0)}: bucket_by_sequence_length needs lists in column {self.column!r}, but it holds "
                f"{kind}."
            )
        return list_lengths(column)

    def batch(self, parts: list[Chunk], bucket: int) -> Chunk:
        """Returns rows of one bucket as a batch."""
        length = None
        if self.to_boundary:
            if bucket == len(self.boundaries):
                row = parts[0]
                raise DataError(
                    f"{row.place(0)}: the list in column {self.column!r} is as long as the last of bucket_boundaries, "
                    f"{self.boundaries[-1]}, or longer; pad_to_bucket_boundary needs a boundary above all lengths."
                )
            length = self.boundaries[bucket] - 1
        return self.padding.apply(concat_chunks(parts), length)


@dataclass(slots=True)
class _Rest:
    """Rows of one bucket that wait for more, and the position of the chunk that they came from."""

    chunk: Chunk
    number: int
    before: State


class _Buckets(Stream):
    """Rows that wait are always the last ones of their bucket that were read.

    So the position is that of the next chunk, those of the chunks which rows are waiting from, and how many rows wait
    in each bucket.
    """

    def __init__(self, upstream: Stream, bucketing: Bucketing) -> None:
        self._upstream = upstream
        self._bucketing = bucketing
        self._forget(upstream.state())

    def start(self, epoch: int) -> None:
        self._upstream.start(epoch)
        self._forget(self._upstream.state())

    def next(self) -> Chunk | None:
        while not self._full:
            self._lay_aside()
            before = self._upstream.state()
            chunk = self._upstream.next()
            self._after = self._upstream.state()
            if chunk is None:
                return self._last()
            self._begin(chunk, before)
        return self._batch(self._full.popleft())

    def state(self) -> State:
        waiting = {rest.number: rest.before for rests in self._rests for rest in rests}
        if self._chunk is not None and any(map(len, self._rows)):
            waiting[self._number] = self._before
        return {
            "of": self._after,
            "chunks": [waiting[number] for number in sorted(waiting)],
            "waiting": [sum(r.chunk.rows for r in rests) + len(rows) for rests, rows in self._each_bucket()],
        }

    def restore(self, state: State) -> None:
        self._forget(state["of"])
        for before in state["chunks"]:
            if self._upstream.state() != before:
                self._upstream.restore(before)
            chunk = self._upstream.next()
            if chunk is None:
                raise DataError("The data has fewer rows than when the position was saved.")
            self._lay_aside()
            self._begin(chunk, before)
        self._keep_last(state["waiting"])
        self._upstream.restore(state["of"])

    def close(self) -> None:
        self._upstream.close()
        self._forget({})

    def _forget(self, after: State) -> None:
        buckets = len(self._bucketing.batch_sizes)
        self._after = after
        self._number = 0
        self._chunk: Chunk | None = None
        self._before: State = {}
        self._rests: list[list[_Rest]] = [[] for _ in range(buckets)]
        self._rows: list[Array] = [np.arange(0) for _ in range(buckets)]
        self._full: deque[int] = deque()

    def _each_bucket(self) -> list[tuple[list[_Rest], Array]]:
        return list(zip(self._rests, self._rows, strict=True))

    def _begin(self, chunk: Chunk, before: State) -> None:
        """Sorts the rows of a chunk into buckets."""
        lengths = chunk.lengths if chunk.lengths is not None else self._bucketing.lengths(chunk)
        bucket_of = np.searchsorted(self._bucketing.boundaries, lengths, side="right")
        self._number += 1
        self._chunk, self._before = chunk, before
        self._rows = [np.flatnonzero(bucket_of == bucket) for bucket in range(len(self._rests))]
        self._find_full()

    def _find_full(self) -> None:
        """Lists the buckets that become full, in the order of the rows that fill them."""
        filling: list[tuple[int, int]] = []
        for bucket, (rests, rows) in enumerate(self._each_bucket()):
            size = self._bucketing.batch_sizes[bucket]
            already = sum(rest.chunk.rows for rest in rests)
            filling += [(int(row), bucket) for row in rows[size - already - 1 :: size]]
        self._full = deque(bucket for _, bucket in sorted(filling))

    def _batch(self, bucket: int) -> Chunk:
        """Takes the rows of a batch out of a bucket, or all there are."""
        parts = [rest.chunk for rest in self._rests[bucket]]
        self._rests[bucket] = []
        missing = self._bucketing.batch_sizes[bucket] - sum(part.rows for part in parts)
        rows = self._rows[bucket]
        if len(rows):
            assert self._chunk is not None
            parts.append(self._chunk.take(rows[:missing]))
            self._rows[bucket] = rows[missing:]
        return self._bucketing.batch(parts, bucket)

    def _lay_aside(self) -> None:
        """Keeps what is left of the chunk at hand, and not the rest of it."""
        if self._chunk is None:
            return
        for rests, rows in self._each_bucket():
            if len(rows):
                rests.append(_Rest(self._chunk.take(rows), self._number, self._before))
        self._rows = [rows[:0] for rows in self._rows]
        self._chunk = None

    def _last(self) -> Chunk | None:
        for bucket, rests in enumerate(self._rests):
            if rests and not self._bucketing.drop_remainder:
                return self._batch(bucket)
        return None

    def _keep_last(self, waiting: list[int]) -> None:
        """Drops the rows that had been used up already."""
        for bucket, wanted in enumerate(waiting):
            rows = self._rows[bucket]
            self._rows[bucket] = rows[len(rows) - min(wanted, len(rows)) :]
            self._rests[bucket] = _last_rows(self._rests[bucket], wanted - len(self._rows[bucket]))
        self._find_full()


def _last_rows(rests: list[_Rest], wanted: int) -> list[_Rest]:
    kept: list[_Rest] = []
    for rest in reversed(rests):
        rows = min(rest.chunk.rows, wanted)
        if rows:
            chunk = rest.chunk.slice(rest.chunk.rows - rows, rest.chunk.rows)
            kept.append(_Rest(chunk, rest.number, rest.before))
        wanted -= rows
    return kept[::-1]
