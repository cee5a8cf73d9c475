"""Conversion between Arrow and numpy, sharing memory, and Arrow strings, without pandas.

`pyarrow.Array.to_numpy`, `pyarrow.array` and `pyarrow.scalar` import pandas if it is installed. That takes a quarter of
a second, and training and predicting do not need pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# While Arrow reads CSV or JSON in the main thread, it takes signals that Python handles, and ends the reading with
# ArrowCancelled. Then a SIGTERM that asks for a checkpoint and status 143 would be a traceback and status 1.
pa.enable_signal_handlers(False)


def to_numpy(array: pa.Array) -> np.ndarray[Any, Any]:
    """Convert an Arrow array to numpy. Numbers without nulls share the memory of the Arrow array, read-only.

    >>> to_numpy(pa.array([1, 2, 3])[1:])
    array([2, 3])
    """
    kind = array.type
    if (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not array.null_count and len(array):
        return np.from_dlpack(array)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def from_numpy(array: np.ndarray[Any, Any]) -> pa.Array:
    """Convert a one-dimensional numpy array of numbers to an Arrow array that shares its memory.

    >>> from_numpy(np.array([1, 2], dtype=np.int32)).type
    DataType(int32)
    """
    if array.dtype.kind not in "iuf" or array.ndim != 1 or not array.dtype.isnative:
        return pa.array(array)
    buffer = pa.py_buffer(np.ascontiguousarray(array))
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, buffer])


def from_strings(texts: Sequence[str]) -> pa.Array:
    """Return strings as an Arrow array.

    >>> from_strings(["a", ""]).to_pylist()
    ['a', '']
    """
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum(np.fromiter((0, *map(len, encoded)), np.int64)).astype(np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def scalar(text: str) -> pa.Scalar:
    """Return a string as an Arrow scalar."""
    return from_strings([text])[0]


def nested(array: np.ndarray[Any, Any]) -> pa.Array:
    """Convert a numpy array of any number of dimensions to an Arrow array of lists of fixed sizes.

    >>> nested(np.zeros((3, 2, 2), np.float32)).type
    FixedSizeListType(fixed_size_list<item: fixed_size_list<item: float>[2]>[2])
    """
    result = from_numpy(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        result = pa.FixedSizeListArray.from_arrays(result, size)
    return result


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return all chunks of a chunked Arrow column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    # If the strings take more than 2 GiB together, pyarrow returns a ChunkedArray here as well.
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    return array


def as_text(array: pa.Array) -> pa.Array:
    """Return a column as strings; a time's fraction of a second ends with its last digit other than 0.

    >>> as_text(pa.array([0, 1_500], pa.timestamp("ms"))).to_pylist()
    ['1970-01-01 00:00:00', '1970-01-01 00:00:01.5']
    """
    kind = array.type
    array = array.cast(pa.string())
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        # A zone, such as Z or +0100, may follow.
        array = pc.replace_substring_regex(array, r"\.(\d*[1-9])?0+(\D|$)", r".\1\2")
        array = pc.replace_substring_regex(array, r"\.(\D|$)", r"\1")
    return array


# In the text of a UUID, the 32 hexadecimal digits have these places, and the others have dashes.
_DIGITS = [place for place in range(36) if place not in (8, 13, 18, 23)]


def without_extension(array: pa.Array) -> pa.Array:
    """Return an array of an extension type as one of Arrow's own types: UUIDs become text, others what stores them.

    >>> ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(range(16)), None], pa.binary(16)))
    >>> without_extension(ids).to_pylist()
    ['00010203-0405-0607-0809-0a0b0c0d0e0f', None]
    """
    if not isinstance(array, pa.ExtensionArray):
        return array
    storage = array.storage
    if array.type.extension_name != "arrow.uuid" or not len(storage):
        return storage.cast(pa.string()) if array.type.extension_name == "arrow.uuid" else storage
    data = memoryview(storage.buffers()[1])[16 * storage.offset : 16 * (storage.offset + len(storage))]
    texts = np.full((len(storage), 36), ord("-"), np.uint8)
    texts[:, _DIGITS] = np.frombuffer(data.hex().encode(), np.uint8).reshape(-1, 32)
    offsets = np.arange(len(storage) + 1, dtype=np.int32) * 36
    strings = pa.StringArray.from_buffers(len(storage), pa.py_buffer(offsets), pa.py_buffer(texts))
    return pc.if_else(storage.is_null(), pa.nulls(1, pa.string())[0], strings) if storage.null_count else strings
