"""Writing of rows into a TFRecord file of tf.Examples."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator import files
from torch_estimator.data.arguments import column_names
from torch_estimator.data.sources.memory import frame_columns, is_frame
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.tfrecord.encoder import ExampleEncoder
from torch_estimator.tfrecord.engine import engine

_BLOCK_ROWS = 256
_GZIP = 16 + zlib.MAX_WBITS


def write_tfrecord(path: files.PathLike, data: Any, *, sequence_columns: Sequence[str] = ()) -> int:
    """Write rows as tf.Examples into a TFRecord file, which TensorFlow and `Dataset.from_tfrecord` read.

    Integers and booleans become int64, floats float32, and text UTF-8. Values of several dimensions are flattened.
    A missing value or an empty list is left out. A local file appears when it is complete.

    Args:
        path: Path or URL. The file is compressed with gzip if its name ends in ``.gz``.
        data: Columns, rows first: a dict of arrays or lists, a DataFrame or a `pyarrow.Table`. Or rows: an iterable of
            dicts by feature.
        sequence_columns: Columns to write as feature lists, which makes the rows SequenceExamples. Their values are
            lists of steps; a step is a value or a list of values.

    Returns:
        Number of records.

    Raises:
        InvalidTypeError: `data` is something else, or a value cannot be in a tf.Example.
        InvalidValueError: Columns differ in length, an integer does not fit into int64, or `sequence_columns` names a
            column that no row has.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "rows.tfrecord")
    >>> te.data.write_tfrecord(path, [{"x": 1.5, "tags": ["a", "b"]}, {"x": 2.5}])
    2
    >>> [features["tags"].tolist() for features in te.data.Dataset.from_tfrecord(path).batch(2)]
    [[['a', 'b'], ['', '']]]
    """
    lists = column_names("sequence_columns", sequence_columns) if sequence_columns else ()
    encoder = ExampleEncoder(lists)
    written, unseen = 0, set(lists)

    def blocks() -> Iterator[bytes]:
        nonlocal written
        for columns, rows in _blocks(data, _BLOCK_ROWS):
            unseen.difference_update(columns)
            yield engine().frame(encoder.encode(columns, rows, written))
            written += rows
        if unseen and written:
            raise InvalidValueError(f"sequence_columns has {min(unseen)!r}, but no row has such a column.")

    files.write_atomic(path, _compressed(blocks()) if files.as_url(path).endswith(".gz") else blocks())
    return written


def _blocks(data: Any, size: int) -> Iterator[tuple[Mapping[str, Sequence[Any]], int]]:
    """Yield blocks of rows as columns, and the number of rows in each."""
    if isinstance(data, pa.Table):
        data = {name: data.column(name) for name in data.column_names}
    elif is_frame(data):
        data = frame_columns(data)
    if isinstance(data, Mapping):
        columns = {name: _values(name, column) for name, column in data.items()}
        lengths = {name: len(values) for name, values in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InvalidValueError(f"the columns must have the same number of rows, but have {lengths}.")
        rows = next(iter(lengths.values()), 0)
        for begin in range(0, rows, size):
            block = {name: values[begin : begin + size] for name, values in columns.items()}
            yield block, min(size, rows - begin)
        return
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise InvalidTypeError(f"write_tfrecord takes a dict of columns or rows as dicts, but got {data!r:.100}.")
    number, rest = 0, iter(data)
    while many := list(islice(rest, size)):
        for row in many:
            if not isinstance(row, Mapping):
                raise InvalidTypeError(f"a row must be a dict of values by feature, but row {number} is {row!r:.100}.")
            number += 1
        names = dict.fromkeys(chain.from_iterable(many))
        yield {name: [row.get(name) for row in many] for name in names}, len(many)


def _values(name: str, column: Any) -> Any:
    """Return the values of a column, one for each row, with None for missing ones."""
    if hasattr(column, "detach"):
        column = column.detach().cpu().numpy()
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return column
    try:
        array = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column, from_pandas=True)
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            # This is faster than to_pylist. Of a dictionary it would make a missing value another one.
            return array.cast(kind).to_numpy(zero_copy_only=False).tolist()
        return array.to_pylist()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidTypeError(f"column {name!r} cannot be written: {files.reason(error)}.") from error


def _compressed(blocks: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=_GZIP)
    for block in blocks:
        yield packer.compress(block)
    yield packer.flush()
