"""The addresses of a cluster's tasks."""

from __future__ import annotations

from collections.abc import Sequence

from torch_estimator.errors import InvalidTypeError, InvalidValueError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""What leads to the machine itself."""

_LAST_PORT = 65_535


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
        raise InvalidTypeError(f"{where} must be a JSON object of lists of addresses, but got {cluster!r}.")
    tasks: dict[str, str] = {}
    for type, addresses in cluster.items():
        if type not in types:
            raise InvalidValueError(f"{where} names {type!r}; the types of tasks are {', '.join(types)}.")
        if not isinstance(addresses, list):
            raise InvalidTypeError(f"{where}[{type!r}] must be a list of addresses, but got {addresses!r}.")
        for index, address in enumerate(addresses):
            place = f"{where}[{type!r}][{index}]"
            split_address(address, place)
            if address in tasks:
                raise InvalidValueError(f"{place} is {address!r}, which is the address of {tasks[address]}, too.")
            tasks[address] = place
    return {type: tuple(addresses) for type, addresses in cluster.items() if addresses}


def split_address(address: object, where: str) -> tuple[str, int]:
    """Returns host and port; an IPv6 host stands in brackets.

    >>> split_address("[::1]:2222", "address")
    ('::1', 2222)

    Raises:
        InvalidTypeError, InvalidValueError: It is not ``host:port``.
    """
    if not isinstance(address, str):
        raise InvalidTypeError(f"{where} must be an address 'host:port', but got {address!r}.")
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed) or not port.isdecimal():
        raise InvalidValueError(f"{where} must be an address 'host:port', but got {address!r}.")
    if not 0 < int(port) <= _LAST_PORT:
        raise InvalidValueError(f"{where} is {address!r}, but ports go from 1 to {_LAST_PORT}.")
    return host[1:-1] if bracketed else host, int(port)
