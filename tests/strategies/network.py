"""A network for tests: each process has its own address, in a network namespace, behind a link that can be cut."""

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
"""Python code that moves a process with one thread into the namespace that `Network.environ` names."""

_SWITCH = "switch"


def why_not() -> str | None:
    """Return why this machine cannot make such a network, or None where it can."""
    if shutil.which("ip") is None:
        return "there is no command ip (package iproute2)"
    name = f"te{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces cannot be made, as only root may: {tried.stderr.strip()}"
    _ip("netns", "del", name)
    return None


class Network:
    """Network namespaces joined by a switch, itself in a namespace, so that the machine's own network is unchanged.

    Args:
        names: Name of each namespace, up to 12 characters.

    Attributes:
        addresses: IPv4 address of each namespace, by name.
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
        """Return the environment variables that `ENTER` reads in a process."""
        return {"NETWORK_NAMESPACE": f"/run/netns/{self._space(name)}"}

    def cut(self, name: str) -> None:
        """Drop all packets from and to a namespace; neither end of a connection is notified."""
        _ip("-n", self._space(_SWITCH), "link", "set", "dev", name, "down")

    def mend(self, name: str) -> None:
        """Let packets through again."""
        _ip("-n", self._space(_SWITCH), "link", "set", "dev", name, "up")

    def _space(self, name: str) -> str:
        return f"te{os.getpid()}-{name}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
