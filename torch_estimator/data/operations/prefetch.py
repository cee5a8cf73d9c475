"""Prefetching: a thread reads the input while the main thread computes."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch_estimator.activity.state import STATE
from torch_estimator.data.arguments import check_count
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.stream import State, Stream

_EXIT_SECONDS = 10.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefetch:
    """Operation that reads up to `count` batches ahead in a thread. With a count of 0, no thread is used."""

    count: int

    def __post_init__(self) -> None:
        check_count("prefetch's count", self.count, at_least=0)

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream that reads `upstream` ahead in a thread; `upstream` itself if the count is 0."""
        if self.count == 0 or isinstance(upstream, PrefetchStream):
            return upstream
        return PrefetchStream(upstream, self.count)

    def signature(self) -> str:
        """Return an empty string, since a saved position stays valid if prefetching changes."""
        return ""


class PrefetchStream(Stream):
    """Stream that reads another stream ahead in a thread. Chunks read but not yet returned do not count as used."""

    def __init__(self, upstream: Stream, count: int) -> None:
        self._upstream = upstream
        self._count = count
        self._position = upstream.state()
        self._thread: PrefetchThread[Chunk] | None = None

    def start(self, epoch: int) -> None:
        self._stop()
        self._upstream.start(epoch)
        self._position = self._upstream.state()

    def next(self) -> Chunk | None:
        if self._thread is None:
            # The thread must not refer to this object (see PrefetchThread), so bind the upstream to a local name.
            upstream = self._upstream
            self._thread = PrefetchThread(lambda: (upstream.next(), upstream.state()), self._count)
        chunk, self._position = self._thread.take()
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
        if self._thread is not None:
            self._thread.stop()
            self._thread = None


class PrefetchThread(Generic[T]):
    """Thread that calls a function repeatedly and queues at most `count` results. Deleting this object ends the thread.

    `read` returns the next result (None at the end) and the position after it. It must not refer to the owner of this
    object: the running thread refers to the function, so the owner would never be deleted.
    """

    def __init__(self, read: Callable[[], tuple[T | None, State]], count: int) -> None:
        self._buffer: _Buffer[T] = _Buffer(count)
        # A daemon thread does not keep the process alive if an iterator is never closed.
        self._thread = threading.Thread(target=_fill, args=(read, self._buffer), name="te-prefetch", daemon=True)
        weakref.finalize(self, self._buffer.stop)
        self._thread.start()
        _running[self._thread] = self._buffer

    def take(self) -> tuple[T | None, State]:
        """Wait for the next result, and return it. If `read` raised an exception, raise this exception here."""
        return self._buffer.take()

    def stop(self) -> None:
        """Stop the thread and wait until it has ended."""
        self._buffer.stop()
        self._thread.join()


class _Buffer(Generic[T]):
    """Bounded queue from the reading thread to the consumer, which also carries the stream's end or an error."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._items: deque[tuple[T, State]] = deque()
        self._end: State | BaseException | None = None
        self._stopped = False
        self._changed = threading.Condition()

    def put(self, item: T, position: State) -> bool:
        """Wait for free space and add an item. Return False if the buffer was stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._items) < self._count)
            self._items.append((item, position))
            self._changed.notify_all()
            return not self._stopped

    def end(self, how: State | BaseException) -> None:
        """Mark the end of the stream, with the position there or the error that ended the reading."""
        with self._changed:
            self._end = how
            self._changed.notify_all()

    def take(self) -> tuple[T | None, State]:
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


_running: weakref.WeakKeyDictionary[threading.Thread, _Buffer[Any]] = weakref.WeakKeyDictionary()


@atexit.register
def _stop_all() -> None:
    """Stop all prefetch threads before the interpreter exits: a thread inside Arrow could then crash the process."""
    running = list(_running.items())
    for _, buffer in running:
        buffer.stop()
    for thread, _ in running:
        with contextlib.suppress(RuntimeError):
            thread.join(_EXIT_SECONDS)


def _fill(read: Callable[[], tuple[T | None, State]], buffer: _Buffer[T]) -> None:
    try:
        while True:
            began = time.monotonic()
            item, position = read()
            STATE.note_reading(time.monotonic() - began)
            if item is None:
                buffer.end(position)
                return
            if not buffer.put(item, position):
                return
            # Drop this reference, so that the memory of the item is freed as soon as the consumer drops its reference.
            del item
    except BaseException as error:
        # Pass the error on to `take`, which raises it in the thread that asks for the next batch.
        buffer.end(error)
