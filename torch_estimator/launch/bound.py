"""Becomes a command that is killed as soon as the process which started it is gone: ``bound.py PARENT COMMAND ...``.

A script rather than code between fork and exec, where a process with threads may do next to nothing. Linux only: on
other systems it just becomes the command. The kernel looks at the thread that has started it, which has to live as
long as its process; what the command starts itself is not bound.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Never returns."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            os._exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
