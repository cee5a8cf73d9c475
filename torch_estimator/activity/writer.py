"""Writers of what this process does: each has a thread, which looks at the state while there is something to write."""

from __future__ import annotations

import contextlib
import threading
import time

from torch_estimator.activity.state import STATE

# Changes that come one after the other are written together.
_GATHER_SECS = 0.2


class Writer:
    """Writes every `every_secs`, in a thread; with `on_change`, after each change of the state, too.

    `cpu_secs` is the processor time that the thread has used.
    """

    on_change = False

    def __init__(self, every_secs: float) -> None:
        self.every_secs = every_secs
        self.cpu_secs = 0.0
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self) -> None:
        """Write what there is to say now."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin to write."""
        # A thread that could not be stopped, since a store does not answer, must not go on.
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._ends,), name="activity", daemon=True)
        self._thread.start()

    def stop(self, most_secs: float) -> bool:
        """Write no more; return False if the thread is still writing after `most_secs`."""
        if self._thread is None:
            return False
        self._ends.set()
        STATE.changed.set()
        self._thread.join(most_secs)
        return not self._thread.is_alive()

    def _run(self, ends: threading.Event) -> None:
        before = self.cpu_secs
        while not ends.is_set():
            if self.on_change:
                STATE.changed.clear()
            # A store that does not answer is no reason to end, nor is a list that has changed just now.
            with contextlib.suppress(Exception):
                self.write()
            self.cpu_secs = before + time.thread_time()
            if not self.on_change:
                ends.wait(self.every_secs)
            elif not ends.is_set() and STATE.changed.wait(self.every_secs):
                ends.wait(_GATHER_SECS)
