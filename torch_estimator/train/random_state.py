"""Random number generators: seed them, and save and restore their state."""

from __future__ import annotations

import base64
import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from torch_estimator.errors import CheckpointError

logger = logging.getLogger("torch_estimator")


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed torch's random generators for the body, and restore the caller's state afterwards.

    If ``seed`` is None, a seed is drawn from torch's generator, so that ``torch.manual_seed`` of the caller makes the
    run reproducible.
    """
    with isolated(int(torch.randint(0, 2**62, ())) if seed is None else seed):
        yield


@contextmanager
def isolated(seed: int | None) -> Iterator[None]:
    """Run the body and restore the state of torch's random generators afterwards.

    An evaluation in the middle of a training must not change which numbers the training draws. Without a seed the body
    continues with the caller's state.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        if seed is not None:
            torch.manual_seed(seed)
        yield


@contextmanager
def drawing_alike(seed: int) -> Iterator[None]:
    """Seed the generators of torch, Python and numpy for the body; afterwards restore those of Python and numpy.

    Processes that call this with the same seed draw the same numbers. The caller restores torch's generators, by
    `isolated`.
    """
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextmanager
def noticing_draws(mode: str) -> Iterator[None]:
    """Warn if the body draws random numbers. It calls a model for ``mode``, which is "evaluation" or "prediction"."""
    before = random_state()
    yield
    if random_state() != before:
        logger.warning(
            "The model draws random numbers in %s, and so would its exports: torch.nn.functional.dropout needs "
            "training=self.training.",
            mode,
        )


def random_state(*, cpu: bool = True) -> dict[str, Any]:
    """Return torch's random states as values that JSON can represent; if ``cpu`` is False, only those of GPUs."""
    state: dict[str, Any] = {"cpu": _encode(torch.get_rng_state())} if cpu else {}
    if torch.cuda.is_available():
        state["cuda"] = [_encode(one) for one in torch.cuda.get_rng_state_all()]
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set torch's random generators to a result of `random_state`; states of GPUs that do not exist are ignored."""
    try:
        _set(state)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            "The checkpoint's state of torch's random generators is damaged; use an older checkpoint by naming it in "
            "'checkpoint' of its model_dir."
        ) from error


def _set(state: Mapping[str, Any]) -> None:
    if "cpu" in state:
        torch.set_rng_state(_decode(state["cpu"]))
    if torch.cuda.is_available():
        for device, one in enumerate(state.get("cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_decode(one), device)


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
