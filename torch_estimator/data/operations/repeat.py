"""The repeat operation: reading the data several times, or without end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch_estimator.data.arguments import check_count
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.stream import State, Stream


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeat:
    """Operation that reads the data `count` times, or without end if `count` is None."""

    count: int | None

    def __post_init__(self) -> None:
        if self.count is not None:
            check_count("repeat's count", self.count, at_least=0)

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream that reads `upstream` `count` times."""
        return _RepeatStream(upstream, self.count)

    def signature(self) -> str:
        """Return "repeat" without the count, so that a resumed run may train for more epochs."""
        return "repeat"


class _RepeatStream(Stream):
    def __init__(self, upstream: Stream, count: int | None) -> None:
        self._upstream = upstream
        self._count = count
        # A Dataset may have several `repeat` operations. `_outer` is the epoch of the `repeat` that follows this one.
        self._outer = 0
        self._epoch = 0
        self._empty = True

    def start(self, epoch: int) -> None:
        self._outer = epoch
        self._begin(0)

    def next(self) -> Chunk | None:
        return self.next_block(0, 1)[0]

    def next_block(self, max_rows: int, max_chunks: int) -> tuple[Chunk | None, int]:
        while self._count is None or self._epoch < self._count:
            chunk, count = self._upstream.next_block(max_rows, max_chunks)
            if chunk is not None:
                self._empty = False
                return chunk, count
            if self._empty:
                # After an epoch without rows, no later epoch has rows either. Stop, or this loop would never end.
                break
            self._begin(self._epoch + 1)
        return None, 1

    def state(self) -> State:
        return {"outer": self._outer, "epoch": self._epoch, "empty": self._empty, "of": self._upstream.state()}

    def block_positions(self, count: int) -> Callable[[int], State]:
        of, position = self._upstream.block_positions(count), self.state()
        return lambda used: {**position, "of": of(used)}

    def endless_epoch(self) -> int | None:
        return self._epoch if self._count is None else super().endless_epoch()

    def restore(self, state: State) -> None:
        self._outer = state["outer"]
        self._epoch = state["epoch"]
        self._empty = state["empty"]
        self._upstream.restore(state["of"])

    def close(self) -> None:
        self._upstream.close()

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._empty = True
        if self._count is None or epoch < self._count:
            self._upstream.start(self._outer * (self._count or 0) + epoch)
