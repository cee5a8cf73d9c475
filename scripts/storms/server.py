"""`estimator serve` in processes of its own: its log lines, its nodes, their memory and their connections."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from scripts.storms.common import Child, StormError

_URL = re.compile(r"Serving .* at (https?)://([^ ]+):(\d+)")
_LONGEST_SECS = 60.0
_CLOSED = "06"  # TIME_WAIT in /proc/net/tcp.


class ServerError(StormError):
    """The server did not do what it had to in time."""


class ServerProcess(Child):
    """A running `estimator serve`. As a context manager, it kills what is left of the server at the end.

    `arguments` are those of the command; the system chooses the port of REST, `port`. `process` is the parent of the
    nodes, or the only process. `started_secs` is the time from the start to the line that says that the server is
    ready. Raise a ServerError if the server ends, or is not ready in time.
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "torch_estimator.cli", "serve", "--port", "0", *arguments]
        # A parent that is killed leaves its directory behind.
        self._temporary = tempfile.TemporaryDirectory()
        began = time.monotonic()
        super().__init__(command, {"TMPDIR": self._temporary.name}, own_group=True)
        try:
            found = _URL.search(self.wait_for_line(_URL.pattern))
        except ServerError:
            self.kill()
            raise
        assert found is not None
        self.port = int(found[3])
        self.started_secs = time.monotonic() - began

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def log(self) -> str:
        """What the server has written so far."""
        with self.changed:
            return "\n".join(text for _, text in self.lines)

    def wait_for_line(self, pattern: str, count: int = 1) -> str:
        """Wait until `count` lines match a pattern; return the last of them.

        Raise a ServerError if the server ends, or if it takes too long.
        """

        def found() -> list[str]:
            return [text for _, text in self.lines if re.search(pattern, text)]

        with self.changed:
            self.changed.wait_for(lambda: len(found()) >= count or self.is_over, _LONGEST_SECS)
            lines = found()
        if len(lines) < count:
            raise ServerError(f"{len(lines)} of {count} lines have come with {pattern!r}; the log is:\n{self.log}")
        return lines[count - 1]

    def nodes(self) -> list[int]:
        """Return the process ids of the nodes, the oldest first."""
        return sorted(children(self.process.pid), key=_started)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the server; return its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(_LONGEST_SECS)
        self.reader.join(_LONGEST_SECS)
        return status

    def kill(self) -> None:
        """Kill the server and its nodes."""
        for process in [self.process.pid, *children(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()
        self.reader.join(_LONGEST_SECS)
        self._temporary.cleanup()


def children(process: int) -> list[int]:
    """Return the process ids of the children of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def _started(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def resident_mb(process: int) -> float:
    """Return the resident memory of a process in MB; 0 if it has ended."""
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def is_alive(process: int) -> bool:
    """Return whether a process is running, and is not only waiting for its parent to notice its end."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def client_ports(process: int, port: int) -> set[int]:
    """Return the ports of the clients whose connections to the server at `port` a node, by process id, holds."""
    held = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            held.add(os.readlink(descriptor))
        except OSError:
            continue
    return {client for client, inode in _connections(port) if f"socket:[{inode}]" in held}


def _connections(port: int) -> Iterator[tuple[int, str]]:
    """Yield the client's port and the inode of each connection to a server; the inode is 0 until it is accepted."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, server, client, state, *_, inode = line.split()[:10]
        client_port = int(client.rpartition(":")[2], 16)
        # The socket that listens has port 0 at its other end.
        if int(server.rpartition(":")[2], 16) == port and client_port and state != _CLOSED:
            yield client_port, inode


def kill_node(process: int, port: int, about: Callable[[set[int]], None]) -> None:
    """Kill a node, by process id, after telling `about` the clients' ports of connections that it may hold.

    They include all connections that no node has accepted yet. The node is stopped meanwhile, so that it accepts no
    more.
    """
    os.kill(process, signal.SIGSTOP)
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)
    about(client_ports(process, port) | {client for client, inode in _connections(port) if inode == "0"})
    os.kill(process, signal.SIGKILL)
