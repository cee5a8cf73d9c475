"""A relay between workers and a server, for tests that listen to messages or lose replies."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from torch_estimator.cluster.addresses import split_address


class Relay:
    """Forwards bytes between workers and a server.

    Args:
        address: Address of the server.

    Attributes:
        address: Address of the relay, to which workers connect.
        heard: All bytes that were forwarded.
        loses_replies: Whether the server's bytes are dropped.
        lets_replies_through: Clear it to have the server's bytes wait. They stay with the server, but for what the
            buffers of one connection hold.
    """

    def __init__(self, address: str) -> None:
        self.heard = bytearray()
        self.loses_replies = False
        self.lets_replies_through = threading.Event()
        self.lets_replies_through.set()
        self._target = split_address(address, "address")
        self._listener = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        """End all connections; new ones can be made."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections, and accept no more."""
        self._listener.close()
        self.lets_replies_through.set()
        self.cut()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                worker, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._open += [worker, server]
                for source, target, replies in ((worker, server, False), (server, worker, True)):
                    threading.Thread(target=self._forward, args=(source, target, replies), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with suppress(OSError), source, target:
            while content := source.recv(65536):
                self.heard.extend(content)
                if replies:
                    self.lets_replies_through.wait()
                if not (replies and self.loses_replies):
                    target.sendall(content)
