"""Checks of the addresses (``host:port``) of a cluster's tasks."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Sequence
from ipaddress import IPv6Address

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.json_text import shortened

logger = logging.getLogger("torch_estimator")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Hosts that mean the machine itself."""

_LAST_PORT = 65_535
# DNS limits each part of a host name to 63 characters.
_NAME = r"[\w-]{1,63}(?:\.[\w-]{1,63})*\.?"
_ADDRESS = re.compile(rf"(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<name>{_NAME})):0*(?P<port>[0-9]+)")


def checked_cluster(cluster: object, where: str, types: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Check the addresses of a cluster, as parsed from JSON; return them by task type, without types that have no task.

    `where` names the dict in messages, such as ``TF_CONFIG['cluster']``. None stands for an empty one.
    """
    if cluster is None:
        return {}
    if not isinstance(cluster, dict):
        raise InvalidTypeError(f"{where} must be a JSON object of lists of addresses, but got {shortened(cluster)}.")
    tasks: dict[tuple[str, int], str] = {}
    for type, addresses in cluster.items():
        if type not in types:
            raise InvalidValueError(f"{where} names {shortened(type)}; the types of tasks are {', '.join(types)}.")
        if not isinstance(addresses, list):
            raise InvalidTypeError(f"{where}[{type!r}] must be a list of addresses, but got {shortened(addresses)}.")
        for index, address in enumerate(addresses):
            place = f"{where}[{type!r}][{index}]"
            host, port = split_address(address, place)
            same = "localhost" if host.lower() in LOOPBACK else host.lower(), port
            if same in tasks:
                raise InvalidValueError(f"{place} is {address!r}, which is the address of {tasks[same]}, too.")
            tasks[same] = place
    return {type: tuple(addresses) for type, addresses in cluster.items() if addresses}


def split_address(address: object, where: str) -> tuple[str, int]:
    """Return host and port of an address, ``host:port``. An IPv6 host stands in brackets.

    >>> split_address("[::1]:2222", "address")
    ('::1', 2222)
    """
    if not isinstance(address, str):
        raise InvalidTypeError(f"{where} must be an address 'host:port', but got {shortened(address)}.")
    found = _ADDRESS.fullmatch(address)
    host = None if found is None else found["name"] or _ipv6(found["ipv6"])
    if found is None or host is None:
        raise InvalidValueError(f"{where} must be an address 'host:port', but got {shortened(address)}.")
    # Use at most six digits, because int() rejects very long numbers. A port has at most five digits.
    port = int(found["port"][:6])
    if not 0 < port <= _LAST_PORT:
        raise InvalidValueError(f"{where} is {shortened(address)}, but ports go from 1 to {_LAST_PORT}.")
    return host, port


def bracketed(host: str) -> str:
    """Return a host as it is written in an address: an IPv6 host gets brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def unresolved(host: str, port: int) -> str:
    """Return a phrase for an error message if the host name cannot be resolved, otherwise an empty string."""
    try:
        socket.getaddrinfo(host, port)
    except OSError:
        return f"the host name {host!r} cannot be resolved"
    return ""


def warn_if_unresolved(name: str, peer: str, address: str) -> None:
    """Log a warning if the host name in a peer's address cannot be resolved now; it may be later, as in Kubernetes."""
    if doubt := unresolved(*split_address(address, f"the address of {peer}")):
        logger.warning("%s looks for %s at %s, but %s now.", name, peer, address, doubt)


def _ipv6(host: str) -> str | None:
    try:
        return str(IPv6Address(host))
    except ValueError:
        return None
