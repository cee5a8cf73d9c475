"""Random orders that depend on nothing but a seed and a position."""

from __future__ import annotations

import numpy as np
import torch

from torch_estimator.data.columns import Array

_RANGES = 0


def draw_seed() -> int:
    """Returns a seed from torch's global generator, so that whoever seeds torch decides about the shuffling."""
    return int(torch.randint(0, 2**62, ()))


def permute_ranges(count: int, *, seed: int, epoch: int) -> Array:
    """Returns the order of an epoch's ranges."""
    return _generator(seed, epoch, _RANGES).permutation(count)


def permute_rows(count: int, *, seed: int, epoch: int, window: int) -> Array:
    """Returns the order of the rows in a window."""
    return _generator(seed, epoch, window + 1).permutation(count)


def _generator(seed: int, epoch: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, epoch, stream]))
