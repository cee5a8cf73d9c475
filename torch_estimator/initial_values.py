"""Initial values by row: numbers that are a function of a seed, a variable's name, a row and a column.

Any process makes any rows of a variable, in any order, and gets the same bits. `Distribution.rows` needs numpy alone,
because parameter servers do not import torch.

A number is one of 65,536 equally probable quantiles of its distribution. The quantile's 16 bits come from SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), each of whose outputs serves four
neighbouring columns. The stream starts at a hash of seed and name.
"""

from __future__ import annotations

import functools
import hashlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

_QUANTILES = 1 << 16

# Numbers that are made at a time: enough to hide the cost of a call, few enough to stay in the CPU cache.
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of initial values: `uniform` or `truncated_normal`, whose numbers are multiplied by `scale`.

    The function returns the quantiles at scale 1, float32 ``[65536]``.
    """

    quantiles: Callable[[], npt.NDArray[np.float32]]
    scale: float

    def rows(self, seed: int, name: str, ids: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.float32]:
        """Return the rows `ids`, int64 ``[n]`` in any order, of a variable: float32 ``[n, width]``.

        Variables of another seed or name have independent numbers.
        """
        start = np.frombuffer(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "<u8")
        words = -(-width // 4)
        counts = np.add.outer(ids.astype(np.uint64) * np.uint64(words), np.arange(words, dtype=np.uint64))
        bits: npt.NDArray[np.uint64] = counts * np.uint64(0x9E3779B97F4A7C15) + start
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits ^= bits >> np.uint64(shift)
            bits *= np.uint64(factor)
        bits ^= bits >> np.uint64(31)
        numbers: npt.NDArray[np.float32] = self.quantiles()[bits.astype("<u8", copy=False).view("<u2")[:, :width]]
        numbers *= np.float32(self.scale)
        return numbers

    def fill(self, weight: torch.Tensor, seed: int, name: str) -> None:
        """Fill a variable ``[rows, width]`` of any dtype and device in place, a block of rows at a time."""
        import torch

        total, width = weight.shape
        step = max(1, _BLOCK // width)
        for start in range(0, total, step):
            ids = np.arange(start, min(start + step, total))
            weight[start : start + step] = torch.from_numpy(self.rows(seed, name, ids, width))


@functools.cache
def uniform() -> npt.NDArray[np.float32]:
    """Return quantiles of the uniform distribution between -1 and 1, float32 ``[65536]``."""
    return ((2 * np.arange(_QUANTILES) + 1) / _QUANTILES - 1).astype(np.float32)


@functools.cache
def truncated_normal() -> npt.NDArray[np.float32]:
    """Return quantiles of the standard normal distribution between -2 and 2, float32 ``[65536]``."""
    normal = statistics.NormalDist()
    below, within = normal.cdf(-2), normal.cdf(2) - normal.cdf(-2)
    lower = [normal.inv_cdf(below + within * (index + 0.5) / _QUANTILES) for index in range(_QUANTILES // 2)]
    return np.array(lower + [-one for one in reversed(lower)], np.float32)
