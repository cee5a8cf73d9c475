"""The addresses of a cluster's tasks."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from ipaddress import IPv6Address

from torch_estimator.cluster.json_text import shown
from torch_estimator.errors import InvalidTypeError, InvalidValueError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""What leads to the machine itself."""

_LAST_PORT = 65_535
# The parts of a name are as long as the name service takes them.
_NAME = r"[\w-]{1,63}(?:\.[\w-]{1,63})*\.?"
_ADDRESS = re.compile(rf"(?:\[(?P<number>[^\[\]]*)\]|(?P<name>{_NAME})):0*(?P<port>[0-9]+)")


def checked_cluster(cluster: object, where: str, types: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the addresses by type, without types that have none.

    Args:
        cluster: A dict from task types to lists of ``host:port``; None is the same as an empty one.
        where: What to call it, such as ``TF_CONFIG['cluster']``.
        types: That it may have.

    Raises:
        InvalidTypeError, InvalidValueError: It is something else, or two tasks have one address.
    """
    if cluster is None:
        return {}
    if not isinstance(cluster, dict):
        raise InvalidTypeError(f"{where} must be a JSON object of lists of addresses, but got {shown(cluster)}.")
    tasks: dict[tuple[str, int], str] = {}
    for type, addresses in cluster.items():
        if type not in types:
            raise InvalidValueError(f"{where} names {shown(type)}; the types of tasks are {', '.join(types)}.")
        if not isinstance(addresses, list):
            raise InvalidTypeError(f"{where}[{type!r}] must be a list of addresses, but got {shown(addresses)}.")
        for index, address in enumerate(addresses):
            place = f"{where}[{type!r}][{index}]"
            host, port = split_address(address, place)
            same = "localhost" if host.lower() in LOOPBACK else host.lower(), port
            if same in tasks:
                raise InvalidValueError(f"{place} is {address!r}, which is the address of {tasks[same]}, too.")
            tasks[same] = place
    return {type: tuple(addresses) for type, addresses in cluster.items() if addresses}


def split_address(address: object, where: str) -> tuple[str, int]:
    """Returns host and port; an IPv6 host stands in brackets.

    >>> split_address("[::1]:2222", "address")
    ('::1', 2222)

    Raises:
        InvalidTypeError, InvalidValueError: It is not ``host:port``.
    """
    if not isinstance(address, str):
        raise InvalidTypeError(f"{where} must be an address 'host:port', but got {shown(address)}.")
    found = _ADDRESS.fullmatch(address)
    host = None if found is None else found["name"] or _number(found["number"])
    if found is None or host is None:
        raise InvalidValueError(f"{where} must be an address 'host:port', but got {shown(address)}.")
    # Six digits are too many, and thousands of them no number to Python.
    port = int(found["port"][:6])
    if not 0 < port <= _LAST_PORT:
        raise InvalidValueError(f"{where} is {shown(address)}, but ports go from 1 to {_LAST_PORT}.")
    return host, port


def bracketed(host: str) -> str:
    """Returns `host` as an address has it in front of the colon."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def doubt_about(host: str, port: int) -> str:
    """Says what is wrong with an address, as far as can be seen from here; empty where nothing is."""
    try:
        socket.getaddrinfo(host, port)
    except OSError:
        return f"nobody knows the name {host!r}"
    return ""


def _number(host: str) -> str | None:
    try:
        return str(IPv6Address(host))
    except ValueError:
        return None
