"""Loads of versions, each in a daemon thread, for which the process does not wait when it ends."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class Loader:
    """Runs loads one after the other, in the order given, and starts the next one when a load has taken `slow_secs`.

    >>> loader = Loader()
    >>> load = loader.submit(lambda: "loaded")
    >>> loader.wait([load])
    >>> load.result()
    'loaded'
    """

    def __init__(self, slow_secs: float = 30.0) -> None:
        self._slow_secs = slow_secs
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running: dict[Future[Any], float] = {}

    def submit(self, load: Callable[[], Any]) -> Future[Any]:
        """Run a load when its turn comes; return its future."""
        future: Future[Any] = Future()
        future.add_done_callback(lambda done: self.go_on())
        self._waiting.append((future, load))
        self.go_on()
        return future

    def go_on(self) -> None:
        """Begin the next load if all running ones are slow, or none runs; call this from time to time."""
        with self._lock:
            self._running = {future: began for future, began in self._running.items() if not future.done()}
            while self._waiting and all(map(self.seconds_of_slow, self._running)):
                future, load = self._waiting.popleft()
                # Its model may not be served any more.
                if future.set_running_or_notify_cancel():
                    self._running[future] = time.monotonic()
                    in_thread(load, "load", future)

    def seconds_of_slow(self, future: Future[Any]) -> float:
        """Return how long a load has run if it is slow; 0 otherwise."""
        secs = time.monotonic() - self._running.get(future, float("inf"))
        return secs if secs >= self._slow_secs else 0.0

    def wait(self, futures: Sequence[Future[Any]]) -> None:
        """Wait until all of these loads have ended or are slow."""
        while pending := [one for one in futures if not one.done() and not self.seconds_of_slow(one)]:
            wait(pending, timeout=min(1.0, self._slow_secs), return_when=FIRST_COMPLETED)
            self.go_on()

    def close(self) -> bool:
        """Begin no further load; return whether one is still running."""
        self._waiting.clear()
        return not all(future.done() for future in self._running)


def in_thread(function: Callable[[], T], name: str, future: Future[T] | None = None) -> Future[T]:
    """Call a function in a daemon thread; return its future."""
    result: Future[T] = Future() if future is None else future

    def run() -> None:
        try:
            value = function()
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(value)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result
