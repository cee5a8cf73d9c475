"""The queue through which a supervisor hears of signals, exits of children, and whatever other threads report."""

from __future__ import annotations

import contextlib
import queue
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Signals that ask a supervisor to end.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# The longest wait that the kernel takes is 24 days.
_LONGEST_WAIT_SECS = 3600.0


class Events:
    """Queue of events. Signal handlers and other threads put them in; the main thread handles them one by one.

    A selector can watch it: it has a ``fileno`` that is readable when an event waits.
    """

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._reads, self._writes = socket.socketpair()
        for end in (self._reads, self._writes):
            end.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._reads, select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._reads.fileno()

    def put(self, handle: Callable[[], object]) -> None:
        """Have the main thread call a function. Other threads and signal handlers may call this method."""
        self._events.put(handle)
        # A full socket wakes as well, and a closed one belongs to a supervisor that has ended.
        with contextlib.suppress(OSError):
            self._writes.send(b"\0")

    def handle_one(self, secs: float = 0.0) -> bool:
        """Wait at most `secs` for an event and handle it; return whether there was one.

        It may return False earlier, such as after a signal.
        """
        if self._events.empty():
            self._poll.poll(1000 * min(secs, _LONGEST_WAIT_SECS))
            # Empty the socket before the queue, since each event is put in the queue before it is announced.
            with contextlib.suppress(BlockingIOError):
                while self._reads.recv(4096):
                    pass
        if self._events.empty():
            return False
        self._events.get()()
        return True

    @property
    def is_empty(self) -> bool:
        """Whether no event waits."""
        return self._events.empty()

    @contextmanager
    def on_signals(self, handle: Callable[[int], object]) -> Iterator[None]:
        """While the body runs, call `handle` as an event with the number of each of `_SIGNALS` that comes.

        Signals that are ignored, as SIGHUP is under nohup and a shell's Ctrl-C by what it runs in the background, stay
        ignored. Events that come after the body are forgotten.
        """
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        caught = [number for number in _SIGNALS if before[number] != signal.SIG_IGN]
        # Python calls a handler between two instructions only. Let the kernel end a wait that is about to begin.
        descriptor = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        for number in caught:
            signal.signal(number, lambda number, frame: self.put(lambda: handle(number)))
        try:
            yield
        finally:
            for number in caught:
                signal.signal(number, before[number])
            signal.set_wakeup_fd(descriptor)
            self._reads.close()
            self._writes.close()
