"""Clients of a server over gRPC, beside those of REST in `scripts.storms.load`.

A client sends one request after the other on a connection of its own, with the messages of Open Inference and of
TensorFlow Serving in turns.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from benchmarks.peers.grpc_requests import grpc_requests
from scripts.storms.load import Record

_LONGEST_SECS = 30.0
# A client may send a request before it hears that the process at the other end was killed.
_HEARS_SECS = 0.5

_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
}


class GrpcLoad:
    """Clients that ask a server at a port of this machine for predictions until they are stopped.

    `record` gets what came back, and `answered` counts the valid requests among it. `malformed` is the share of
    requests, from 0 to 1, that are malformed.
    """

    def __init__(
        self,
        port: int,
        model: str,
        export: Path,
        instances: Sequence[Mapping[str, Any]],
        *,
        connections: int,
        record: Record,
        malformed: float,
        seed: int = 1,
    ) -> None:
        self.answered = 0
        self._record = record
        self._address = f"127.0.0.1:{port}"
        groups = [*([one] for one in instances), instances]
        self._valid = [one for group in groups for one in grpc_requests(export, model, group).items()]
        paths = dict(self._valid)
        nobody = grpc_requests(export, "nobody", instances[:1])
        self._malformed = [*((path, b"\xff") for path in paths), *((path, b"") for path in paths), *nobody.items()]
        self._malformed.append(("/inference.GRPCInferenceService/NoMethod", b""))
        self._share = malformed
        self._killed: list[float] = []
        self._is_over = False
        self._clients = [asyncio.create_task(self._client(random.Random(seed + one))) for one in range(connections)]

    def expect_loss(self) -> None:
        """Note that a process has just been killed: requests that were under way may be lost."""
        self._killed.append(time.monotonic())

    async def stop(self) -> None:
        """Have every client end after the answer that it waits for."""
        self._is_over = True
        await asyncio.gather(*self._clients)

    async def _client(self, rng: random.Random) -> None:
        # Without a pool of its own, all clients of this process would share one connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._address, options=options) as channel:
            while not self._is_over:
                is_valid = rng.random() >= self._share
                path, request = rng.choice(self._valid if is_valid else self._malformed)
                await self._ask(channel.unary_unary(path), path, request, is_valid=is_valid)

    async def _ask(self, call: Any, path: str, request: bytes, *, is_valid: bool) -> None:
        record, began = self._record, time.monotonic()
        try:
            await call(request, timeout=_LONGEST_SECS, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            if not is_valid and code in _REFUSALS:
                record.refused += 1
                # There is no method that would count it.
                record.uncounted += code is grpc.StatusCode.UNIMPLEMENTED
            elif code is grpc.StatusCode.UNAVAILABLE and any(
                began - _HEARS_SECS < killed < time.monotonic() for killed in self._killed
            ):
                record.lost += 1
            else:
                kind = "valid" if is_valid else "malformed"
                record.failures.append(f"a {kind} request to {path} got {code.name}: {error.details()!r}")
            return
        if is_valid:
            record.answered += 1
            self.answered += 1
            record.latencies.append(time.monotonic() - began)
        else:
            record.failures.append(f"the malformed request {request[:200]!r} to {path} was answered.")
