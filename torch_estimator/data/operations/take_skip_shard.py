"""The operations skip, take and shard. They count rows, or batches if they come after `batch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch_estimator.data.arguments import check_count
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.stream import State, Stream
from torch_estimator.errors import InvalidValueError


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """Operation that leaves out the first `count` rows, or batches if `of_batches` is true."""

    count: int
    of_batches: bool

    def __post_init__(self) -> None:
        check_count("skip's count", self.count, at_least=0)

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream of `upstream` without the first `count` rows or batches."""
        return _PartStream(upstream, of_batches=self.of_batches, skip=self.count)

    def signature(self) -> str:
        """Return the count as text. It must be unchanged when a saved position is restored."""
        return f"skip({self.count})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Take:
    """Operation that keeps only the first `count` rows, or batches if `of_batches` is true."""

    count: int
    of_batches: bool

    def __post_init__(self) -> None:
        check_count("take's count", self.count, at_least=0)

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream of the first `count` rows or batches of `upstream`."""
        return _PartStream(upstream, of_batches=self.of_batches, stop=self.count)

    def signature(self) -> str:
        """Return the count as text. It must be unchanged when a saved position is restored."""
        return f"take({self.count})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Operation that keeps every ``num_shards``-th row from `index` on, or batch if `of_batches` is true."""

    num_shards: int
    index: int
    of_batches: bool

    def __post_init__(self) -> None:
        check_count("shard's num_shards", self.num_shards, at_least=1)
        check_count("shard's index", self.index, at_least=0)
        if self.index >= self.num_shards:
            raise InvalidValueError(
                f"shard's index must be less than num_shards {self.num_shards}, but got {self.index}."
            )

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream of every ``num_shards``-th row or batch of `upstream`, from number `index` on."""
        return _PartStream(upstream, of_batches=self.of_batches, skip=self.index, step=self.num_shards)

    def signature(self) -> str:
        """Return both settings as text. They must be unchanged when a saved position is restored."""
        return f"shard({self.num_shards}, {self.index})"


class _PartStream(Stream):
    """Stream of the elements ``skip``, ``skip + step``, ... before ``stop``. An element is a row or a whole chunk."""

    def __init__(
        self, upstream: Stream, *, of_batches: bool, skip: int = 0, step: int = 1, stop: int | None = None
    ) -> None:
        self._upstream = upstream
        self._of_batches = of_batches
        self._skip = skip
        self._step = step
        self._stop = stop
        self._seen = 0

    def start(self, epoch: int) -> None:
        self._upstream.start(epoch)
        self._seen = 0

    def next(self) -> Chunk | None:
        while self._stop is None or self._seen < self._stop:
            chunk = self._upstream.next()
            if chunk is None:
                return None
            part = self._part(chunk)
            if part is not None:
                return part
        return None

    def next_block(self, max_rows: int, max_chunks: int) -> tuple[Chunk | None, int]:
        left = max_chunks if self._stop is None else min(max_chunks, self._stop - self._seen)
        if not self._of_batches or self._step > 1 or self._seen < self._skip or left < 2:
            return self.next(), 1
        chunk, count = self._upstream.next_block(max_rows, left)
        if chunk is not None:
            self._seen += count
        return chunk, count

    def state(self) -> State:
        return {"seen": self._seen, "of": self._upstream.state()}

    def block_positions(self, count: int) -> Callable[[int], State]:
        if count == 1:
            return super().block_positions(1)
        of, after = self._upstream.block_positions(count), self._seen
        return lambda used: {"seen": after - (count - used), "of": of(used)}

    def restore(self, state: State) -> None:
        self._upstream.restore(state["of"])
        self._seen = state["seen"]

    def close(self) -> None:
        self._upstream.close()

    def _part(self, chunk: Chunk) -> Chunk | None:
        """Return the rows of a chunk that this stream keeps, or None if it keeps none."""
        seen = self._seen
        elements = 1 if self._of_batches else chunk.rows
        self._seen += elements
        first = self._skip - seen if seen < self._skip else (self._skip - seen) % self._step
        last = elements if self._stop is None else min(elements, self._stop - seen)
        if first >= last:
            return None
        if self._of_batches or (first, last, self._step) == (0, chunk.rows, 1):
            return chunk
        return chunk.slice(first, last, self._step)
