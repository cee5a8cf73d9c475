"""What lies between those who ask and a server, for tests in which somebody listens there, or answers are lost."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from torch_estimator.cluster.addresses import split_address


class Road:
    """Carries what is said to a server and back.

    Args:
        address: Of the server.

    Attributes:
        address: Where it begins.
        heard: All that came along it.
        loses_answers: Whether what the server says is dropped.
        lets_answers_through: Cleared, what the server says stays where it is: with the server, but for what the
            buffers of one connection hold.
    """

    def __init__(self, address: str) -> None:
        self.heard = bytearray()
        self.loses_answers = False
        self.lets_answers_through = threading.Event()
        self.lets_answers_through.set()
        self._target = split_address(address, "address")
        self._door = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self._door.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        """Ends all connections; new ones can be made."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends them for good."""
        self._door.close()
        self.lets_answers_through.set()
        self.cut()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                coming, _ = self._door.accept()
                going = socket.create_connection(self._target)
                self._open += [coming, going]
                for source, target, answers in ((coming, going, False), (going, coming, True)):
                    threading.Thread(target=self._carry, args=(source, target, answers), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError), source, target:
            while content := source.recv(65536):
                self.heard.extend(content)
                if answers:
                    self.lets_answers_through.wait()
                if not (answers and self.loses_answers):
                    target.sendall(content)
