"""Sequence columns: lists whose values stay apart, as the steps of a sequence, instead of being combined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError
from torch_estimator.feature_column.checks import (
    as_items,
    check_key,
    check_number_dtype,
    dtype_name,
    is_count,
    plain,
)
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.column import CategoricalColumn, Encoders, ListEncoder, Normalizer, NumberColumn
from torch_estimator.feature_column.hash_bucket import HashedCategoricalColumn
from torch_estimator.feature_column.hashing import HashFunction
from torch_estimator.feature_column.identity import IdentityCategoricalColumn
from torch_estimator.feature_column.lowering import LoweredIds, Lowering
from torch_estimator.feature_column.raw_feature import LISTS, RawFeature
from torch_estimator.feature_column.raw_values import Lists
from torch_estimator.feature_column.vocabulary import (
    categorical_column_with_vocabulary_file,
    categorical_column_with_vocabulary_list,
)


@dataclass(frozen=True, slots=True)
class SequenceCategoricalColumn(CategoricalColumn):
    """Categorical column of sequences: each value of a row's list is one step, with an id of its own.

    `embedding_column` and `indicator_column` make numbers of it, for `SequenceFeatures` and
    `te.experimental.RNNClassifier`. Created by `sequence_categorical_column_with_identity` and its neighbours.

    Attributes:
        categorical_column: The column of lists that gives the ids.

    >>> rating = fc.sequence_categorical_column_with_identity("rating", num_buckets=6)
    >>> isinstance(rating, fc.SequenceCategoricalColumn), rating.num_buckets
    (True, 6)
    """

    categorical_column: CategoricalColumn

    is_sequence = True
    multivalent = True

    @property
    def name(self) -> str:
        """Name of the column: the name of its raw column."""
        return self.categorical_column.name

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The raw column of lists."""
        return self.categorical_column.raw_features

    @property
    def num_buckets(self) -> int:
        """Number of ids."""
        return self.categorical_column.num_buckets

    @property
    def unweighted(self) -> CategoricalColumn:
        """The column that gives the ids, whose kind counts when embeddings are shared."""
        return self.categorical_column

    def cross_leaves(self) -> tuple[str | CategoricalColumn, ...]:
        """Raise InvalidValueError, because the steps of sequences cannot be crossed."""
        raise InvalidValueError(f"sequence column {self.name!r} cannot be crossed.")

    def check_weighable(self) -> None:
        """Raise InvalidValueError, because the steps of sequences have no weights."""
        raise InvalidValueError(f"sequence column {self.name!r} cannot have weights.")

    def list_encoder(self, encoders: Encoders) -> ListEncoder:
        """Return the list encoder of the column that gives the ids."""
        return encoders.lists(self.categorical_column)

    def lower(self, lowering: Lowering) -> LoweredIds:
        """Add the ids to an ONNX graph: int64 ``[N, n]``, -1 for a value without an id."""
        return self.categorical_column.lower(lowering)


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceNumericColumn(NumberColumn):
    """Column of sequences of numbers. Created by `sequence_numeric_column`.

    `shape` is that of one step's value. `default_value` replaces missing numbers, and pads short sequences.
    """

    key: str
    shape: tuple[int, ...] = (1,)
    default_value: float = 0.0
    dtype: str = "float32"
    normalizer_fn: Normalizer | None = None

    is_sequence = True

    @property
    def name(self) -> str:
        """Name of the column: the name of its raw column."""
        return self.key

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The raw column of lists, as float32: an integer could not be missing."""
        return (RawFeature(key=self.key, dtype="float32", shape=LISTS),)

    def steps(self, chunk: Chunk) -> Lists[npt.NDArray[np.float32]]:
        """Return the numbers of a chunk before normalization, one row ``[width]`` for each step; NaN if missing."""
        lists = chunk.list_numbers(self.key)
        counts = np.diff(lists.offsets)
        if len(wrong := np.flatnonzero(counts % self.width)):
            raise RowError(
                f"a list of {counts[wrong[0]]} numbers is not made of steps of {self.width} (shape {self.shape})",
                row=int(wrong[0]),
                column=self.key,
            )
        return Lists(lists.values.reshape(-1, self.width), lists.offsets // self.width)

    def normalized_steps(self, steps: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the numbers of some steps after `normalizer_fn`, with `default_value` in place of missing ones."""
        normalized = self.normalized(steps.reshape(-1, *self.shape))
        return np.where(np.isnan(steps), np.float32(self.default_value), normalized)

    def lower(self, lowering: Lowering) -> str:
        """Return the name of a float32 tensor ``[N * steps, width]`` with the numbers before normalization."""
        graph = lowering.graph
        return graph.op("Reshape", lowering.floats(self.key), graph.constant([-1, self.width], np.int64))


