"""The one thread of this process that looks at what it does, for as long as somebody wants that written."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from torch_estimator.activity.state import STATE

# Changes that come one after the other are written together.
_GATHER_SECS = 0.2


class Writer:
    """Something to write every `every_secs`, in the thread; with `on_change`, after each change of the state, too."""

    on_change = False

    def __init__(self, every_secs: float) -> None:
        self.every_secs = every_secs
        self.due = 0.0

    def write(self) -> None:
        """Write what there is to say now."""
        raise NotImplementedError


class Thread:
    """The thread. It runs while there are writers; `cpu_secs` is the processor time that it has used."""

    def __init__(self) -> None:
        self.cpu_secs = 0.0
        self._writers: list[Writer] = []
        # Held while a writer writes.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()

    def add(self, writer: Writer) -> None:
        """Begin to write."""
        with self._lock:
            self._writers.append(writer)
            if self._thread is None:
                self._ends = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._ends,), name="activity", daemon=True)
                self._thread.start()
        STATE.changed.set()

    def remove(self, writer: Writer, most_secs: float) -> bool:
        """Write no more; return False if the thread is still writing after `most_secs`."""
        if not self._lock.acquire(timeout=most_secs):
            return False
        with contextlib.suppress(ValueError):
            self._writers.remove(writer)
        thread = None
        if not self._writers:
            self._ends.set()
            STATE.changed.set()
            thread, self._thread = self._thread, None
        self._lock.release()
        if thread is not None:
            thread.join(most_secs)
        return True

    def _run(self, ends: threading.Event) -> None:
        before = self.cpu_secs
        while not ends.is_set():
            with self._lock:
                has_changed = STATE.changed.is_set()
                STATE.changed.clear()
                for writer in self._writers:
                    now = time.monotonic()
                    if now >= writer.due or (has_changed and writer.on_change):
                        writer.due = now + writer.every_secs
                        # A store that does not answer is no reason to end, nor is a list that has changed just now.
                        with contextlib.suppress(Exception):
                            writer.write()
                self.cpu_secs = before + time.thread_time()
                due = min((writer.due for writer in self._writers), default=0.0)
            if STATE.changed.wait(max(0.0, due - time.monotonic())):
                ends.wait(_GATHER_SECS)


THREAD = Thread()


def _forget() -> None:
    """In a forked process, which has no such thread: begin anew."""
    THREAD.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget)
