"""All parameter servers of a cluster in one process, which measures what each message costs and prints JSON."""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Sequence
from typing import Any

import zmq

from benchmarks.engine.cpu_clock import TRANSPORT, cpu_by_thread, quantiles
from torch_estimator.parameter_server.protocol import Header, Kind, is_small
from torch_estimator.parameter_server.server import ParameterServer


class TimedServer:
    """A parameter server whose messages are measured.

    Args:
        index: Index of the server.
        address: Address of the server.

    Attributes:
        secs: CPU seconds of this thread for each exchange.
        up: Size of each exchange in bytes.
        down: Size of each reply in bytes.
    """

    def __init__(self, index: int, address: str) -> None:
        self.secs: list[float] = []
        self.up: list[int] = []
        self.down: list[int] = []
        self._server = ParameterServer(f"ps {index}", address)
        self.socket: zmq.Socket[bytes] = self._server._router.socket

    @property
    def ended(self) -> bool:
        """Whether training is over and all workers know that."""
        return self._server._ended_at is not None and not self._server._is_needed()

    def answer(self) -> None:
        """Reply to one message, as `ParameterServer.serve` does."""
        started = time.thread_time()
        try:
            identity, *frames = self.socket.recv_multipart(copy=False)
        except zmq.Again:
            return
        question = [frame.buffer for frame in frames]
        answer = self._server._answer(question, identity)
        self.socket.send_multipart([identity, *answer], copy=is_small(answer))
        if Header.unpack(question[0]).kind is Kind.EXCHANGE:
            self.secs.append(time.thread_time() - started)
            self.up.append(len(question[0]))
            self.down.append(len(answer[0]))

    def close(self) -> None:
        """Release the address."""
        self._server.close()

    def report(self, skipped: int) -> dict[str, Any]:
        """Return means over all exchanges but the first `skipped`, and quantiles of the CPU seconds."""
        return {
            "handle": statistics.mean(self.secs[skipped:]),
            "handles": quantiles(self.secs[skipped:]),
            "up": statistics.mean(self.up[skipped:]),
            "down": statistics.mean(self.down[skipped:]),
        }


def serve(addresses: Sequence[str], skipped: int) -> dict[str, Any]:
    """Serve until training ends; return means over all exchanges but the first `skipped` of each server."""
    servers = [TimedServer(index, address) for index, address in enumerate(addresses)]
    poller = zmq.Poller()
    for one in servers:
        poller.register(one.socket, zmq.POLLIN)
    by_socket = {one.socket: one for one in servers}
    before: float | None = None
    try:
        while not all(one.ended for one in servers):
            # A single server waits in its socket, as a real one does.
            for one in servers if len(servers) == 1 else [by_socket[socket] for socket, _ in poller.poll(500)]:
                one.answer()
            if before is None and len(servers[0].secs) >= skipped:
                before = cpu_by_thread()[TRANSPORT]
        transport = cpu_by_thread()[TRANSPORT] - (before or 0.0)
        messages = sum(len(one.secs) - skipped for one in servers)
        return {"servers": [one.report(skipped) for one in servers], "io": transport / messages}
    finally:
        for one in servers:
            one.close()


def main() -> None:
    """Serve the addresses of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("addresses", nargs="+", help="host:port of each server")
    parser.add_argument("--skipped", type=int, default=0, help="exchanges of each server that are not counted")
    args = parser.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    print(json.dumps(serve(args.addresses, args.skipped)))


if __name__ == "__main__":
    main()
