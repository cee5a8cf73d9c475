"""Bucketing: batches of rows whose sequences have similar lengths."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from torch_estimator.data.arguments import check_count, missing_column
from torch_estimator.data.chunk import Chunk, concat_chunks
from torch_estimator.data.columns import Array
from torch_estimator.data.lists import is_lists, list_lengths
from torch_estimator.data.operations.batching import Padding
from torch_estimator.data.stream import State, Stream
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucketing:
    """Operation that collects rows in buckets by the list length of a column, and makes a batch of a full bucket.

    The boundaries, ascending, are exclusive upper limits of the lengths in each bucket. The last bucket has no limit,
    so there is one more bucket and batch size than there are boundaries. `drop_remainder` leaves out the rows at the
    end that do not fill a batch. `to_boundary` pads lists to the longest length that the bucket allows, instead of to
    the longest list of the batch.
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
        """Return a stream that sorts the rows of `upstream` into buckets and makes batches from the buckets."""
        return _BucketStream(upstream, self)

    def signature(self) -> str:
        """Return, as text, the settings that must be unchanged when a saved position is restored."""
        return f"buckets({self.column!r}, {list(self.boundaries)}, {list(self.batch_sizes)})"

    def measure(self, chunk: Chunk) -> Chunk:
        """Return the chunk with its list lengths in `Chunk.lengths`, because a transform may drop the lists."""
        measured = chunk.with_columns(chunk.features, chunk.labels)
        measured.lengths = self.lengths(chunk)
        return measured

    def lengths(self, chunk: Chunk) -> Array:
        """Return the length of every row's list in `column`: int64 ``[rows]``."""
        if not isinstance(chunk.features, dict) or self.column not in chunk.features:
            names = chunk.features if isinstance(chunk.features, dict) else ["(they have no names)"]
            raise missing_column(self.column, f"the features ({chunk.locate(0)})", names)
        column = chunk.features[self.column]
        if not is_lists(column):
            kind = f"{column.dtype} of shape {list(column.shape)}" if isinstance(column, np.ndarray) else column.type
            raise DataError(
                f"{chunk.locate(0)}: bucket_by_sequence_length needs lists in column {self.column!r}, but it holds "
                f"{kind}."
            )
        return list_lengths(column)

    def batch(self, parts: list[Chunk], bucket: int) -> Chunk:
        """Join rows of one bucket to a batch, and pad the lists of this batch."""
        length = None
        if self.to_boundary:
            if bucket == len(self.boundaries):
                where = parts[0].locate(0)
                raise DataError(
                    f"{where}: the list in column {self.column!r} is as long as the last of bucket_boundaries, "
                    f"{self.boundaries[-1]}, or longer; pad_to_bucket_boundary needs a boundary above all lengths."
                )
            length = self.boundaries[bucket] - 1
        return self.padding.apply(concat_chunks(parts), length)


@dataclass(slots=True)
class _Pending:
    """Unused rows of one earlier chunk in one bucket. They wait until the bucket has enough rows for a batch.

    `number` is that of the earlier chunk, in the order of reading, and `before` its position in the stream.
    """

    chunk: Chunk
    number: int
    before: State


