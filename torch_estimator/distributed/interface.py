"""The network interface that leads to another machine, and the address there."""

from __future__ import annotations

import contextlib
import socket
import struct

_ADDRESS_OF = 0x8915  # SIOCGIFADDR


def interface_to(host: str, port: int) -> str | None:
    """Returns the name of the interface through which IPv4 messages to `host` go; None where it cannot be told.

    What a machine's own name leads to is often loopback, which nobody else reaches.
    """
    with contextlib.suppress(OSError):
        _, own = own_address(host, port, socket.AF_INET)
        return next((name for _, name in socket.if_nameindex() if _address(name) == own), None)
    return None


def own_address(
    host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
) -> tuple[socket.AddressFamily, str]:
    """Returns the address of this machine on the way to `host`, and its family.

    Raises:
        OSError: There is no way.
    """
    failure = OSError(f"{host} has no address")
    for found, _, _, _, place in socket.getaddrinfo(host, port, family, socket.SOCK_DGRAM):
        try:
            with socket.socket(found, socket.SOCK_DGRAM) as way:
                # Sends nothing: the kernel chooses the address that it would send from.
                way.connect(place)
                return found, str(way.getsockname()[0])
        except OSError as error:
            failure = error
    raise failure


def _address(interface: str) -> str | None:
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            answer = fcntl.ioctl(way, _ADDRESS_OF, struct.pack("256s", interface.encode()))
    except (ImportError, OSError):
        return None
    return socket.inet_ntoa(answer[20:24])