def sequence_numeric_column(
    key: str,
    shape: int | Iterable[int] = (1,),
    default_value: float = 0.0,
    dtype: Any = "float32",
    normalizer_fn: Normalizer | None = None,
) -> SequenceNumericColumn:
    """Return a column of sequences of numbers: a list in each row, with one number or several for each step.

    NaN and null are missing numbers. At the end of a list they are padding, which does not count in its length.

    Args:
        key: Name of the raw column of lists. With several numbers for each step, the lists are flat:
            ``shape=(2,)`` takes lists of 2, 4, 6 … numbers.
        shape: Shape of one step's value.
        default_value: Number in place of a missing one, and in the padding of short sequences.
        dtype: Type of the numbers in the data. The model always gets float32.
        normalizer_fn: Function that maps a float32 tensor ``[steps, *shape]`` to one of the same shape, step by step.

    Raises:
        InvalidTypeError: `shape` is not a list, or `normalizer_fn` is not callable.
        InvalidValueError: A size of the shape is not positive, `default_value` is not a number, or the dtype is not
            numeric.

    >>> speed = fc.sequence_numeric_column("speed", normalizer_fn=lambda speed: speed / 10)
    >>> transform = fc.FeatureTransform(sequence_columns=[speed])
    >>> features = transform.padded(transform({"speed": np.array([[10.0, 20.0], [30.0, np.nan]])}))
    >>> features["sequence/numeric"][..., 0].tolist(), features["sequence/lengths"].tolist()
    ([[1.0, 2.0], [3.0, 0.0]], [2, 1])
    """
    check_key(key)
    whole = isinstance(shape, int | np.integer)
    given = (shape,) if whole else as_items(shape, f"shape of sequence column {key!r}")
    sizes, name = tuple(map(plain, given)), dtype_name(dtype)
    if not sizes or not all(is_count(size, 1) for size in sizes):
        raise InvalidValueError(f"shape of sequence column {key!r} must be positive integers, but got {sizes}.")
    check_number_dtype(name, f"sequence column {key!r}")
    if not isinstance(plain(default_value), int | float):
        raise InvalidValueError(
            f"default_value of sequence column {key!r} must be a number, but got {default_value!r}."
        )
    if normalizer_fn is not None and not callable(normalizer_fn):
        raise InvalidTypeError(f"normalizer_fn of sequence column {key!r} must be callable, but got {normalizer_fn!r}.")
    return SequenceNumericColumn(
        key=key, shape=sizes, default_value=float(default_value), dtype=name, normalizer_fn=normalizer_fn
    )


def sequence_categorical_column_with_identity(
    key: str, num_buckets: int, default_value: int | None = None
) -> SequenceCategoricalColumn:
    """Return a categorical column of sequences of integers that already are ids.

    A value outside the range gets `default_value`, or no id: a step of zeros. -1 is a missing value: a step of zeros
    too, or padding if it is at the end of a list.

    Args:
        key: Name of the raw column, of lists of integers.
        num_buckets: Number of ids.
        default_value: Id of values outside the range.

    Raises:
        InvalidValueError: An argument is out of range; see `categorical_column_with_identity`.

    >>> rating = fc.sequence_categorical_column_with_identity("rating", num_buckets=6)
    >>> transform = fc.FeatureTransform(sequence_columns=[fc.indicator_column(rating)])
    >>> features = transform.padded(transform({"rating": np.array([[3, 5], [7, -1]])}))
    >>> features["sequence/indicator_ids/rating_indicator"].tolist(), features["sequence/lengths"].tolist()
    ([[3, 5], [6, 6]], [2, 1])
    """
    return SequenceCategoricalColumn(IdentityCategoricalColumn(key, num_buckets, default_value, multivalent=True))