class _BucketStream(Stream):
    """Stream that sorts the rows of each chunk into buckets, and returns a bucket as a batch when it is full.

    Rows leave a bucket in the order in which they were read, so the pending rows of a bucket are always the last ones
    that were read into it. The position therefore needs no row numbers. It consists of the position of the next chunk,
    the positions of the chunks that have pending rows, and the number of pending rows in each bucket.
    """

    def __init__(self, upstream: Stream, bucketing: Bucketing) -> None:
        self._upstream = upstream
        self._bucketing = bucketing
        self._reset(upstream.state())

    def start(self, epoch: int) -> None:
        self._upstream.start(epoch)
        self._reset(self._upstream.state())

    def next(self) -> Chunk | None:
        while not self._full:
            self._set_pending()
            before = self._upstream.state()
            chunk = self._upstream.next()
            self._after = self._upstream.state()
            if chunk is None:
                return self._last_batch()
            self._sort_rows(chunk, before)
        return self._batch(self._full.popleft())

    def state(self) -> State:
        positions = {pending.number: pending.before for bucket in self._pending for pending in bucket}
        if self._chunk is not None and any(map(len, self._rows)):
            positions[self._number] = self._before
        return {
            "of": self._after,
            "chunks": [positions[number] for number in sorted(positions)],
            "waiting": [sum(one.chunk.rows for one in pending) + len(rows) for pending, rows in self._buckets()],
        }

    def restore(self, state: State) -> None:
        self._reset(state["of"])
        for before in state["chunks"]:
            if self._upstream.state() != before:
                self._upstream.restore(before)
            chunk = self._upstream.next()
            if chunk is None:
                raise DataError("The data has fewer rows than when the position was saved.")
            self._set_pending()
            self._sort_rows(chunk, before)
        self._keep_last(state["waiting"])
        self._upstream.restore(state["of"])

    def close(self) -> None:
        self._upstream.close()
        self._reset({})

    def _reset(self, after: State) -> None:
        buckets = len(self._bucketing.batch_sizes)
        # `_after` is the position of the next chunk.
        self._after = after
        # The next four attributes describe the current chunk: its number, its rows, its position, and the indices of
        # its unused rows by bucket.
        self._number = 0
        self._chunk: Chunk | None = None
        self._before: State = {}
        self._rows: list[Array] = [np.arange(0) for _ in range(buckets)]
        # `_pending` holds the unused rows of earlier chunks, by bucket.
        self._pending: list[list[_Pending]] = [[] for _ in range(buckets)]
        # `_full` lists the buckets that hold a full batch, in the order in which they became full.
        self._full: deque[int] = deque()

    def _buckets(self) -> list[tuple[list[_Pending], Array]]:
        return list(zip(self._pending, self._rows, strict=True))

    def _sort_rows(self, chunk: Chunk, before: State) -> None:
        """Make `chunk`, whose position is `before`, the current chunk and sort its rows into buckets."""
        lengths = chunk.lengths if chunk.lengths is not None else self._bucketing.lengths(chunk)
        bucket_of = np.searchsorted(self._bucketing.boundaries, lengths, side="right")
        self._number += 1
        self._chunk, self._before = chunk, before
        self._rows = [np.flatnonzero(bucket_of == bucket) for bucket in range(len(self._pending))]
        self._find_full()

    def _find_full(self) -> None:
        """Set `_full` to the buckets that the current chunk fills, in the order of the rows that fill them."""
        filling: list[tuple[int, int]] = []
        for bucket, (pending, rows) in enumerate(self._buckets()):
            size = self._bucketing.batch_sizes[bucket]
            already = sum(one.chunk.rows for one in pending)
            filling += [(int(row), bucket) for row in rows[size - already - 1 :: size]]
        self._full = deque(bucket for _, bucket in sorted(filling))

    def _batch(self, bucket: int) -> Chunk:
        """Remove the rows of one batch from a bucket, or all rows if it has fewer, and return them as a batch."""
        parts = [pending.chunk for pending in self._pending[bucket]]
        self._pending[bucket] = []
        missing = self._bucketing.batch_sizes[bucket] - sum(part.rows for part in parts)
        rows = self._rows[bucket]
        if len(rows):
            assert self._chunk is not None
            parts.append(self._chunk.take(rows[:missing]))
            self._rows[bucket] = rows[missing:]
        return self._bucketing.batch(parts, bucket)

    def _set_pending(self) -> None:
        """Copy the unused rows of the current chunk to `_pending`, and drop the chunk to free its memory."""
        if self._chunk is None:
            return
        for pending, rows in self._buckets():
            if len(rows):
                pending.append(_Pending(self._chunk.take(rows), self._number, self._before))
        self._rows = [rows[:0] for rows in self._rows]
        self._chunk = None

    def _last_batch(self) -> Chunk | None:
        for bucket, pending in enumerate(self._pending):
            if pending and not self._bucketing.drop_remainder:
                return self._batch(bucket)
        return None

    def _keep_last(self, counts: list[int]) -> None:
        """Keep only the last ``counts[bucket]`` rows of every bucket, because the earlier rows were used already."""
        for bucket, count in enumerate(counts):
            rows = self._rows[bucket]
            self._rows[bucket] = rows[len(rows) - min(count, len(rows)) :]
            self._pending[bucket] = _last_rows(self._pending[bucket], count - len(self._rows[bucket]))
        self._find_full()


def _last_rows(pending: list[_Pending], count: int) -> list[_Pending]:
    kept: list[_Pending] = []
    for one in reversed(pending):
        rows = min(one.chunk.rows, count)
        if rows:
            chunk = one.chunk.slice(one.chunk.rows - rows, one.chunk.rows)
            kept.append(_Pending(chunk, one.number, one.before))
        count -= rows
    return kept[::-1]
