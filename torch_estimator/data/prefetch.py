"""Working ahead in a thread."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections import deque
from dataclasses import dataclass

from torch_estimator.data.checks import check_count
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.stream import State, Stream

_EXIT_SECONDS = 10.0


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
        self._work: _Work | None = None

    def start(self, epoch: int) -> None:
        self._stop()
        self._upstream.start(epoch)
        self._position = self._upstream.state()

    def next(self) -> Chunk | None:
        if self._work is None:
            self._work = _Work(self._upstream, self._count)
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


class _Buffer:
    """Chunks between two threads, with what ended them: the end of the stream, or an error."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._items: deque[tuple[Chunk, State]] = deque()
        self._end: State | BaseException | None = None
        self._stopped = False
        self._changed = threading.Condition()

    def put(self, chunk: Chunk, position: State) -> bool:
        """Waits for room; False if nobody will take the chunk any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._items) < self._count)
            self._items.append((chunk, position))
            self._changed.notify_all()
            return not self._stopped

    def end(self, how: State | BaseException) -> None:
        with self._changed:
            self._end = how
            self._changed.notify_all()

    def take(self) -> tuple[Chunk | None, State]:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._end is not None)
            if self._items:
                self._changed.notify_all()
                return self._items.popleft()
            if isinstance(self._end, BaseException):
                raise self._end
            assert self._end is not None
            return None, self._end

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()


class _Work:
    """The thread that fills a buffer; dropping the object ends it."""

    def __init__(self, upstream: Stream, count: int) -> None:
        self._buffer = _Buffer(count)
        # A daemon, so that an iterator nobody closed does not keep the process alive.
        self._thread = threading.Thread(target=_fill, args=(upstream, self._buffer), name="te-prefetch", daemon=True)
        self.take = self._buffer.take
        weakref.finalize(self, self._buffer.stop)
        self._thread.start()
        _running[self._thread] = self._buffer

    def stop(self) -> None:
        self._buffer.stop()
        self._thread.join()


_running: weakref.WeakKeyDictionary[threading.Thread, _Buffer] = weakref.WeakKeyDictionary()


@atexit.register
def _stop_all() -> None:
    """Ends threads before the interpreter goes: one inside Arrow at that moment could bring the process down."""
    work = list(_running.items())
    for _, buffer in work:
        buffer.stop()
    for thread, _ in work:
        with contextlib.suppress(RuntimeError):
            thread.join(_EXIT_SECONDS)


def _fill(upstream: Stream, buffer: _Buffer) -> None:
    try:
        while (chunk := upstream.next()) is not None:
            if not buffer.put(chunk, upstream.state()):
                return
        buffer.end(upstream.state())
    except BaseException as error:
        # It belongs to whoever asks for the next batch, in the thread where that is.
        buffer.end(error)