def sequence_categorical_column_with_hash_bucket(
    key: str, hash_bucket_size: int, dtype: Any = "string", hash_function: HashFunction = "murmur3"
) -> SequenceCategoricalColumn:
    """Return a categorical column of sequences in which a value has the id ``hash(value) % hash_bucket_size``.

    A missing value (``''``, or -1 for integers) is a step of zeros, or padding if it is at the end of a list.

    Args:
        key: Name of the raw column, of lists.
        hash_bucket_size: Number of ids.
        dtype: String or an integer type.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids.

    Raises:
        InvalidValueError: An argument is out of range; see `categorical_column_with_hash_bucket`.

    >>> words = fc.sequence_categorical_column_with_hash_bucket("words", 100)
    >>> transform = fc.FeatureTransform(sequence_columns=[fc.embedding_column(words, 4)])
    >>> transform({"words": np.array([["to", "be"], ["or", ""]])})["sequence/lengths"]
    array([2, 1])
    """
    return SequenceCategoricalColumn(
        HashedCategoricalColumn(key, hash_bucket_size, dtype, hash_function, multivalent=True)
    )


def sequence_categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Iterable[Any],
    dtype: Any = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
    hash_function: HashFunction = "murmur3",
) -> SequenceCategoricalColumn:
    """Return a categorical column of sequences in which the id of a value is its position in a list.

    A value without an id is a step of zeros. So is a missing value (``''``, or -1 for integers), which is padding if it
    is at the end of a list.

    Args:
        key: Name of the raw column, of lists.
        vocabulary_list: Distinct strings or distinct integers.
        dtype: String or an integer type; by default that of the vocabulary.
        default_value: Id of a value that is not in the vocabulary; -1: no id.
        num_oov_buckets: Number of ids for values that are not in the vocabulary; excludes `default_value`.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids; only `num_oov_buckets` uses it.

    Raises:
        InvalidTypeError, InvalidValueError: As `categorical_column_with_vocabulary_list`.

    >>> colors = fc.sequence_categorical_column_with_vocabulary_list("colors", ["red", "green"])
    >>> transform = fc.FeatureTransform(sequence_columns=[fc.indicator_column(colors)])
    >>> features = transform.padded(transform({"colors": np.array([["green", "red"], ["pink", "green"]])}))
    >>> features["sequence/indicator_ids/colors_indicator"].tolist()
    [[1, 0], [2, 1]]
    """
    return SequenceCategoricalColumn(
        categorical_column_with_vocabulary_list(
            key, vocabulary_list, dtype, default_value, num_oov_buckets, hash_function, multivalent=True
        )
    )


def sequence_categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: files.PathLike,
    vocabulary_size: int | None = None,
    num_oov_buckets: int = 0,
    default_value: int | None = None,
    dtype: Any = "string",
    hash_function: HashFunction = "murmur3",
) -> SequenceCategoricalColumn:
    """Return a categorical column of sequences in which the id of a value is its line number in a file, from 0.

    The column is that of `sequence_categorical_column_with_vocabulary_list` with the words of the file.

    Args:
        key: Name of the raw column, of lists.
        vocabulary_file: UTF-8 text with one word in each line; a local path or an fsspec URL.
        vocabulary_size: Number of lines to use, from the first on; None for all.
        num_oov_buckets: Number of ids for values that are not in the vocabulary; excludes `default_value`.
        default_value: Id of a value that is not in the vocabulary; None (or -1): no id.
        dtype: String or an integer type.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids; only `num_oov_buckets` uses it.

    Raises:
        InvalidValueError: As `categorical_column_with_vocabulary_file`.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "colors.txt")
    >>> _ = path.write_text("red\\ngreen\\n")
    >>> fc.sequence_categorical_column_with_vocabulary_file("colors", path).num_buckets
    2
    """
    return SequenceCategoricalColumn(
        categorical_column_with_vocabulary_file(
            key,
            vocabulary_file,
            vocabulary_size,
            num_oov_buckets,
            default_value,
            dtype,
            hash_function,
            multivalent=True,
        )
    )
