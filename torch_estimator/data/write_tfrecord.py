"""Writing of rows into a TFRecord file of tf.Examples."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator import files
from torch_estimator.data.sources.memory import frame_columns, is_frame
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.tfrecord.encoder import ExampleEncoder
from torch_estimator.tfrecord.records import record

_BLOCK_BYTES = 2**20
_GZIP = 16 + zlib.MAX_WBITS


def write_tfrecord(path: files.PathLike, data: Any) -> int:
    """Write rows as tf.Examples into a TFRecord file, which TensorFlow and `Dataset.from_tfrecord` read.

    Integers and booleans become int64, floats float32, and text UTF-8. Values of several dimensions are flattened.
    A missing value or an empty list is left out. A local file appears when it is complete.

    Args:
        path: Path or URL. The file is compressed with gzip if its name ends in ``.gz``.
        data: Columns, rows first: a dict of arrays or lists, a DataFrame or a `pyarrow.Table`. Or rows: an iterable of
            dicts by feature.

    Returns:
        Number of records.

    Raises:
        InvalidTypeError: `data` is something else, or a value cannot be in a tf.Example.
        InvalidValueError: Columns differ in length, or an integer does not fit into int64.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "rows.tfrecord")
    >>> te.data.write_tfrecord(path, [{"x": 1.5, "tags": ["a", "b"]}, {"x": 2.5}])
    2
    >>> [features["tags"].tolist() for features in te.data.Dataset.from_tfrecord(path).batch(2)]
    [[['a', 'b'], ['', '']]]
    """
    encoder = ExampleEncoder()
    written = 0

    def records() -> Iterator[bytes]:
        nonlocal written
        for row in _rows(data):
            yield record(encoder.encode(row, written))
            written += 1

    chunks = _blocks(records())
    files.write_atomic(path, _compressed(chunks) if files.as_url(path).endswith(".gz") else chunks)
    return written


def _rows(data: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(data, pa.Table):
        data = {name: data.column(name) for name in data.column_names}
    elif is_frame(data):
        data = frame_columns(data)
    if isinstance(data, Mapping):
        yield from _rows_of_columns({name: _values(name, column) for name, column in data.items()})
        return
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise InvalidTypeError(f"write_tfrecord takes a dict of columns or rows as dicts, but got {data!r:.100}.")
    for number, row in enumerate(data):
        if not isinstance(row, Mapping):
            raise InvalidTypeError(f"a row must be a dict of values by feature, but row {number} is {row!r:.100}.")
        yield row


def _rows_of_columns(columns: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidValueError(f"the columns must have the same number of rows, but have {lengths}.")
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _values(name: str, column: Any) -> Any:
    """Return the values of a column, one for each row, with None for missing ones."""
    if hasattr(column, "detach"):
        column = column.detach().cpu().numpy()
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column.to_pylist()
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return column
    try:
        return pa.array(column, from_pandas=True).to_pylist()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidTypeError(f"column {name!r} cannot be written: {files.reason(error)}.") from error


def _blocks(parts: Iterable[bytes]) -> Iterator[bytes]:
    block = bytearray()
    for part in parts:
        block += part
        if len(block) >= _BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    yield bytes(block)


def _compressed(blocks: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=_GZIP)
    for block in blocks:
        yield packer.compress(block)
    yield packer.flush()
