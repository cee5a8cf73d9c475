"""A network for tests: each process is on an address of its own, in a namespace, behind a link that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType

ENTER = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
with open(os.environ["NETWORK_NAMESPACE"]) as namespace:
    if libc.setns(namespace.fileno(), 0x40000000):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace.name)
"""
"""Python that moves a process with one thread into the namespace that `environ` names."""

_SWITCH = "switch"


def why_not() -> str | None:
    """Why there can be no such network here; None where there can."""
    if shutil.which("ip") is None:
        return "there is no command ip (package iproute2)"
    name = f"te{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces cannot be made, as only root may: {tried.stderr.strip()}"
    _ip("netns", "del", name)
    return None


class Network:
    """Namespaces that one switch joins, itself in a namespace, so that nothing else on the machine sees any of it.

    Args:
        names: Of those that get one, up to 12 characters.

    Attributes:
        addresses: By name.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self._names = [*names, _SWITCH]

    def __enter__(self) -> Network:
        for name in self._names:
            _ip("netns", "add", self._space(name))
            _ip("-n", self._space(name), "link", "set", "lo", "up")
        _ip("-n", self._space(_SWITCH), "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._space(_SWITCH), "link", "set", "bridge", "up")
        for name, address in self.addresses.items():
            inside, port = ("-n", self._space(name)), ("-n", self._space(_SWITCH))
            _ip(*port, "link", "add", "name", name, "type", "veth", "peer", "name", "net", "netns", self._space(name))
            _ip(*inside, "address", "add", f"{address}/24", "dev", "net")
            _ip(*inside, "link", "set", "net", "up")
            _ip(*port, "link", "set", "dev", name, "master", "bridge", "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", self._space(name)], capture_output=True)

    def environ(self, name: str) -> dict[str, str]:
        """What a process needs to `ENTER`."""
        return {"NETWORK_NAMESPACE": f"/run/netns/{self._space(name)}"}

    def cut(self, name: str) -> None:
        """Nothing comes through any more; neither end of a connection is told."""
        _ip("-n", self._space(_SWITCH), "link", "set", "dev", name, "down")

    def mend(self, name: str) -> None:
        """As before."""
        _ip("-n", self._space(_SWITCH), "link", "set", "dev", name, "up")

    def _space(self, name: str) -> str:
        return f"te{os.getpid()}-{name}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
