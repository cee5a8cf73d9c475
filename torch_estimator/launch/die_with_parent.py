"""Run a command that the kernel kills when the launcher dies: ``die_with_parent.py LAUNCHER_PID COMMAND ...``.

This is a script and not a ``preexec_fn``, because the launcher has threads, and Python code between fork and exec can
deadlock there. It asks Linux for a SIGKILL when its parent dies (``PR_SET_PDEATHSIG``), then replaces itself with the
command. On other systems it only runs the command.

The kernel watches the thread that forked, not the process: the launcher must fork in its main thread. The setting is
not inherited by processes that the command starts.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Replace this process with the command; exit with status 1 if the launcher is already gone."""
    launcher, *command = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The launcher may have died before the kernel was asked to watch it.
        if os.getppid() != int(launcher):
            os._exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
