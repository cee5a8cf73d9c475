"""Round trips of messages between two processes, over the connections of parameter servers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass

import zmq

from torch_estimator.parameter_server.client import ServerClient
from torch_estimator.parameter_server.protocol import Kind, is_small

ROUND_TRIPS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """The cost of one message and its reply.

    Attributes:
        size: Size of the message and of the reply, in bytes.
        secs: Wall-clock seconds.
        cpu_secs: CPU seconds of both processes.
    """

    size: int
    secs: float
    cpu_secs: float

    @property
    def idle_secs(self) -> float:
        """Seconds in which both processes wait to be woken."""
        return max(0.0, self.secs - self.cpu_secs)


def round_trips(sizes: list[int], count: int = ROUND_TRIPS) -> list[RoundTrip]:
    """Measure messages of these sizes, in bytes."""
    command = [sys.executable, "-m", "benchmarks.engine.echo"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        client = ServerClient("chief 0", 0, [process.stdout.readline().strip()], wait_secs=30)
        try:
            return [_round_trip(client, process.pid, size, count) for size in sizes]
        finally:
            client.close()
            process.stdin.close()


def _round_trip(client: ServerClient, peer: int, size: int, count: int) -> RoundTrip:
    def exchange() -> None:
        client.request({0: [client.header(Kind.EXCHANGE).pack() + body]})

    header = len(client.header(Kind.EXCHANGE).pack())
    body = bytes(max(0, size - header))
    for _ in range(count // 4):
        exchange()
    started, before = time.perf_counter(), _cpu_secs(os.getpid()) + _cpu_secs(peer)
    for _ in range(count):
        exchange()
    secs, cpu = time.perf_counter() - started, _cpu_secs(os.getpid()) + _cpu_secs(peer) - before
    return RoundTrip(size=size, secs=secs / count, cpu_secs=cpu / count)


def _cpu_secs(process: int) -> float:
    secs = 0.0
    for task in os.listdir(f"/proc/{process}/task"):
        with open(f"/proc/{process}/task/{task}/schedstat") as times:
            secs += int(times.read().split()[0]) / 1e9
    return secs


def main() -> None:
    """Send every message back until standard input ends."""
    socket = zmq.Context().socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    print(f"127.0.0.1:{port}", flush=True)
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if sys.stdin.fileno() in ready:
            break
        identity, *frames = socket.recv_multipart(copy=False)
        answer = [frame.buffer for frame in frames]
        socket.send_multipart([identity, *answer], copy=is_small(answer))


if __name__ == "__main__":
    main()
