"""Dataset: a source of rows, and the operations that turn rows into batches."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator import tree
from torch_estimator.data.arguments import check_count
from torch_estimator.data.described import described_operation, described_source
from torch_estimator.data.iterator import Batch, DatasetIterator
from torch_estimator.data.label import Label, LabelColumns
from torch_estimator.data.operations.batching import Batching, Padding
from torch_estimator.data.operations.bucketing import Bucketing
from torch_estimator.data.operations.cache import Cache
from torch_estimator.data.operations.class_weight import ClassWeight
from torch_estimator.data.operations.filter import CALLS, Filter, Unbatch
from torch_estimator.data.operations.map import Map
from torch_estimator.data.operations.prefetch import Prefetch
from torch_estimator.data.operations.repeat import Repeat
from torch_estimator.data.operations.shuffle import Shuffle, draw_seed
from torch_estimator.data.operations.take_skip_shard import Shard, Skip, Take
from torch_estimator.data.pipeline import Operation, make_iterator
from torch_estimator.data.sources.base import Source
from torch_estimator.data.sources.combined import CombinedSource, Concatenated, Mixed, Zipped
from torch_estimator.data.sources.csv import csv_source
from torch_estimator.data.sources.input_files import Files
from torch_estimator.data.sources.iterable import IterableSource
from torch_estimator.data.sources.memory import (
    MemorySource,
    arrow_table,
    check_same_index,
    frame_columns,
    is_frame,
    is_series,
    memory_source,
    series_column,
)
from torch_estimator.data.sources.rows import batches_of_rows
from torch_estimator.data.transform import AS_NUMPY, Transform
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.tfrecord.features import FeatureSpec

AUTOTUNE = -1
"""Argument of `Dataset.prefetch` and `Dataset.map`: let them choose, as `tf.data.AUTOTUNE` does."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dataset:
    """Input pipeline: a source of rows (features and labels), and operations such as shuffle and batch.

    Every method returns a new Dataset. Nothing is read before iterating.

    >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3, 4, 5]}, [0, 1, 0, 1, 0])
    >>> for features, labels in data.repeat(2).batch(4):
    ...     print(features["x"], labels)
    [1 2 3 4] [0 1 0 1]
    [5 1 2 3] [0 0 1 0]
    [4 5] [1 0]
    """

    _source: Source | IterableSource | CombinedSource
    _operations: tuple[Operation, ...] = ()
    _batched: bool = False

    @classmethod
    def from_csv(
        cls,
        files: Files,
        *,
        column_names: Sequence[str] | None = None,
        header: bool | None = None,
        column_types: Mapping[str, Any] | Sequence[Any] | None = None,
        defaults: Mapping[str, Any] | Sequence[Any] | None = None,
        select_columns: Sequence[str] | None = None,
        schema: pa.Schema | None = None,
        list_separator: str | None = None,
        label: LabelColumns | None = None,
        delimiter: str | None = None,
        field_delim: str | None = None,
        quote_char: str | None = '"',
        missing_values: Sequence[str] = (),
        na_value: str | None = None,
        encoding: str = "utf-8",
        ignore_errors: bool = False,
    ) -> Dataset:
        """Read CSV files. A quoted field may hold newlines. Blank lines are skipped.

        Numbers must be finite: ``nan`` and ``inf`` are errors, except in a column whose default is NaN. Errors in the
        files are raised by the iterator, as `DataError`.

        Args:
            files: A path, glob or fsspec URL, or several. The files of a glob are read in sorted order. Files
                compressed by gzip, bzip2, xz, zstd, lz4 or zip are decompressed, whatever their names.
            column_names: Names of the columns; None takes them from the header.
            header: Whether the first line of each file is a header; None means that it is if `column_names` is None.
                With both, `column_names` replace the header's names by position. The headers must then be equal, and
                a name that the header has must keep its place.
            column_types: Type by column (``"string"``, ``"float32"``, ``"int64"``, ...), or a list with the types of
                all columns. A column without a type gets the type that the model's feature columns read, else the type
                of its default, else int64, float32, bool or strings, inferred from the first rows.
            defaults: Values that replace missing ones: a dict by column, or a list in the order of the columns read.
                None means that a value is required. One-element lists, as in tf.io.decode_csv, are accepted. Without a
                default, a missing string becomes '', a missing integer that only categorical columns read becomes -1
                (no id), another number the `default_value` of the model's column, and any other is an error.
            select_columns: Columns to use; None for all.
            schema: Columns to use, their types and defaults, instead of `select_columns` and `column_types`, such as
                ``te.feature_column.schema(columns)``. The label is read in addition. `defaults` override those of the
                schema.
            list_separator: Text between the values of a list, for columns that hold lists. An empty field is an empty
                list. Columns hold lists if their type is a list type, or if a ``multivalent`` column of the model reads
                them without a `map` in between. If no column holds lists, a warning is logged.
            label: Column to use as label, or several; see `label`.
            delimiter: Character between fields. None is a comma, or a semicolon, tab or ``|`` that divides the first
                two lines into equally many columns where a comma divides nothing. The log says so.
            field_delim: The same; the name that `tf.data.experimental.make_csv_dataset` has for it.
            quote_char: Character around fields that hold the delimiter or newlines; None if quotes have no meaning.
            missing_values: Fields that stand for a missing value, as an empty field does, such as ``["NA", "?"]``.
            na_value: One more of them; the name that `tf.data.experimental.make_csv_dataset` has for it.
            encoding: Encoding of the files, such as ``"latin-1"``, ``"cp1252"`` or ``"utf-16"`` (with a byte order mark
                or without). Files in another encoding than UTF-8 are converted into temporary files.
            ignore_errors: Whether to leave out rows that cannot be read, or lack a value without a default. The log
                says how many were left out, and names the first of them with its file and line.

        Raises:
            InvalidTypeError: An argument has the wrong type.
            InvalidValueError: Arguments contradict each other.

        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "people.csv")
        >>> _ = path.write_text("age,job,rich\\n31,clerk,no\\n52,farmer,yes\\n")
        >>> for features, labels in te.data.Dataset.from_csv(path, label="rich").batch(2):
        ...     print(features["age"], features["job"], labels)
        [31 52] ['clerk' 'farmer'] ['no' 'yes']
        """
        source = csv_source(
            files,
            names=column_names,
            header=header,
            column_types=column_types,
            defaults=defaults,
            select_columns=select_columns,
            schema=schema,
            label=label,
            delimiter=delimiter,
            field_delim=field_delim,
            quote_char=quote_char,
            list_separator=list_separator,
            missing_values=missing_values,
            na_value=na_value,
            encoding=encoding,
            ignore_errors=ignore_errors,
        )
        return cls(source)._labelled(label)

    @classmethod
    def from_parquet(
        cls,
        files: Files,
        *,
        columns: Sequence[str] | None = None,
        schema: pa.Schema | None = None,
        defaults: Mapping[str, Any] | None = None,
        label: LabelColumns | None = None,
        ignore_errors: bool = False,
    ) -> Dataset:
        """Read Parquet files. If the rows are shuffled, whole row groups are read in random order.

        Args:
            files: A path, glob or fsspec URL, or several.
            columns: Columns to use; None for all.
            schema: Columns to use, the types to convert them to and their defaults, instead of `columns`, such as
                ``te.feature_column.schema(columns)``. The label is read in addition. `defaults` override those of the
                schema.
            defaults: Values that replace missing ones, by column. Without a default, a missing string becomes '', a
                missing integer that only categorical columns read becomes -1 (no id), also in lists, another number
                the `default_value` of the model's column, and any other is an error.
            label: Column to use as label, or several; see `label`.
            ignore_errors: Whether to leave out rows that cannot be read, or lack a value without a default. The log
                says how many were left out, and names the first of them with its file and row.

        Raises:
            InvalidTypeError: An argument has the wrong type.
            InvalidValueError: Arguments contradict each other.

        >>> import pathlib, tempfile
        >>> import pyarrow as pa, pyarrow.parquet
        >>> path = pathlib.Path(tempfile.mkdtemp(), "people.parquet")
        >>> pa.parquet.write_table(pa.table({"age": [31, 52], "job": ["clerk", None], "rich": [0, 1]}), path)
        >>> for features, labels in te.data.Dataset.from_parquet(path, columns=["age", "job"], label="rich").batch(2):
        ...     print(features["age"], features["job"], labels)
        [31 52] ['clerk' ''] [0 1]
        """
        from torch_estimator.data.sources.parquet import parquet_source

        source = parquet_source(
            files, columns=columns, schema=schema, defaults=defaults, label=label, ignore_errors=ignore_errors
        )
        return cls(source)._labelled(label)

    @classmethod
    def from_json(
        cls,
        files: Files,
        *,
        column_types: Mapping[str, Any] | None = None,
        select_columns: Sequence[str] | None = None,
        schema: pa.Schema | None = None,
        defaults: Mapping[str, Any] | None = None,
        label: LabelColumns | None = None,
        ignore_errors: bool = False,
    ) -> Dataset:
        """Read files of JSON lines: one object per line, with columns by name. Blank lines are skipped.

        A value may be a number, a string, a boolean, or a list of them. A value that is null, or whose key is missing,
        is a missing value. Errors in the files are raised by the iterator, as `DataError`.

        Args:
            files: A path, glob or fsspec URL, or several. The files of a glob are read in sorted order. Files whose
                names end in ``.gz`` are decompressed.
            column_types: Type by column (``"string"``, ``"float32"``, ..., or an Arrow type, such as a type of lists).
                A column without a type gets one as in `from_csv`.
            select_columns: Columns to use; None for those in the first rows.
            schema: Columns to use, their types and defaults, instead of `select_columns` and `column_types`, such as
                ``te.feature_column.schema(columns)``. The label is read in addition. `defaults` override those of the
                schema.
            defaults: Values that replace missing ones, by column. Without a default, a missing string becomes '', a
                missing list becomes an empty list, a missing integer that only categorical columns read becomes -1 (no
                id), also in lists, another number the `default_value` of the model's column, and any other is an error.
            label: Column to use as label, or several; see `label`.
            ignore_errors: Whether to leave out rows that cannot be read, or lack a value without a default. The log
                says how many were left out, and names the first of them with its file and line.

        Raises:
            InvalidTypeError: An argument has the wrong type.
            InvalidValueError: Arguments contradict each other.

        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "people.json")
        >>> _ = path.write_text('{"age": 31, "tags": ["new"]}\\n{"age": 52, "tags": []}\\n')
        >>> for features in te.data.Dataset.from_json(path).batch(2):
        ...     print(features["age"], features["tags"].tolist())
        [31 52] [['new'], ['']]
        """
        from torch_estimator.data.sources.json import json_source

        source = json_source(
            files,
            column_types=column_types,
            select_columns=select_columns,
            schema=schema,
            defaults=defaults,
            label=label,
            ignore_errors=ignore_errors,
        )
        return cls(source)._labelled(label)

    @classmethod
    def from_tfrecord(
        cls,
        files: Files,
        *,
        schema: FeatureSpec | pa.Schema | None = None,
        sequence_schema: FeatureSpec | None = None,
        label: LabelColumns | None = None,
        ignore_errors: bool = False,
    ) -> Dataset:
        """Read TFRecord files of tf.Examples or SequenceExamples, without TensorFlow. Checksums are verified.

        If the rows are shuffled, small ranges of all files are read in random order. Errors in the files are raised by
        the iterator, as `DataError`, with the file and the position of the record in bytes.

        Args:
            files: A path, glob or fsspec URL, or several. The files of a glob are read in sorted order. Files in gzip
                or zlib are decompressed, whatever their names; positions are then those in what was compressed.
            schema: Columns to use: a dict of `FixedLenFeature`, `VarLenFeature`, `RaggedFeature` or `SparseFeature` by
                name, such as ``te.feature_column.make_parse_example_spec(columns)``, or
                ``te.feature_column.schema(columns)``. The label is read in addition. None takes the features in the
                first records: one value per row where no record has more, else lists. Of SequenceExamples these are
                the features of the context.
            sequence_schema: Feature lists of SequenceExamples to read: a dict of `FixedLenSequenceFeature`,
                `VarLenFeature` or `RaggedFeature` by name. Their columns hold lists, with one item for each step. None
                reads those of the first records if `schema` is None, too, and else none.
            label: Column to use as label, or several; see `label`.
            ignore_errors: Whether to leave out records that are damaged or do not fit the schema. The log says how
                many were left out, and names the first of them.

        Raises:
            InvalidTypeError: An argument has the wrong type.
            InvalidValueError: A schema is empty, or both have a column.

        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "people.tfrecord")
        >>> te.data.write_tfrecord(path, {"age": [31, 52], "tags": [["a"], ["b", "c"]], "rich": [0, 1]})
        2
        >>> schema = {"age": te.data.FixedLenFeature([], "int64"), "tags": te.data.VarLenFeature("string")}
        >>> for features, labels in te.data.Dataset.from_tfrecord(path, schema=schema, label="rich").batch(2):
        ...     print(features["age"], features["tags"].tolist(), labels)
        [31 52] [['a', ''], ['b', 'c']] [0 1]
        """
        from torch_estimator.data.sources.tfrecord import tfrecord_source

        source = tfrecord_source(
            files, schema=schema, sequence_schema=sequence_schema, label=label, ignore_errors=ignore_errors
        )
        return cls(source)._labelled(label)

    @classmethod
    def from_arrays(cls, features: Any, labels: Any = None) -> Dataset:
        """Read rows from arrays in memory. The arrays are copied only if their format requires it.

        A missing number in a dict of columns is allowed if the model's column has a `default_value`, or if only
        categorical columns read it. As in files, it then gets the default or has no id.

        Args:
            features: One column, or a dict or tuple of columns: numpy, torch, Arrow or lists, rows first. An Arrow
                table or a pandas DataFrame is a dict of its columns, and a torch TensorDataset is features and labels.
            labels: One column, or a dict or tuple of columns, or None.

        Raises:
            InvalidValueError: Columns differ in length, or there are no rows.
            DataError: A number is missing.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3]}, labels=[0, 1, 0])
        >>> [features["x"].tolist() for features, labels in data.batch(2)]
        [[1, 2], [3]]
        """
        return cls(memory_source(features, labels))

    @classmethod
    def from_pandas(cls, frame: Any, label: Any = None) -> Dataset:
        """Read rows from a pandas DataFrame. The index of the DataFrame is not read.

        Args:
            frame: The features.
            label: Name of the column to use as label, or several (see `label`); or the labels themselves, with as many
                rows as the frame: an array or Series, or a dict or DataFrame of them. A Series or DataFrame must have
                the index of the frame.

        Raises:
            InvalidTypeError: `frame` is not a DataFrame.
            InvalidValueError: The labels have another number of rows, or are from pandas and have another index.

        >>> import pandas as pd
        >>> frame = pd.DataFrame({"age": [31, 52], "rich": ["no", "yes"]})
        >>> [labels.tolist() for features, labels in te.data.Dataset.from_pandas(frame, "rich").batch(2)]
        [['no', 'yes']]
        """
        columns = frame_columns(frame)
        if isinstance(label, int | tuple) and label in list(frame.columns):
            label = str(label)
        if label is None or _names_columns(label, columns):
            return cls(memory_source(columns))._labelled(label)
        for values in label.values() if isinstance(label, Mapping) else [label]:
            if (is_frame(values) or is_series(values)) and len(values) == len(frame):
                check_same_index(frame, values, "from_pandas's frame and label")
        return cls(memory_source(columns, _label_values(label)))

    @classmethod
    def from_iterable(cls, iterable: Iterable[Any] | Callable[[], Iterable[Any]]) -> Dataset:
        """Read batches that a Python iterable yields: features, or pairs (features, labels).

        Features in a pandas DataFrame are a dict of its columns. A resumed run skips the batches that were used, so the
        iterable must yield the same batches again. A DataLoader does so, even with ``shuffle=True`` or with its own
        generator. If the iterable draws random numbers from numpy or from Python's `random`, seed these yourself.

        Args:
            iterable: An iterable, such as a list of batches or a torch DataLoader, or a function that returns one. The
                function is called for every pass.

        Raises:
            InvalidTypeError: The argument is neither an iterable nor a function.

        >>> data = te.data.Dataset.from_iterable(lambda: ({"x": [i, i]} for i in range(2)))
        >>> [features["x"].tolist() for features in data.repeat(2)]
        [[0, 0], [1, 1], [0, 0], [1, 1]]
        """
        return cls(IterableSource(iterable=iterable), _batched=True)

    @classmethod
    def from_generator(
        cls, generator: Callable[..., Iterable[Any]] | Iterable[Any], args: Sequence[Any] = ()
    ) -> Dataset:
        """Read rows that a Python generator yields: features of one row, or pairs (features, labels).

        The rows are put together 128 at a time, so the generator is ahead of the batches. It is Python for each row;
        arrays, files or `from_iterable` with whole batches are many times faster. A resumed run calls the generator
        anew and skips the rows that were used, so it must yield the same rows again.

        Args:
            generator: Function that returns an iterable of rows, called for every pass; or an iterable, such as a
                list. A row is a number, a string, an array or a dict of these. Python lists make a column of lists,
                which may differ in length.
            args: Arguments of the function.

        Raises:
            InvalidTypeError: `generator` is neither a function nor an iterable.

        >>> def rows(count):
        ...     for number in range(count):
        ...         yield {"x": number, "word": "ab"[number % 2]}, number > 1
        >>> for features, labels in te.data.Dataset.from_generator(rows, args=(3,)).batch(2):
        ...     print(features["x"], features["word"], labels)
        [0 1] ['a' 'b'] [False False]
        [2] ['a'] [ True]
        """
        return cls.from_iterable(batches_of_rows(generator, tuple(args))).unbatch()

    @classmethod
    def from_arrow(cls, table: Any, label: LabelColumns | None = None) -> Dataset:
        """Read rows from a table in Arrow's memory format, which is shared and not copied where the types allow it.

        Args:
            table: A `pyarrow.Table`, record batch or record batch reader, or any object that gives Arrow data
                (``__arrow_c_stream__`` or ``__arrow_c_array__``), such as a Polars DataFrame or a DuckDB relation; or a
                Dataset of Hugging Face's datasets. All rows are taken into memory. For files that do not fit, use
                `from_parquet`.
            label: Column to use as label, or several; see `label`.

        Raises:
            InvalidTypeError: `table` gives no Arrow data.
            InvalidValueError: Two columns have one name, or there are no rows.

        >>> import pyarrow as pa
        >>> table = pa.table({"age": [31, 52], "job": ["clerk", None], "rich": [0, 1]})
        >>> for features, labels in te.data.Dataset.from_arrow(table, label="rich").batch(2):
        ...     print(features["age"], features["job"], labels)
        [31 52] ['clerk' ''] [0 1]
        """
        return cls(memory_source(arrow_table(table)))._labelled(label)

    @classmethod
    def from_text(cls, files: Files, column: str = "line") -> Dataset:
        """Read the lines of text files as one column of strings, as `tf.data.TextLineDataset` does.

        A line ends at a newline, which is left out, and so is a carriage return before it. Empty lines are rows. A
        `map` after it makes columns of the lines, many at a time.

        Args:
            files: A path, glob or fsspec URL, or several. The files of a glob are read in sorted order. Files whose
                names end in ``.gz`` are decompressed.
            column: Name of the column.

        Raises:
            InvalidTypeError: An argument has the wrong type.

        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "pairs.txt")
        >>> _ = path.write_text("1 a\\n2 b\\n")
        >>> def parse(features):
        ...     numbers, words = zip(*(line.split() for line in features["line"]))
        ...     return {"word": np.array(words)}, np.array(numbers, int)
        >>> for features, labels in te.data.Dataset.from_text(path).map(parse).batch(2):
        ...     print(features["word"], labels)
        ['a' 'b'] [1 2]
        """
        from torch_estimator.data.sources.text import text_source

        return cls(text_source(files, column))

    @classmethod
    def from_source(cls, source: Source, label: LabelColumns | None = None) -> Dataset:
        """Read rows from a source that the user has written.

        Args:
            source: Object with a method ``open(request)`` that returns a `Reader`; see `torch_estimator.data.Source`.
                It needs no registration.
            label: Column to use as label, or several; see `label`.

        >>> class Squares(te.data.Reader):
        ...     ranges, rows_per_range, bytes_per_row = 5, 1, 8
        ...
        ...     def read(self, ranges):
        ...         return te.data.Chunk({"x": ranges**2}, None, len(ranges), lambda row: f"square of {ranges[row]}")
        ...
        ...     def signature(self):
        ...         return {"source": "squares", "count": self.ranges}
        >>> class SquareSource:
        ...     def open(self, request):
        ...         return Squares()
        >>> [features["x"].tolist() for features in te.data.Dataset.from_source(SquareSource()).batch(3)]
        [[0, 1, 4], [9, 16]]
        """
        return cls(source)._labelled(label)

    @classmethod
    def zip(cls, datasets: Any) -> Dataset:
        """Put the rows of several Datasets side by side. It ends with the shortest.

        Args:
            datasets: A pair ``(features, labels)``, or features alone. Each is a Dataset, a dict of Datasets, which
                names their columns, or a list of Datasets with named columns, which puts these together. With features
                alone, the labels are those of the one Dataset that has labels. `batch` comes after `zip`.

        Raises:
            InvalidTypeError: `datasets` has another structure.
            InvalidValueError: A Dataset has batches already.

        >>> x = te.data.Dataset.from_arrays({"x": [1, 2, 3]})
        >>> more, y = te.data.Dataset.from_arrays({"z": [7, 8, 9]}), te.data.Dataset.from_arrays([0, 1, 0])
        >>> for features, labels in te.data.Dataset.zip(([x, more], y)).batch(3):
        ...     print(features["x"], features["z"], labels)
        [1 2 3] [7 8 9] [0 1 0]
        """
        if isinstance(datasets, tuple) and len(datasets) != 2:
            raise InvalidTypeError(
                "zip takes a pair (features, labels), or a dict or list of Datasets, but got a tuple of "
                f"{len(datasets)}."
            )
        features, labels = datasets if isinstance(datasets, tuple) else (datasets, None)
        found: list[Dataset] = []
        structures = [None if one is None else _indices(one, found) for one in (features, labels)]
        _check_rows("zip", found)
        user = any(one.runs_user_code for one in found)
        return cls(Zipped(datasets=found, runs_user_code=user, features=structures[0], labels=structures[1]))

    @classmethod
    def sample_from_datasets(
        cls,
        datasets: Sequence[Dataset],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
    ) -> Dataset:
        """Mix the rows of several Datasets at random. The order of the rows of each stays.

        Args:
            datasets: Datasets with the same columns. `batch` comes after this.
            weights: Probability of each Dataset, not negative; they are divided by their sum. None for equal ones.
            seed: Seed of the choices, which differ by epoch. None draws one from torch's global generator, and saves it
                with the position.
            stop_on_empty_dataset: Whether to end when a row of a Dataset is due that has ended. Otherwise the others
                go on without it.

        Raises:
            InvalidValueError: Weights do not fit, or a Dataset has batches already.

        >>> often, seldom = (te.data.Dataset.from_arrays({"x": [number] * 1000}) for number in (0, 1))
        >>> mixed = te.data.Dataset.sample_from_datasets([often, seldom], weights=[0.9, 0.1], seed=1)
        >>> features = next(iter(mixed.batch(1000)))
        >>> bool(0.07 < features["x"].mean() < 0.13)
        True
        """
        datasets = _check_rows("sample_from_datasets", datasets)
        shares = tuple(float(one) for one in (weights if weights is not None else [1.0] * len(datasets)))
        if len(shares) != len(datasets) or not all(0 <= one < float("inf") for one in shares) or not sum(shares):
            raise InvalidValueError(
                f"weights must be {len(datasets)} numbers that are not negative, one for each Dataset and not all 0, "
                f"but got {weights!r}."
            )
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
            raise InvalidValueError(f"seed must be a whole number from 0, but got {seed!r}.")
        return cls(
            Mixed(
                datasets=datasets,
                runs_user_code=any(one.runs_user_code for one in datasets),
                weights=shares,
                seed=_int(seed),
                drawn_seed=draw_seed() if seed is None else 0,
                stop_on_empty=bool(stop_on_empty_dataset),
            )
        )

    @classmethod
    def interleave(cls, datasets: Sequence[Dataset], block_length: int = 1) -> Dataset:
        """Take rows of several Datasets in turn. One that has ended is left out of the turn.

        The files of a glob need no `interleave`: `shuffle` as the first operation mixes them.

        Args:
            datasets: Datasets with the same columns. `batch` comes after this.
            block_length: Rows to take of each at a time.

        Raises:
            InvalidValueError: `block_length` is below 1, or a Dataset has batches already.

        >>> first, second = te.data.Dataset.from_arrays({"x": [1, 2, 3]}), te.data.Dataset.from_arrays({"x": [10, 20]})
        >>> [features["x"].tolist() for features in te.data.Dataset.interleave([first, second]).batch(5)]
        [[1, 10, 2, 20, 3]]
        """
        datasets = _check_rows("interleave", datasets)
        check_count("interleave's block_length", block_length, at_least=1)
        user = any(one.runs_user_code for one in datasets)
        return cls(Mixed(datasets=datasets, runs_user_code=user, block_length=int(block_length)))

    def concatenate(self, *others: Dataset) -> Dataset:
        """Append the rows of other Datasets with the same columns.

        Args:
            others: The other Datasets. All have batches, or none.

        Raises:
            InvalidTypeError: One is no Dataset.
            InvalidValueError: Some have batches and others rows.

        >>> first, second = te.data.Dataset.from_arrays({"x": [1, 2]}), te.data.Dataset.from_arrays({"x": [3]})
        >>> [features["x"].tolist() for features in first.concatenate(second).batch(2)]
        [[1, 2], [3]]
        """
        datasets = (self, *others)
        _check_datasets("concatenate", datasets)
        if len({one._batched for one in datasets}) > 1:
            raise InvalidValueError("concatenate takes Datasets of rows, or of batches, but these are some of each.")
        user = any(one.runs_user_code for one in datasets)
        return Dataset(Concatenated(datasets=datasets, runs_user_code=user), _batched=self._batched)

    def label(self, column: LabelColumns, mapping: Mapping[Any, Any] | None = None) -> Dataset:
        """Move one or several columns from the features to the labels.

        Args:
            column: Name of the column. A list of several makes the labels a dict by column, which a `MultiHead` reads.
                A dict from labels to columns gives the labels other names.
            mapping: Raw value -> number. A value without an entry raises a `DataError` that names the line. With
                several columns, a dict of such mappings by label, for those labels that need one.

        Raises:
            InvalidValueError: The Dataset has a label already, or `column` names a column twice.
            InvalidTypeError: `column` is not a name, a list of names or a dict of names, or `mapping` is not a dict.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2], "bought": ["no", "yes"], "paid": [0.0, 9.5]})
        >>> labelled = data.label({"buys": "bought", "pays": "paid"}, {"buys": {"no": 0, "yes": 1}})
        >>> [(features["x"].tolist(), sorted(labels)) for features, labels in labelled.batch(2)]
        [([1, 2], ['buys', 'pays'])]
        """
        label = Label(column=column, mapping=mapping)
        if any(isinstance(operation, Label) for operation in self._operations):
            raise InvalidValueError(f"{label} cannot be the label: the Dataset has one already.")
        return self._then(label)

    def shuffle(self, buffer: int, seed: int | None = None, reshuffle_each_iteration: bool | None = None) -> Dataset:
        """Shuffle rows. If `repeat` follows, every epoch has another order.

        Args:
            buffer: Minimum number of rows to shuffle at once; 1 does not shuffle. Other numbers below about 65,536 are
                raised to it. The rows are read from a random selection of small pieces of the files. Data with fewer
                rows is shuffled completely.
            seed: Seed of the order. None draws a seed from torch's global generator during this call and saves it with
                the position, so that a resumed run continues in the same order.
            reshuffle_each_iteration: As in tf.data; None and True are what happens anyway, and False is refused.

        Raises:
            InvalidValueError: `batch` came before, or an argument is out of range.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3, 4]}).shuffle(4, seed=1).repeat(2).batch(4)
        >>> [sorted(features["x"].tolist()) for features in data]
        [[1, 2, 3, 4], [1, 2, 3, 4]]
        """
        if self._batched and any(isinstance(operation, Batching | Bucketing) for operation in self._operations):
            raise InvalidValueError("shuffle mixes rows, so it must come before batch.")
        if reshuffle_each_iteration not in (None, True):
            raise InvalidValueError(
                f"reshuffle_each_iteration={reshuffle_each_iteration!r} would keep one order for all epochs, but "
                "shuffle has a new order in each; call cache() after shuffle to keep the first one."
            )
        shuffle = Shuffle(buffer=_int(buffer), seed=_int(seed), drawn_seed=draw_seed() if seed is None else 0)
        return replace(self._then(shuffle), _batched=self._batched and buffer == 1)

    def repeat(self, count: int | None = None) -> Dataset:
        """Go through the data `count` times; None or -1 repeats without end.

        If `batch` follows `repeat`, a batch may have rows of two epochs.

        Args:
            count: Number of passes; None or -1 for no end.

        Raises:
            InvalidValueError: `count` is less than -1.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3]})
        >>> [features["x"].tolist() for features in data.repeat(2).batch(2)]
        [[1, 2], [3, 1], [2, 3]]
        >>> [features["x"].tolist() for features in data.batch(2).repeat(2)]
        [[1, 2], [3], [1, 2], [3]]
        """
        return self._then(Repeat(count=None if count == -1 else _int(count)))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Keep every ``num_shards``-th row, from row `index` on. After `batch`, keep every ``num_shards``-th batch.

        The processes of a cluster call `shard` before `shuffle`, so that no two of them read the same row.

        Args:
            num_shards: Number of parts into which the rows (or batches) are divided.
            index: Number of the part to keep, from 0.

        Raises:
            InvalidValueError: `index` is not from 0 to ``num_shards - 1``.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3, 4]})
        >>> [features["x"].tolist() for features in data.shard(2, 1).batch(2)]
        [[2, 4]]
        >>> [features["x"].tolist() for features in data.batch(2).shard(2, 1)]
        [[3, 4]]
        """
        return self._then(Shard(num_shards=_int(num_shards), index=_int(index), of_batches=self._batched))

    def batch(
        self,
        size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Make batches of `size` rows. If `drop_remainder` is true, a smaller last batch is dropped.

        Lists that differ in length are padded with zeros (or '') to the longest of the batch; see `padded_batch`.
        A second `batch` cuts the same rows into batches of another size; tf.data would make batches of batches.

        Args:
            size: Rows of a batch, at least 1.
            drop_remainder: Whether to leave out a smaller last batch.
            num_parallel_calls: As in tf.data, without an effect.
            deterministic: As in tf.data, without an effect: the order is always the same.

        Raises:
            InvalidValueError: `size` is below 1.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3, 4, 5]})
        >>> [features["x"].tolist() for features in data.batch(2)]
        [[1, 2], [3, 4], [5]]
        >>> [features["x"].tolist() for features in data.batch(2, drop_remainder=True)]
        [[1, 2], [3, 4]]
        """
        return replace(self._then(Batching(size=_int(size), drop_remainder=drop_remainder)), _batched=True)

    def padded_batch(self, size: int, padding_values: Any = None, drop_remainder: bool = False) -> Dataset:
        """Make batches, pad their lists to one length, and add the original lengths as ``<column>_length``.

        Args:
            size: Rows of a batch.
            padding_values: Padding of short lists: a number or a string, or a dict of them by column. None means 0,
                False or ''.
            drop_remainder: Whether to leave out a smaller last batch.

        Raises:
            InvalidValueError: `size` is below 1.

        >>> import pyarrow as pa
        >>> data = te.data.Dataset.from_arrays({"words": pa.array([[7, 8, 9], [5]])}).padded_batch(2, padding_values=-1)
        >>> for features in data:
        ...     print(features["words"].tolist(), features["words_length"])
        [[7, 8, 9], [5, -1, -1]] [3 1]
        """
        padding = Padding(values=padding_values, lengths=True)
        return replace(
            self._then(Batching(size=_int(size), drop_remainder=drop_remainder, padding=padding)), _batched=True
        )

    def bucket_by_sequence_length(
        self,
        column: str,
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Make batches of rows whose lists have similar lengths, as tf.data does.

        Such batches need less padding, and batches of short lists may have more rows. Batches are returned in the order
        in which they become full, with rows in the order of the data. Remaining rows follow at the end, bucket by
        bucket, the shortest first. Shuffle before this operation. Lists are padded to the longest of the batch, and
        their lengths are added as ``<column>_length`` (int64 ``[rows]``).

        Args:
            column: A column of lists, whose lengths determine the bucket of each row.
            bucket_boundaries: Ascending lengths. A bucket holds the lengths from one boundary up to the next, without
                the latter.
            bucket_batch_sizes: Rows of a batch, by bucket. There is one more bucket than there are boundaries.
            padding_values: As in `padded_batch`.
            pad_to_bucket_boundary: Whether to pad all lists to the bucket's upper boundary minus one, so that batches
                have few different shapes. A list as long as the last boundary is then an error.
            drop_remainder: Whether to leave out smaller last batches.

        Raises:
            InvalidValueError: Boundaries are not ascending, or the number of sizes does not fit them.

        >>> import pyarrow as pa
        >>> data = te.data.Dataset.from_arrays({"words": pa.array([[1], [2, 3, 4], [5], [6, 7, 8]])})
        >>> for features in data.bucket_by_sequence_length("words", [2], [2, 2]):
        ...     print(features["words"].tolist())
        [[1], [5]]
        [[2, 3, 4], [6, 7, 8]]
        """
        buckets = Bucketing(
            column=column,
            boundaries=tuple(bucket_boundaries),
            batch_sizes=tuple(bucket_batch_sizes),
            drop_remainder=drop_remainder,
            to_boundary=pad_to_bucket_boundary,
            padding=Padding(values=padding_values, lengths=True),
        )
        if self._batched and any(isinstance(operation, Batching | Bucketing) for operation in self._operations):
            raise InvalidValueError("bucket_by_sequence_length makes batches of rows, so it must come before batch.")
        return replace(self._then(buckets), _batched=True)

    def map(
        self,
        fn: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Apply a function to every batch. If `map` comes before `batch`, the function gets many rows at once.

        Args:
            fn: Called with features, or features and labels if there are any, as numpy arrays (strings as object
                arrays), rows first. Returns features and labels in the same form; if there were no labels, the function
                may return a pair (features, labels). After `batch` it may return fewer or more rows, and a batch
                without rows is skipped. Before `batch` it must return as many rows as it gets, and a column of lists is
                an object array with one array per row.
            num_parallel_calls: As in tf.data, without an effect: `fn` computes many rows in one call.
            deterministic: As in tf.data, without an effect: the order is always the same.

        Raises:
            InvalidTypeError: `fn` is not callable.
            DataError: While iterating: the function returned something that cannot be a column.
            InvalidValueError: While iterating: before `batch`, the function returned another number of rows.

        >>> def add_square(features):
        ...     return {**features, "square": features["x"] ** 2}
        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3]}).map(add_square).batch(3)
        >>> [features["square"].tolist() for features in data]
        [[1, 4, 9]]
        """
        return self._then(Map(function=fn, of_batches=self._batched))

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """Keep the rows for which a function returns True.

        Args:
            predicate: Called with features, or features and labels if there are any, as numpy arrays of many rows, as
                the function of `map` is. Returns one boolean for each row, ``[rows]`` or ``[rows, 1]``. After `batch`
                it gets single batches, and may also return one boolean for the whole batch.

        Raises:
            InvalidTypeError: `predicate` is not callable.
            InvalidValueError: While iterating: the function returned something else.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3, 4, 5]}).filter(lambda features: features["x"] % 2 == 1)
        >>> [features["x"].tolist() for features in data.batch(2)]
        [[1, 3], [5]]
        """
        return self._then(Filter(predicate=predicate, of_batches=self._batched))

    def unbatch(self) -> Dataset:
        """Return a Dataset of the rows of the batches. The operations that follow then work on rows.

        A `batch` after `batch` cuts the same rows anew without it. It lets `shuffle`, `filter`, `take` and others work
        on the rows of batches that a DataLoader or another iterable gives.

        >>> data = te.data.Dataset.from_iterable([{"x": np.arange(4)}, {"x": np.arange(4, 6)}])
        >>> [features["x"].tolist() for features in data.unbatch().skip(1).batch(3)]
        [[1, 2, 3], [4, 5]]
        """
        return replace(self._then(Unbatch()), _batched=False)

    def cache(self, filename: str | os.PathLike[str] | None = None) -> Dataset:
        """Store the results of the preceding operations in the first epoch, and reuse them in later epochs.

        With a cache before `shuffle`, every epoch has a new order; with a cache after `shuffle`, all epochs have the
        same order. Random choices in a `map` before the cache are made once.

        Args:
            filename: A file on this machine, in the Arrow IPC format, for data that does not fit into memory or that
                many runs read. The file is written when all rows were read. It is replaced if the files, the columns
                that are read or the preceding operations change; for a `map`, its code and the values that it uses are
                compared. None keeps rows in memory, after the model's transform of raw columns. All iterators of this
                Dataset, and of Datasets made from it, share these rows if they are for the same model.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3, 4]}).cache().shuffle(4, seed=1).repeat(2).batch(2)
        >>> len(list(data))
        4
        """
        return self._then(Cache(path=os.fspath(filename) if isinstance(filename, os.PathLike) else filename))

    def class_weight(self, weights: Mapping[Any, float], weight_column: str = "weight") -> Dataset:
        """Add a column with the weight of each row's label, for a head that reads this `weight_column`.

        A column of weights that exists already is multiplied. Labels that are not in `weights` have the weight 1, so
        ``class_weight({})`` adds the column that the head needs to data for evaluation.

        Args:
            weights: Label -> weight. Labels are those after the mapping of `label`.
            weight_column: Name of the column (float32).

        Raises:
            InvalidTypeError: `weights` is not a dict.
            InvalidValueError: A weight is negative or not finite.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3]}, ["no", "yes", "no"])
        >>> [features["weight"].tolist() for features, _ in data.class_weight({"yes": 3.0}).batch(3)]
        [[1.0, 3.0, 1.0]]
        """
        return self._then(ClassWeight(weights=weights, column=weight_column))

    def prefetch(self, n: int) -> Dataset:
        """Read batches ahead in a thread, while the model computes. With ``n=0``, no batches are read ahead.

        `n` batches are read ahead if a user's function or iterable makes them, else two blocks of consecutive batches.
        A torch DataLoader is not read ahead; use its ``num_workers``.

        Args:
            n: Number of batches, 0 for none. `AUTOTUNE` (-1, as in tf.data) is 2.

        Raises:
            InvalidValueError: `n` is less than -1.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3]}).batch(2).prefetch(1)
        >>> [features["x"].tolist() for features in data]
        [[1, 2], [3]]
        """
        return self._then(Prefetch(count=2 if n == AUTOTUNE else _int(n)))

    def skip(self, rows: int) -> Dataset:
        """Leave out the first `rows` rows. After `batch`, leave out the first `rows` batches.

        Args:
            rows: Number of rows, or of batches after `batch`.

        Raises:
            InvalidValueError: `rows` is negative.

        >>> [features["x"].tolist() for features in te.data.Dataset.from_arrays({"x": [1, 2, 3]}).skip(1).batch(2)]
        [[2, 3]]
        """
        return self._then(Skip(count=_int(rows), of_batches=self._batched))

    def take(self, rows: int) -> Dataset:
        """Keep only the first `rows` rows. After `batch`, keep only the first `rows` batches.

        Args:
            rows: Number of rows, or of batches after `batch`.

        Raises:
            InvalidValueError: `rows` is negative.

        >>> [features["x"].tolist() for features in te.data.Dataset.from_arrays({"x": [1, 2, 3]}).take(1).batch(2)]
        [[1]]
        """
        return self._then(Take(count=_int(rows), of_batches=self._batched))

    def divided(self, parts: int, index: int) -> Dataset:
        """Return a Dataset with every ``parts``-th batch, from batch `index` on, to share batches among processes.

        A `shard` is inserted before the trailing operations that work on single batches, so that these see only the
        batches that are kept. A Dataset without batches is returned unchanged.
        """
        if not self._batched:
            return self
        end = len(self._operations)
        while end and _is_for_each_batch(self._operations[end - 1]):
            end -= 1
        shard = Shard(num_shards=parts, index=index, of_batches=True)
        return replace(self, _operations=(*self._operations[:end], shard, *self._operations[end:]))

    @property
    def runs_user_code(self) -> bool:
        """Whether a user's function or iterable produces or changes the batches."""
        source = self._source
        calls = isinstance(source, IterableSource) or (isinstance(source, CombinedSource) and source.runs_user_code)
        return calls or any(isinstance(one, CALLS) for one in self._operations)

    def iterator(
        self, transform: Transform | None = None, convert: Callable[[Batch], Any] | None = None
    ) -> DatasetIterator:
        """Return an iterator over the batches. Its position can be saved and restored.

        Args:
            transform: A model's preprocessing of raw columns. Without one, batches hold raw columns: numpy arrays, and
                Arrow arrays of strings.
            convert: Function that is applied to batches, in the thread that prefetches if there is one. It gets several
                consecutive batches as one and must treat rows independently. Its result, tensors or arrays in dicts and
                tuples, is cut into batches again.

        Raises:
            DataError: Files cannot be found or read, or columns are missing.
            InvalidValueError: The Dataset has no batch size.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3, 4]}).batch(2)
        >>> with data.iterator() as batches:
        ...     first = next(batches)
        ...     position = batches.state()
        >>> with data.iterator() as batches:
        ...     batches.restore(position)
        ...     next(batches).features["x"]
        array([3, 4])
        """
        if not self._batched:
            raise InvalidValueError("the Dataset has no batch size; call batch(size) on it.")
        return make_iterator(self._source, self._operations, transform, convert)

    def head(self, rows: int = 5) -> Any:
        """Return the first rows as numpy arrays: a pair (features, labels), or only features if there are no labels.

        It is for a look at the data, and reads no more of it than one window or batch.

        Args:
            rows: Most rows to return.

        Raises:
            InvalidValueError: `rows` is below 1, or the Dataset has no rows.

        >>> te.data.Dataset.from_arrays({"x": [1, 2, 3], "word": ["a", "b", "c"]}).head(2)
        {'x': array([1, 2]), 'word': array(['a', 'b'], dtype=object)}
        """
        check_count("head's number of rows", rows, at_least=1)
        batches = self if self._batched else self.batch(int(rows))
        with batches.iterator(AS_NUMPY) as iterator:
            first = next(iterator, None)
        if first is None:
            raise InvalidValueError("the Dataset has no rows.")
        features, labels = tree.slice_rows(tuple(first), 0, rows)
        return features if labels is None else (features, labels)

    def describe(self) -> Any:
        """Return a pandas DataFrame with statistics of each column of features and labels, in one pass over all rows.

        Its columns are the type, the number of values and of missing ones ('' or NaN), of different values (up to
        10,000, else NA), the least, greatest and mean number, and the most frequent strings. Of columns of lists the
        lengths are described.

        Raises:
            DataError: A row cannot be read, such as one with a missing integer.
            InvalidValueError: The rows are repeated without end.

        >>> data = te.data.Dataset.from_arrays({"age": [31.0, 52.0, 52.0], "job": ["clerk", "", "clerk"]})
        >>> print(data.describe()[["type", "count", "missing", "unique", "mean"]])
                type  count  missing  unique  mean
        age  float64      3        0       2  45.0
        job   string      2        1       1   NaN
        """
        from torch_estimator.data.describe import ListLengths, describe

        if self.is_endless:
            raise InvalidValueError("describe reads all rows, so it must come before repeat(), or after a take.")
        batches = self if self._batched else self.batch(8192)
        with batches.iterator(ListLengths()) as iterator:
            return describe(iterator)

    @property
    def is_endless(self) -> bool:
        """Whether the rows are repeated without end."""
        endless = False
        for operation in self._operations:
            endless = (endless and not isinstance(operation, Take)) or operation == Repeat(count=None)
        return endless

    def __len__(self) -> int:
        """Return the number of rows, or of batches after `batch`, of data in memory.

        Raises:
            TypeError: The number is not known before the rows are read, as of files and after `filter`; or the rows are
                repeated without end.

        >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3, 4, 5]})
        >>> len(data), len(data.batch(2)), len(data.repeat(2).batch(2, drop_remainder=True))
        (5, 3, 5)
        """
        if self.is_endless:
            raise InvalidTypeError(f"{self!r} has no length, because its rows are repeated without end.")
        size: float | None = self._source.rows if isinstance(self._source, MemorySource) else None
        for operation in self._operations:
            size = None if size is None else _count_after(operation, size)
        if size is None:
            raise InvalidTypeError(f"the length of {self!r} is not known before it is read; count in a loop over it.")
        return int(size)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        steps = [described_source(self._source), *(described_operation(one) for one in self._operations)]
        return f"<Dataset: {' | '.join(steps)}>"

    def __iter__(self) -> Iterator[Any]:
        """Yield batches as numpy arrays: pairs (features, labels), or only features if there are no labels."""
        with self.iterator(AS_NUMPY) as batches:
            for features, labels in batches:
                yield features if labels is None else (features, labels)

    def _labelled(self, label: LabelColumns | None) -> Dataset:
        return self if label is None else self.label(label)

    def _then(self, operation: Operation) -> Dataset:
        return replace(self, _operations=(*self._operations, operation))


def check_class_weights(dataset: Dataset, head: Any) -> None:
    """Check that a model's head can use the weights of `Dataset.class_weight`; see `ClassWeight.check_head`."""
    for operation in dataset._operations:
        if isinstance(operation, ClassWeight):
            operation.check_head(head)


def _count_after(operation: Operation, size: float) -> float | None:
    """Return the number of rows or batches after an operation on `size` of them; None if that is not known."""
    match operation:
        case Batching(size=rows, drop_remainder=drop):
            return size // rows if drop else -(-size // rows)
        case Repeat(count=count):
            return size * (math.inf if count is None else count)
        case Skip(count=count):
            return max(0, size - count)
        case Take(count=count):
            return min(size, count)
        case Shard(num_shards=shards, index=index):
            return max(0, -(-(size - index) // shards))
        case Shuffle() | Cache() | Prefetch() | Map() | Label() | ClassWeight():
            return size
    return None


def _check_datasets(method: str, datasets: Sequence[Any]) -> None:
    for one in datasets:
        if not isinstance(one, Dataset):
            raise InvalidTypeError(f"{method} takes Datasets, but got {one!r}.")


def _check_rows(method: str, datasets: Sequence[Any]) -> list[Dataset]:
    """Check that several Datasets give rows, and return them."""
    if isinstance(datasets, Dataset) or not isinstance(datasets, Sequence) or not datasets:
        raise InvalidTypeError(f"{method} takes a list of Datasets, but got {datasets!r}.")
    _check_datasets(method, datasets)
    if any(one._batched for one in datasets):
        raise InvalidValueError(
            f"{method} takes Datasets of rows, but one has batches; call batch after it, or unbatch."
        )
    return list(datasets)


def _indices(structure: Any, found: list[Dataset]) -> Any:
    """Return a structure of Datasets with numbers in their place; append the Datasets to `found`."""
    if isinstance(structure, Mapping):
        return {name: _indices(one, found) for name, one in structure.items()}
    if isinstance(structure, list | tuple):
        return type(structure)(_indices(one, found) for one in structure)
    _check_datasets("zip", [structure])
    found.append(structure)
    return len(found) - 1


def _int(value: Any) -> Any:
    """Convert a numpy integer to `int`, which JSON can represent. Return any other value unchanged."""
    return int(value) if isinstance(value, np.integer) else value


def _is_for_each_batch(operation: Operation) -> bool:
    return isinstance(operation, Prefetch) or (isinstance(operation, CALLS) and operation.of_batches)


def _names_columns(label: Any, columns: Mapping[str, Any]) -> bool:
    """Return whether the argument `label` of `from_pandas` holds names of columns instead of the labels."""
    if isinstance(label, Mapping):
        return all(isinstance(name, str) for name in label.values())
    # A list of strings may hold names or labels. Take it as names only if every string is the name of a column.
    return isinstance(label, str) or (
        isinstance(label, list | tuple) and all(isinstance(name, str) and name in columns for name in label)
    )


def _label_values(label: Any) -> Any:
    if is_frame(label):
        return frame_columns(label)
    if isinstance(label, Mapping):
        return {name: _label_values(values) for name, values in label.items()}
    return series_column(label, "label") if is_series(label) else label
