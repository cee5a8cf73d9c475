"""A thread that works ahead."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch_estimator.data.stream import State

_EXIT_SECONDS = 10.0

T = TypeVar("T")


class Ahead(Generic[T]):
    """Calls a function again and again in a thread of its own; dropping the object ends it.

    Args:
        read: Returns what comes next, None at the end, and the position after it. It must not know whoever holds the
            object, or neither would ever be dropped.
        count: How many results are kept at most.
    """

    def __init__(self, read: Callable[[], tuple[T | None, State]], count: int) -> None:
        self._buffer: _Buffer[T] = _Buffer(count)
        # A daemon, so that an iterator nobody closed does not keep the process alive.
        self._thread = threading.Thread(target=_fill, args=(read, self._buffer), name="te-prefetch", daemon=True)
        weakref.finalize(self, self._buffer.stop)
        self._thread.start()
        _running[self._thread] = self._buffer

    def take(self) -> tuple[T | None, State]:
        """Waits for the next result; what `read` raised is raised here."""
        return self._buffer.take()

    def stop(self) -> None:
        """Ends the thread."""
        self._buffer.stop()
        self._thread.join()


class _Buffer(Generic[T]):
    """Results between two threads, with what ended them: the end of the stream, or an error."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._items: deque[tuple[T, State]] = deque()
        self._end: State | BaseException | None = None
        self._stopped = False
        self._changed = threading.Condition()

    def put(self, item: T, position: State) -> bool:
        """Waits for room; False if nobody will take the item any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._items) < self._count)
            self._items.append((item, position))
            self._changed.notify_all()
            return not self._stopped

    def end(self, how: State | BaseException) -> None:
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
    """Ends threads before the interpreter goes: one inside Arrow at that moment could bring the process down."""
    work = list(_running.items())
    for _, buffer in work:
        buffer.stop()
    for thread, _ in work:
        with contextlib.suppress(RuntimeError):
            thread.join(_EXIT_SECONDS)


def _fill(read: Callable[[], tuple[T | None, State]], buffer: _Buffer[T]) -> None:
    try:
        while True:
            item, position = read()
            if item is None:
                buffer.end(position)
                return
            if not buffer.put(item, position):
                return
            # Whoever took it should be the only one to hold it.
            del item
    except BaseException as error:
        # It belongs to whoever asks for the next batch, in the thread where that is.
        buffer.end(error)
