"""Where replicas are in their inputs and random numbers, as bytes that each message has room for."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_LENGTH = 4
_RANDOM, _CPU = "random", "cpu"


def encoded(position: Mapping[str, Any]) -> bytes:
    """Returns a position, as JSON has it, and the state of torch's generator behind it.

    The latter is 5,056 bytes, which would take longer as JSON than all else that a step does for the position.
    """
    text = json.dumps(position).encode()
    return b"".join((len(text).to_bytes(_LENGTH, "little"), text, torch.get_rng_state().numpy().tobytes()))


def decoded(positions: Tensor) -> list[dict[str, Any]]:
    """Returns the positions, each as what was encoded with the generator's state in it.

    Args:
        positions: uint8 ``[replicas, bytes]``, padded.
    """
    size = len(torch.get_rng_state())
    found = []
    for row in positions:
        whole = row.numpy().tobytes()
        end = _LENGTH + int.from_bytes(whole[:_LENGTH], "little")
        position = json.loads(whole[_LENGTH:end])
        cpu = base64.b64encode(whole[end : end + size]).decode("ascii")
        position[_RANDOM] = {**position.get(_RANDOM, {}), _CPU: cpu}
        found.append(position)
    return found
