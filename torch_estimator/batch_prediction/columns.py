"""Columns of strings as codes, and Arrow arrays made without pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Texts:
    """Column of strings, each distinct one stored once; `codes` has the index of each row's string.

    The codes are integers ``[rows]``, and for an output also ``[rows, n]``; `distinct` is an object array.
    """

    distinct: Array
    codes: Array

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | Array) -> Texts:
        return Texts(self.distinct, self.codes[rows])

    def values(self) -> Array:
        """Return the string of each row."""
        return self.distinct[self.codes]


# `pyarrow.array` and `pyarrow.scalar` import pandas if it is installed, which takes a quarter of a second. The
# functions below do not.


def from_strings(texts: Sequence[str]) -> pa.Array:
    """Return strings as an Arrow array."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum(np.fromiter((0, *map(len, encoded)), np.int64)).astype(np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def scalar(text: str) -> pa.Scalar:
    """Return a string as an Arrow scalar."""
    return from_strings([text])[0]
