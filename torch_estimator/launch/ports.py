"""Ports of this machine that nobody listens on."""

from __future__ import annotations

import contextlib
import random
import socket

from torch_estimator import files
from torch_estimator.errors import InvalidValueError

# Below those that systems give to outgoing connections. One of these could take the port of a process that is about to
# be started again, even as the end of a connection with itself.
_CHOSEN_FROM = range(10_000, 32_000)
_LAST = 65_535
_ATTEMPTS = 1000


def free_ports(count: int, start: int | None = None) -> list[int]:
    """Returns ports to listen on: consecutive ones from `start`, or any.

    Raises:
        InvalidValueError: They are none, or one of them is in use.
    """
    with contextlib.ExitStack() as held:
        if start is None:
            return _any(count, held)
        if not (start > 0 and start + count - 1 <= _LAST):
            raise InvalidValueError(
                f"start_port must leave room for {count} ports from 1 to {_LAST}, but got {start}; name another port."
            )
        ports = list(range(start, start + count))
        for port in ports:
            try:
                _hold(port, held)
            except OSError as error:
                raise InvalidValueError(
                    f"port {port}, of those from start_port {start} on, cannot be used: {files.reason(error)}; name "
                    "another start_port, or leave it out."
                ) from error
        return ports


def _any(count: int, held: contextlib.ExitStack) -> list[int]:
    ports: list[int] = []
    for port in random.sample(_CHOSEN_FROM, _ATTEMPTS):
        if len(ports) == count:
            return ports
        with contextlib.suppress(OSError):
            _hold(port, held)
            ports.append(port)
    raise InvalidValueError(f"this machine has no {count} free ports; start fewer processes.")


def _hold(port: int, held: contextlib.ExitStack) -> None:
    one = held.enter_context(socket.socket())
    # As servers do, whom a connection that has just been closed does not keep from a port.
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("", port))
