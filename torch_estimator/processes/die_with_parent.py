"""Make the kernel kill a process when its parent dies, even if the parent is killed by SIGKILL.

Only Linux can do that (``PR_SET_PDEATHSIG``). The kernel watches the thread that started the process, not the whole
parent: start children in a thread that lives as long as the parent. The setting is not inherited by processes that the
child starts.

This file is also a script, ``die_with_parent.py PARENT_PID COMMAND ...``, which replaces itself with the command. A
``preexec_fn`` would be shorter. But the parent has threads, and Python code between fork and exec can deadlock there.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if sys.platform == "linux":
    import ctypes

    # Load libc before a fork. Loading may need a lock that another thread holds, and the child lacks that thread.
    _prctl = ctypes.CDLL(None).prctl


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; exit with status 1 if the parent is gone already."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the kernel was asked to watch it.
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
