"""The Dataset: where rows come from and what is done to them on their way into batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator.data.batching import Batching
from torch_estimator.data.bucketing import Bucketing
from torch_estimator.data.cache import Cache
from torch_estimator.data.class_weight import ClassWeight
from torch_estimator.data.file_sources import csv_source, json_source, parquet_source
from torch_estimator.data.frames import frame_columns, is_frame, is_series, series_column
from torch_estimator.data.iterable import IterableSource
from torch_estimator.data.iterator import Batch, DatasetIterator
from torch_estimator.data.label import Label, LabelColumns
from torch_estimator.data.mapping import Map
from torch_estimator.data.memory import memory_source
from torch_estimator.data.padding import Padding
from torch_estimator.data.paths import Files
from torch_estimator.data.permutation import draw_seed
from torch_estimator.data.plan import Operation, make_iterator
from torch_estimator.data.prefetch import Prefetch
from torch_estimator.data.repeat import Repeat
from torch_estimator.data.shuffle import Shuffle
from torch_estimator.data.source import Source
from torch_estimator.data.take_skip_shard import Shard, Skip, Take
from torch_estimator.data.transform import AS_NUMPY, Transform
from torch_estimator.errors import InvalidValueError


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Rows of features and labels. Every method returns a new Dataset; nothing is read before iterating.

    >>> data = Dataset.from_arrays({"x": [1, 2, 3, 4, 5]}, [0, 1, 0, 1, 0])
    >>> for features, labels in data.repeat(2).batch(4):
    ...     print(features["x"], labels)
    [1 2 3 4] [0 1 0 1]
    [5 1 2 3] [0 0 1 0]
    [4 5] [1 0]
    """

    _source: Source | IterableSource
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
        delimiter: str = ",",
        quote_char: str | None = '"',
    ) -> Dataset:
        """Reads CSV files, one record a line (a field cannot hold a newline); blank lines are skipped.

        Numbers must be finite: ``nan`` and ``inf`` are errors, except in a column whose default is NaN.

        Args:
            files: A path, glob or fsspec URL, or several; those of a glob in sorted order. ``.gz`` is decompressed.
            column_names: Names of the columns; None takes them from the header.
            header: Whether the first line of each file is a header; None means that it is where there are no
                ``column_names``.
            column_types: Type by column (``"string"``, ``"float32"``, ``"int64"``, ...), or a list of all. A column
                without one has the type that the model's feature columns want, else that of its default, else int64,
                float32, bool or strings, as its first rows look.
            defaults: What a missing value becomes, by column, or a list of all in the order of the columns read
                (None where a value is required; one-element lists as in tf.io.decode_csv are taken, too). Strings
                default to '', integers that only categorical columns read to -1 (no id), numbers to an error.
            select_columns: Columns to use; None for all.
            schema: Columns to use, their types and defaults, instead of ``select_columns`` and ``column_types``, such
                as ``te.feature_column.schema(columns)``; the label is read, too. ``defaults`` go before its own.
            list_separator: Character between the values of a list, where columns hold lists; an empty field is an
                empty list.
            label: Column to use as label, or several; see `label`.
            delimiter: Character between fields.
            quote_char: Character around fields that hold the delimiter, or None.

        Raises:
            InvalidValueError, InvalidTypeError: Arguments do not fit each other. What is wrong with the files is a
                `DataError` of the iterator.
        """
        source = csv_source(
            files,
            column_names=column_names,
            header=header,
            column_types=column_types,
            defaults=defaults,
            select_columns=select_columns,
            schema=schema,
            label=label,
            delimiter=delimiter,
            quote_char=quote_char,
            list_separator=list_separator,
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
    ) -> Dataset:
        """Reads Parquet files. Shuffled, they are read in whole row groups, a random choice of them at a time.

        Args:
            files: A path, glob or fsspec URL, or several.
            columns: Columns to use; None for all.
            schema: Columns to use, the types to convert them to and their defaults, instead of ``columns``, such as
                ``te.feature_column.schema(columns)``; the label is read, too. ``defaults`` go before its own.
            defaults: What a missing value becomes, by column; strings default to '', integers that only categorical
                columns read to -1 (no id), in lists, too, and numbers to an error.
            label: Column to use as label, or several; see `label`.
        """
        source = parquet_source(files, columns=columns, schema=schema, defaults=defaults, label=label)
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
    ) -> Dataset:
        """Reads files of JSON lines: one object a line, columns by name; blank lines are skipped.

        A value may be a number, a string, a boolean, or a list of them; null and a key that is not there are missing.

        Args:
            files: A path, glob or fsspec URL, or several; those of a glob in sorted order. ``.gz`` is decompressed.
            column_types: Type by column (``"string"``, ``"float32"``, ..., or an Arrow type such as a list's). A
                column without one has the type that the model's feature columns want, else that of its default, else
                what the first rows look like, as in `from_csv`.
            select_columns: Columns to use; None for those in the first rows.
            schema: Columns to use, their types and defaults, instead of both, such as
                ``te.feature_column.schema(columns)``; the label is read, too. ``defaults`` go before its own.
            defaults: What a missing value becomes, by column; strings default to '', lists to empty ones,
                integers that only categorical columns read to -1 (no id), in lists, too, and numbers to an error.
            label: Column to use as label, or several; see `label`.

        Raises:
            InvalidValueError, InvalidTypeError: Arguments do not fit each other. What is wrong with the files is a
                `DataError` of the iterator.
        """
        source = json_source(
            files,
            column_types=column_types,
            select_columns=select_columns,
            schema=schema,
            defaults=defaults,
            label=label,
        )
        return cls(source)._labelled(label)

    @classmethod
    def from_arrays(cls, features: Any, labels: Any = None) -> Dataset:
        """Uses arrays in memory, without copying them where possible.

        Args:
            features: One column, or a dict or tuple of columns: numpy, torch, Arrow or lists, rows first.
            labels: The same, or None.

        Raises:
            InvalidValueError: Columns differ in length, or there are no rows.
            DataError: A number is missing, other than an integer in a dict of columns: to a model whose categorical
                columns alone read it, that is a value without an id, as it is from files.
        """
        return cls(memory_source(features, labels))

    @classmethod
    def from_pandas(cls, frame: Any, label: Any = None) -> Dataset:
        """Uses a pandas DataFrame; its index is dropped.

        Args:
            frame: The features.
            label: Name of the column to use as labels, or several (see `label`); or labels of the same length: an
                array or Series, or a dict or DataFrame of them.
        """
        columns = frame_columns(frame)
        if label is None or _names_columns(label, columns):
            return cls(memory_source(columns))._labelled(label)
        return cls(memory_source(columns, _label_values(label)))

    @classmethod
    def from_iterable(cls, iterable: Iterable[Any] | Callable[[], Iterable[Any]]) -> Dataset:
        """Uses batches that any Python object yields: features, or pairs (features, labels).

        Args:
            iterable: An iterable, such as a list of batches or a torch DataLoader, or a function that returns one,
                called for every pass. A resumed run skips what was used, so it must yield the same again; a
                DataLoader does, also with ``shuffle=True`` or a generator of its own, but numpy's and Python's random
                numbers are the user's to seed.
        """
        return cls(IterableSource(iterable=iterable), _batched=True)

    def label(self, column: LabelColumns, mapping: Mapping[Any, Any] | None = None) -> Dataset:
        """Takes a column, or several, out of the features and makes them the labels.

        Args:
            column: Name of the column. Several in a list make the labels a dict by column, as a `MultiHead` wants it; a
                dict gives label -> column where the labels' names differ from the columns'.
            mapping: Raw value -> number. A value that is not in it is a `DataError` that names the line. With several
                columns, label -> such a mapping, for those labels that need one.

        >>> data = Dataset.from_arrays({"x": [1, 2], "bought": ["no", "yes"], "paid": [0.0, 9.5]})
        >>> labelled = data.label({"buys": "bought", "pays": "paid"}, {"buys": {"no": 0, "yes": 1}})
        >>> [(features["x"].tolist(), sorted(labels)) for features, labels in labelled.batch(2)]
        [([1, 2], ['buys', 'pays'])]
        """
        label = Label(column=column, mapping=mapping)
        if any(isinstance(operation, Label) for operation in self._operations):
            raise InvalidValueError(f"{label} cannot be the label: the Dataset has one already.")
        return self._then(label)

    def shuffle(self, buffer: int, seed: int | None = None) -> Dataset:
        """Shuffles rows, in another order in every epoch of a `repeat` that follows.

        Args:
            buffer: Rows that are mixed at least; there are never fewer than about 65,536, read from a random choice of
                small pieces of the files. Data with fewer rows is shuffled completely. 1 does not shuffle.
            seed: What the order depends on. None draws one from torch's global generator now; it is saved with the
                position, so that a resumed run goes on in the same order.
        """
        if self._batched and any(isinstance(operation, Batching | Bucketing) for operation in self._operations):
            raise InvalidValueError("shuffle mixes rows, so it must come before batch.")
        shuffle = Shuffle(buffer=_int(buffer), seed=_int(seed), drawn_seed=draw_seed() if seed is None else 0)
        return replace(self._then(shuffle), _batched=self._batched and buffer == 1)

    def repeat(self, count: int | None = None) -> Dataset:
        """Goes through the data ``count`` times; None (or -1) for ever. Before `batch`, batches straddle epochs."""
        return self._then(Repeat(count=None if count == -1 else _int(count)))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Keeps every ``num_shards``-th row from row ``index`` on (every such batch after `batch`)."""
        return self._then(Shard(num_shards=_int(num_shards), index=_int(index), of_batches=self._batched))

    def batch(self, size: int, drop_remainder: bool = False) -> Dataset:
        """Makes batches of ``size`` rows; the last may be smaller unless ``drop_remainder``.

        Lists that differ in length are padded with zeros (or ''), to the longest in the batch; see `padded_batch`.
        A second `batch` cuts the same rows anew, where tf.data makes batches of batches.
        """
        return replace(self._then(Batching(size=_int(size), drop_remainder=drop_remainder)), _batched=True)

    def padded_batch(self, size: int, padding_values: Any = None, drop_remainder: bool = False) -> Dataset:
        """Makes batches as `batch` does, and adds the lengths of the lists in each column.

        Args:
            size: Rows of a batch.
            padding_values: What short lists are filled up with: a number or a string, or a dict of them by column.
                None is 0, False or ''.
            drop_remainder: Whether a smaller last batch is left out.

        >>> import pyarrow as pa
        >>> data = Dataset.from_arrays({"words": pa.array([[7, 8, 9], [5]])}).padded_batch(2, padding_values=-1)
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
        """Makes batches of rows of similar length, as tf.data does: less padding, and more rows where they are short.

        Batches come in the order in which they become full, with their rows in the order of the data; what is left at
        the end comes from the bucket of the shortest to that of the longest. Shuffle before. Lists are padded, to the
        longest in the batch, and their lengths added as ``<column>_length`` (int64 ``[rows]``).

        Args:
            column: A column of lists, whose lengths are looked at.
            bucket_boundaries: Ascending lengths: a bucket holds those from one boundary on and below the next.
            bucket_batch_sizes: Rows of a batch, by bucket: one more than boundaries.
            padding_values: As in `padded_batch`.
            pad_to_bucket_boundary: Whether all lists are padded to the bucket's boundary less one, so that there are
                few shapes; a row beyond the last boundary is an error then.
            drop_remainder: Whether smaller last batches are left out.

        Raises:
            InvalidValueError: Boundaries are not ascending, or sizes do not fit them.
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

    def map(self, fn: Callable[..., Any]) -> Dataset:
        """Applies a function to every batch, or, before `batch`, to many rows at once.

        Args:
            fn: Called with features, or features and labels if there are any, as numpy arrays (strings as object
                arrays), rows first; returns the same. Without labels going in, it may return a pair (features,
                labels). After `batch` it may drop rows, and a batch that it leaves without rows is skipped. Before
                `batch` it must return as many rows as it gets, and lists are arrays in an object array.
        """
        return self._then(Map(function=fn, of_batches=self._batched))

    def cache(self, filename: str | os.PathLike[str] | None = None) -> Dataset:
        """Keeps what comes from the operations before it when it is first read, and does not read it again.

        In memory, what is kept serves all iterators of this Dataset (and of those made from it) with the same model.
        A cache before `shuffle` gives another order in every epoch, one after it always the same. What depends on
        chance in a `map` before it is drawn once.

        Args:
            filename: A file on this machine, in the Arrow IPC format, for data that does not fit into memory or is
                read by many runs; it is written when all was read, and written anew when the files, the columns that
                are read or the operations before it change (of a `map`, its code and the values that it uses). None
                keeps rows in memory, with the model's host half applied, so that only shuffling and batching is left.
        """
        return self._then(Cache(path=None if filename is None else os.fspath(filename)))

    def class_weight(self, weights: Mapping[Any, float], weight_column: str = "weight") -> Dataset:
        """Adds a column of example weights by label, for a head with that ``weight_column``.

        Weights that are there already are multiplied. Labels that are not in ``weights`` have the weight 1, so that
        ``class_weight({})`` gives data for evaluation the column that the head wants.

        Args:
            weights: Label, as it is in the data (after the mapping of `label`) -> weight.
            weight_column: Name of the column (float32).

        >>> data = Dataset.from_arrays({"x": [1, 2, 3]}, ["no", "yes", "no"]).class_weight({"yes": 3.0}).batch(3)
        >>> [features["weight"].tolist() for features, _ in data]
        [[1.0, 3.0, 1.0]]
        """
        return self._then(ClassWeight(weights=weights, column=weight_column))

    def prefetch(self, n: int) -> Dataset:
        """Prepares ``n`` batches ahead in a thread; where that is cheaper, the window of rows ahead instead."""
        return self._then(Prefetch(count=_int(n)))

    def skip(self, rows: int) -> Dataset:
        """Leaves out the first ``rows`` rows (batches after `batch`)."""
        return self._then(Skip(count=_int(rows), of_batches=self._batched))

    def take(self, rows: int) -> Dataset:
        """Ends after ``rows`` rows (batches after `batch`)."""
        return self._then(Take(count=_int(rows), of_batches=self._batched))

    def divided(self, parts: int, index: int) -> Dataset:
        """Every ``parts``-th batch from batch ``index`` on, as `shard` after all else; what is done to batches one by
        one is done to these only.
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
        """Whether batches come from, or go through, a function or an iterable of the user's."""
        return isinstance(self._source, IterableSource) or any(isinstance(one, Map) for one in self._operations)

    def iterator(
        self, transform: Transform | None = None, convert: Callable[[Batch], Any] | None = None
    ) -> DatasetIterator:
        """Returns an iterator whose position can be saved and restored.

        Args:
            transform: A model's host half: says which raw columns it wants, and turns them into arrays. Without one,
                batches hold raw columns: numpy arrays, and Arrow arrays of strings.
            convert: What to make of every batch, row by row, in the thread that works ahead, if there is one: it may
                be given many batches as one, and what it makes of them, tensors or arrays in dicts and tuples, is taken
                apart.

        Raises:
            DataError: Files cannot be found or read, or columns are missing.
            InvalidValueError: There is no batch size.
        """
        if not self._batched:
            raise InvalidValueError("the Dataset has no batch size; call batch(size) on it.")
        return make_iterator(self._source, self._operations, transform, convert)

    def __iter__(self) -> Iterator[Any]:
        """Yields (features, labels), or features if there are no labels: numpy arrays, strings as object arrays."""
        with self.iterator(AS_NUMPY) as batches:
            for features, labels in batches:
                yield features if labels is None else (features, labels)

    def _labelled(self, label: LabelColumns | None) -> Dataset:
        return self if label is None else self.label(label)

    def _then(self, operation: Operation) -> Dataset:
        return replace(self, _operations=(*self._operations, operation))


def _int(value: Any) -> Any:
    """Return numpy's integers as Python's, which positions hold as JSON, and anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


def _is_for_each_batch(operation: Operation) -> bool:
    return isinstance(operation, Prefetch) or (isinstance(operation, Map) and operation.of_batches)


def _names_columns(label: Any, columns: Mapping[str, Any]) -> bool:
    """Whether a label given with a frame names columns, rather than being values."""
    if isinstance(label, Mapping):
        return all(isinstance(name, str) for name in label.values())
    # A list of strings may hold labels.
    return isinstance(label, str) or (
        isinstance(label, list | tuple) and all(isinstance(name, str) and name in columns for name in label)
    )


def _label_values(label: Any) -> Any:
    if is_frame(label):
        return frame_columns(label)
    if isinstance(label, Mapping):
        return {name: _label_values(values) for name, values in label.items()}
    return series_column(label, "label") if is_series(label) else label
