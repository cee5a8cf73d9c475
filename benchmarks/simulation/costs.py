"""What a step costs: seconds of CPU by who spends them, and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One who trains, without its messages.

    Attributes:
        compute: Seconds of its training thread for a step; one of these, drawn at random.
        beside: Seconds of its other threads, which read the input, for a step.
        pause: Seconds that it waits for a batch without using the CPU.
    """

    compute: Sequence[float]
    beside: float = 0.0
    pause: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A message to one server and its answer.

    Attributes:
        pack: Seconds of the training thread to write and send the message.
        unpack: Seconds of the training thread to receive and read the answer.
        worker_io: Seconds of the worker's transport thread, both ways.
        handle: Seconds of the server's thread, from receiving the message to sending the answer; one of these, drawn
            at random.
        server_io: Seconds of the server's transport thread, both ways.
        up: Bytes of the message.
        down: Bytes of the answer.
    """

    pack: float = 0.0
    unpack: float = 0.0
    worker_io: float = 0.0
    handle: Sequence[float] = (0.0,)
    server_io: float = 0.0
    up: float = 0.0
    down: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What lies between two processes.

    Attributes:
        latency: Seconds one way, in which nobody is busy.
        bytes_per_s: Of each machine's card, each way.
    """

    latency: float = 0.0
    bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One on which all processes run.

    Attributes:
        cores: How many.
        wake: Seconds until an idle core does what it is given.
    """

    cores: int
    wake: float = 0.0
