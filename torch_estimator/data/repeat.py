"""Going through the data several times, or for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch_estimator.data.checks import check_count
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.stream import State, Stream


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeat:
    """Goes through the data ``count`` times; None is for ever."""

    count: int | None

    def __post_init__(self) -> None:
        if self.count is not None:
            check_count("repeat's count", self.count, at_least=0)

    def stream(self, upstream: Stream) -> Stream:
        """Returns ``upstream``, repeated."""
        return _Repeated(upstream, self.count)

    def signature(self) -> str:
        """What a position depends on. A run may go on with more epochs than before, so their number does not count."""
        return "repeat"


class _Repeated(Stream):
    def __init__(self, upstream: Stream, count: int | None) -> None:
        self._upstream = upstream
        self._count = count
        self._outer = 0
        self._epoch = 0
        self._empty = True

    def start(self, epoch: int) -> None:
        self._outer = epoch
        self._begin(0)

    def next(self) -> Chunk | None:
        return self.next_together(0, 1)[0]

    def next_together(self, rows: int, count: int) -> tuple[Chunk | None, int]:
        while self._count is None or self._epoch < self._count:
            chunk, together = self._upstream.next_together(rows, count)
            if chunk is not None:
                self._empty = False
                return chunk, together
            if self._empty:
                # An epoch without a row will not be followed by one with rows: do not loop for ever.
                break
            self._begin(self._epoch + 1)
        return None, 1

    def state(self) -> State:
        return {"outer": self._outer, "epoch": self._epoch, "empty": self._empty, "of": self._upstream.state()}

    def positions(self, together: int) -> Callable[[int], State]:
        of, position = self._upstream.positions(together), self.state()
        return lambda used: {**position, "of": of(used)}

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
