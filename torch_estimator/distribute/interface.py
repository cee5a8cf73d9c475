"""The network interface that leads to another machine."""

from __future__ import annotations

import contextlib
import socket
import struct

_ADDRESS_OF = 0x8915  # SIOCGIFADDR


def interface_to(host: str, port: int) -> str | None:
    """Returns the name of the interface through which IPv4 messages to `host` go; None where it cannot be told.

    What a machine's own name leads to is often loopback, which nobody else reaches.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        # Sends nothing: the kernel chooses the address that it would send from.
        way.connect((host, port))
        own = way.getsockname()[0]
        return next((name for _, name in socket.if_nameindex() if _address(way, name) == own), None)
    return None


def _address(any_socket: socket.socket, interface: str) -> str | None:
    try:
        import fcntl

        answer = fcntl.ioctl(any_socket, _ADDRESS_OF, struct.pack("256s", interface.encode()))
    except (ImportError, OSError):
        return None
    return socket.inet_ntoa(answer[20:24])
