"""A forked copy of this process, for work that needs the memory of this process."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings

from torch_estimator.processes.die_with_parent import die_with_parent


class ForkedChild:
    """Forked process. Its `status` is -n if signal n ended it, and None until `has_ended` has seen the end."""

    def __init__(self, pid: int, *, has_group: bool) -> None:
        self.pid = pid
        self.status: int | None = None
        self._has_group = has_group

    def has_ended(self) -> bool:
        """Collect the exit status if the process has ended; return whether it has."""
        return self._collect(os.WNOHANG)

    def kill(self) -> None:
        """Kill the process and its group, unless it has ended; collect its exit status."""
        if not self.has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._collect(0)

    def _collect(self, options: int) -> bool:
        if self.status is None:
            try:
                process, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                # Other code has collected the status, or the program ignores SIGCHLD. Count it as a success.
                self.status = 0
                return True
            if process:
                self.status = os.waitstatus_to_exitcode(status)
                if self._has_group:
                    # Kill the processes that the child left running; nothing else would end them.
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(self.pid, signal.SIGKILL)
        return self.status is not None


def fork(*, may_outlive: bool = False) -> ForkedChild | None:
    """Fork this process; return the child, and None in the child.

    Args:
        may_outlive: Whether the child may go on when this process has ended. It then has a group of its own, and gets
            no Ctrl-C from the terminal. Otherwise the kernel kills it with this process.
    """
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python 3.12 warns that a forked process lacks the threads of its parent. The callers need none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        if may_outlive:
            # Whichever process comes first makes the group, so that it is there when this function returns.
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
        return ForkedChild(pid, has_group=may_outlive)
    if may_outlive:
        os.setpgid(0, 0)
    else:
        die_with_parent(parent)
    return None
