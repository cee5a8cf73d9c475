"""A command that runs as a child of this process, and how the end of a process is said."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

_DIE_WITH_PARENT = os.path.join(os.path.dirname(__file__), "die_with_parent.py")


class Child:
    """Child process in its own process group, killed when this process dies.

    In a separate group the child gets no Ctrl-C from the terminal; this process decides when to stop it. Start it in
    the main thread (see `torch_estimator.processes.die_with_parent`).

    Args:
        command: Command line to run.
        environ: Complete environment of the command.
        stream: Destination of its stdout and stderr, as for ``subprocess.Popen``. None shares those of this process.
        pass_fds: Descriptors that the child inherits.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        stream: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        # -I and -S skip site-packages, so that the script delays the command by only about 20 ms.
        wrapper = [sys.executable, "-I", "-S", _DIE_WITH_PARENT, str(os.getpid())]
        self.process = subprocess.Popen(
            [*wrapper, *command],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            pass_fds=pass_fds,
            process_group=0,
        )

    @property
    def pid(self) -> int:
        """Process id of the command itself, since the wrapper replaces itself with it."""
        return self.process.pid

    def wait(self) -> int:
        """Wait for the child to exit; return its exit status, or -n if signal n ended the child."""
        status = self.process.wait()
        # Kill the processes that the child left running; nothing else would end them.
        self._signal_group(signal.SIGKILL)
        return status

    def watch(self, on_exit: Callable[[int], None]) -> None:
        """Call `on_exit` with the exit status, as `wait` returns it, from another thread once the child has ended."""
        threading.Thread(target=lambda: on_exit(self.wait()), daemon=True).start()

    def send(self, number: int) -> None:
        """Send a signal to the child and to the processes in its group, unless the child has exited."""
        if self.process.returncode is None:
            self._signal_group(number)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def signal_name(status: int) -> str:
    """Return the name of the signal that ended a process with this negative exit status.

    >>> signal_name(-9)
    'SIGKILL'
    """
    names = {member.value: member.name for member in signal.Signals}
    return names.get(-status, f"signal {-status}")
