"""Working ahead in a thread."""

from __future__ import annotations

from dataclasses import dataclass

from torch_estimator.data.checks import check_count
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.prefetch_thread import Ahead
from torch_estimator.data.stream import State, Stream


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefetch:
    """Prepares up to ``count`` batches ahead; 0 does not."""

    count: int

    def __post_init__(self) -> None:
        check_count("prefetch's count", self.count, at_least=0)

    def stream(self, upstream: Stream) -> Stream:
        """Returns ``upstream``, read ahead in a thread."""
        if self.count == 0 or isinstance(upstream, PrefetchStream):
            return upstream
        return PrefetchStream(upstream, self.count)

    def signature(self) -> str:
        """Nothing: a position does not depend on who works when."""
        return ""


class PrefetchStream(Stream):
    """Reads another stream ahead; its position is that of what was handed out, not of what was read."""

    def __init__(self, upstream: Stream, count: int) -> None:
        self._upstream = upstream
        self._count = count
        self._position = upstream.state()
        self._work: Ahead[Chunk] | None = None

    def start(self, epoch: int) -> None:
        self._stop()
        self._upstream.start(epoch)
        self._position = self._upstream.state()

    def next(self) -> Chunk | None:
        if self._work is None:
            upstream = self._upstream
            self._work = Ahead(lambda: (upstream.next(), upstream.state()), self._count)
        chunk, self._position = self._work.take()
        return chunk

    def state(self) -> State:
        return self._position

    def restore(self, state: State) -> None:
        self._stop()
        self._upstream.restore(state)
        self._position = state

    def close(self) -> None:
        self._stop()
        self._upstream.close()

    def _stop(self) -> None:
        if self._work is not None:
            self._work.stop()
            self._work = None
