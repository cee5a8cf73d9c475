"""Network interface and address with which this machine reaches another machine, such as the chief's.

A machine's own host name often resolves to loopback, which no other machine can reach. So the processes of a group ask
the kernel instead from which of the machine's addresses it would send a packet to the chief. gloo then listens on the
interface of that address, and the all-gather mesh on the address itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

_SIOCGIFADDR = 0x8915
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def interface_to(host: str, port: int) -> str | None:
    """Return the name of the interface through which IPv4 packets to `host` are sent; None if it cannot be found."""
    with contextlib.suppress(OSError):
        _, own = own_address(host, port, socket.AF_INET)
        return next((name for _, name in socket.if_nameindex() if _address_of(name) == own), None)
    return None


def own_address(
    host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
) -> tuple[socket.AddressFamily, str]:
    """Return the address family and the address from which this machine sends packets to `host`."""
    failure = OSError(f"{host} has no address")
    for found, _, _, _, destination in socket.getaddrinfo(host, port, family, socket.SOCK_DGRAM):
        try:
            with socket.socket(found, socket.SOCK_DGRAM) as probe:
                # Connect a UDP socket, which sends nothing: the kernel only chooses the route and the source address.
                probe.connect(destination)
                return found, str(probe.getsockname()[0])
        except OSError as error:
            failure = error
    raise failure


@contextlib.contextmanager
def gloo_listening_on(interface: str | None) -> Iterator[None]:
    """Context manager: gloo groups created in its body listen on an interface, unless the user has chosen another.

    gloo reads the interface from an environment variable when a process group is created. The variable is removed
    afterwards, because other groups of this process, and the processes that it starts, may reach their peers through
    another interface. None leaves the choice to gloo.
    """
    if interface is None or _GLOO_INTERFACE in os.environ:
        yield
        return
    os.environ[_GLOO_INTERFACE] = interface
    try:
        yield
    finally:
        del os.environ[_GLOO_INTERFACE]


def _address_of(interface: str) -> str | None:
    """Return the IPv4 address of an interface, or None if it has none."""
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
    except (ImportError, OSError):
        return None
    return socket.inet_ntoa(answer[20:24])
