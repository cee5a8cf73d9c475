"""Categorical column of known values. The id of a value is its position in a list or in a file."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import (
    as_items,
    check_key,
    check_text,
    dtype_name,
    is_count,
    plain,
    value_dtype_name,
)
from torch_estimator.feature_column.column import Encoders, IdsOfValues, KeyColumn
from torch_estimator.feature_column.hashing import HashFunction, check_hash_function
from torch_estimator.feature_column.ids import MISSING, NOT_IN_VOCABULARY, Int64Array
from torch_estimator.feature_column.lowering import HashChain, HashedKey, Lowering
from torch_estimator.feature_column.raw_feature import RawDtype

logger = logging.getLogger("torch_estimator")

_UNKNOWN = -2


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyListCategoricalColumn(KeyColumn):
    """Categorical column in which the id of a value is its position in a list of known values.

    It is made by `categorical_column_with_vocabulary_list` or `categorical_column_with_vocabulary_file`.

    Attributes:
        vocabulary_list: The values, in the order of their ids.
        dtype: ``"string"`` or ``"int64"``.
        default_value: Id of a value that is not in the list; -1 for no id.
        num_oov_buckets: Number of ids for values that are not in the list.
        hash_function: Function that spreads these values over their ids.
        multivalent: Whether rows hold lists of values.

    >>> fc.categorical_column_with_vocabulary_list("size", [36, 38, 40], num_oov_buckets=2).num_buckets
    5
    """

    vocabulary_list: tuple[str, ...] | tuple[int, ...]
    dtype: RawDtype = "string"
    default_value: int = -1
    num_oov_buckets: int = 0
    hash_function: HashFunction = "murmur3"
    multivalent: bool = False

    def __post_init__(self) -> None:
        self.check_key_column()
        check_hash_function(self.hash_function)
        if not self.vocabulary_list:
            raise InvalidValueError(f"vocabulary_list of column {self.key!r} must not be empty.")
        repeated = _first_repeated(self.vocabulary_list)
        if repeated is not None:
            raise InvalidValueError(f"vocabulary_list of column {self.key!r} has {repeated!r} more than once.")
        if not is_count(self.num_oov_buckets, 0):
            raise InvalidValueError(
                f"num_oov_buckets of column {self.key!r} must be an integer that is not negative, but got "
                f"{self.num_oov_buckets!r}."
            )
        if self.num_oov_buckets and self.default_value != -1:
            raise InvalidValueError(
                f"column {self.key!r} has num_oov_buckets={self.num_oov_buckets} and "
                f"default_value={self.default_value!r}, "
                "but can have only one of them."
            )
        if not (is_count(self.default_value, -1) and self.default_value < len(self.vocabulary_list)):
            raise InvalidValueError(
                f"default_value of column {self.key!r} must be -1 or an id below "
                f"{len(self.vocabulary_list)}, "
                f"but got {self.default_value!r}."
            )

    @property
    def num_buckets(self) -> int:
        """Number of ids: the size of the vocabulary, plus the buckets for unknown values."""
        return len(self.vocabulary_list) + self.num_oov_buckets

    def ids_of_values(self, encoders: Encoders) -> IdsOfValues:
        """Return a function from strings or integers to their ids."""
        places: dict[Any, int] = {value: place for place, value in enumerate(self.vocabulary_list)}
        places[self.missing_value] = MISSING
        other = self.default_value if self.default_value >= 0 else NOT_IN_VOCABULARY
        has_warned = False

        def known_ids(values: Sequence[Any]) -> Int64Array:
            nonlocal has_warned
            ids = np.fromiter((places.get(value, other) for value in values), np.int64, len(values))
            if not has_warned and ids.max(initial=MISSING) == NOT_IN_VOCABULARY:
                has_warned = self._warn_of_unknown([value for value in values if value not in places], places)
            return ids

        if not self.num_oov_buckets:
            return known_ids
        hasher = encoders.hasher(self.key, self.hash_function)

        def ids_of(values: Sequence[Any]) -> Int64Array:
            ids = known_ids(values)
            unknown = np.flatnonzero(ids == NOT_IN_VOCABULARY).tolist()
            if unknown:
                hashes = hasher([str(values[place]) for place in unknown])
                ids[unknown] = len(self.vocabulary_list) + (hashes % np.uint64(self.num_oov_buckets)).astype(np.int64)
            return ids

        return ids_of

    def _warn_of_unknown(self, values: Sequence[Any], places: Mapping[Any, int]) -> bool:
        """Warn that all values are unknown, unless there is only one; return whether a warning was logged."""
        texts = values if self.dtype == "string" else ()
        padded = next((value for value in texts if places.get(value.strip(), MISSING) >= 0), None)
        if padded is not None:
            logger.warning(
                "Column %r knows none of the values that it has read, but would know %r without its blanks. Strip the "
                "values where they are read, for example in a function for Dataset.map.",
                self.key,
                padded,
            )
        elif len(set(values)) > 1 and not self.num_oov_buckets:
            logger.warning(
                "Column %r knows none of the values that it has read, such as %s; its vocabulary has %s. Check their "
                "spelling, or give num_oov_buckets.",
                self.key,
                ", ".join(map(repr, sorted(set(values))[:3])),
                ", ".join(map(repr, self.vocabulary_list[:3])) + (", …" if len(self.vocabulary_list) > 3 else ""),
            )
        else:
            return False
        return True

    def lower(self, lowering: Lowering) -> str:
        """Add the look-up of ids, and the hash of unknown values, to an ONNX graph; return the tensor of ids."""
        graph, raw = lowering.graph, lowering.raw[self.key]
        ids: dict[Any, int] = {value: index for index, value in enumerate(self.vocabulary_list)}
        ids[self.missing_value] = -1
        keys = "keys_strings" if self.dtype == "string" else "keys_int64s"
        found = graph.op(
            "LabelEncoder",
            raw.tensor,
            domain="ai.onnx.ml",
            values_int64s=list(ids.values()),
            default_int64=_UNKNOWN if self.num_oov_buckets else self.default_value,
            **{keys: list(ids)},
        )
        if not self.num_oov_buckets:
            return found
        value = HashedKey(key=self.key, function=self.hash_function)
        chain = HashChain(start=None, values=(value,), buckets=self.num_oov_buckets, missing=())
        size = graph.constant(len(self.vocabulary_list), np.int64)
        bucket = graph.op("Add", lowering.hashed([chain]), size)
        unknown = graph.op("Equal", found, graph.constant(_UNKNOWN, np.int64))
        return graph.op("Where", unknown, bucket, found)


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Iterable[Any],
    dtype: Any = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
    hash_function: HashFunction = "murmur3",
    multivalent: bool = False,
) -> VocabularyListCategoricalColumn:
    """Return a categorical column in which the id of a value is its position in a list, counted from 0.

    Missing values (``''``, or -1 for integers) have no id. A value that is not in the list gets `default_value` (-1: no
    id), or with `num_oov_buckets` the id ``len(list) + hash(value) % num_oov_buckets``.

    Args:
        key: Name of the raw column.
        vocabulary_list: Distinct strings or distinct integers.
        dtype: String or an integer type; by default that of the list.
        default_value: Id of a value that is not in the list.
        num_oov_buckets: Number of ids for values that are not in the list; excludes `default_value`.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids; only `num_oov_buckets` uses it.
        multivalent: Whether rows hold lists of values; ``''`` and -1 in a list are missing values.

    Raises:
        InvalidTypeError: `vocabulary_list` is not a list, or `multivalent` is not True or False.
        InvalidValueError: The list is empty, repeats a value or holds floats; or `dtype` is not that of the list; or an
            id or a count is out of range.

    >>> color = fc.categorical_column_with_vocabulary_list("color", ["red", "green"], num_oov_buckets=1)
    >>> fc.FeatureTransform([color])({"color": np.array(["green", "red", "pink"])})["linear/ids"].ravel()
    array([1, 0, 2])
    """
    values, kind = _vocabulary(key, vocabulary_list)
    column = VocabularyListCategoricalColumn(
        key=key,
        vocabulary_list=values,
        dtype=kind,
        default_value=plain(default_value),
        num_oov_buckets=plain(num_oov_buckets),
        hash_function=hash_function,
        multivalent=multivalent,
    )
    if dtype is not None and value_dtype_name(dtype) != kind:
        raise InvalidValueError(
            f"dtype of column {key!r} is {dtype_name(dtype)}, but its vocabulary_list holds {kind} values."
        )
    return column


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: files.PathLike,
    vocabulary_size: int | None = None,
    num_oov_buckets: int = 0,
    default_value: int | None = None,
    dtype: Any = "string",
    hash_function: HashFunction = "murmur3",
    multivalent: bool = False,
) -> VocabularyListCategoricalColumn:
    """Return a categorical column in which the id of a value is its line number in a file, counted from 0.

    The file is read once, by this function. The column is that of `categorical_column_with_vocabulary_list` with the
    words of the file, and an export carries them.

    Args:
        key: Name of the raw column.
        vocabulary_file: UTF-8 text with one word in each line; a local path or an fsspec URL.
        vocabulary_size: Number of lines to use, from the first on; None for all.
        num_oov_buckets: Number of ids for values that are not in the vocabulary; excludes `default_value`.
        default_value: Id of a value that is not in the vocabulary; None (or -1): no id.
        dtype: String or an integer type.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids; only `num_oov_buckets` uses it.
        multivalent: Whether rows hold lists of values.

    Raises:
        InvalidTypeError: `multivalent` is not True or False.
        InvalidValueError: The file cannot be read, is shorter than `vocabulary_size`, or has an empty, repeated or
            unreadable line; or an argument is out of range.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "colors.txt")
    >>> _ = path.write_text("red\\ngreen\\n")
    >>> fc.categorical_column_with_vocabulary_file("color", path).vocabulary_list
    ('red', 'green')
    """
    check_key(key)
    kind = value_dtype_name(dtype)
    if kind not in ("string", "int64"):
        raise InvalidValueError(f"dtype of column {key!r} must be string or an integer type, but got {kind!r}.")
    check_text(files.as_url(vocabulary_file), f"vocabulary_file of column {key!r}")
    where = f"vocabulary_file {files.as_url(vocabulary_file)} of column {key!r}"
    words = _words(_lines(vocabulary_file, where), plain(vocabulary_size), where)
    return VocabularyListCategoricalColumn(
        key=key,
        vocabulary_list=tuple(words) if kind == "string" else tuple(_integers(words, where)),
        dtype="string" if kind == "string" else "int64",
        default_value=-1 if default_value is None else plain(default_value),
        num_oov_buckets=plain(num_oov_buckets),
        hash_function=hash_function,
        multivalent=multivalent,
    )


def _vocabulary(key: str, values: Iterable[Any]) -> tuple[tuple[str, ...] | tuple[int, ...], RawDtype]:
    """Return the values of a vocabulary as a tuple, and their dtype; raise an error for a mixture of types."""
    check_key(key)
    items = [plain(value) for value in as_items(values, f"vocabulary_list of column {key!r}")]
    if all(isinstance(item, (str, bytes)) for item in items):
        return tuple(_text(item, key) for item in items), "string"
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        for item in items:
            if not is_count(item, -(2**63)):
                raise InvalidValueError(f"vocabulary_list of column {key!r} has {item}, which 64 bits do not hold.")
        return tuple(items), "int64"
    kinds = sorted({type(item).__name__ for item in items})
    raise InvalidValueError(
        f"vocabulary_list of column {key!r} must be all strings or all integers, "
        f"but holds {', '.join(kinds)}: {items[:3]!r}."
    )


def _text(item: str | bytes, key: str) -> str:
    try:
        text = item.decode() if isinstance(item, bytes) else item
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"vocabulary_list of column {key!r} has {item!r}, which is not UTF-8 text.") from error
    check_text(text, f"a word in vocabulary_list of column {key!r}")
    return text


def _first_repeated(values: tuple[Any, ...]) -> Any:
    if len(set(values)) == len(values):
        return None
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def _lines(path: files.PathLike, where: str) -> list[str]:
    """Return the lines of a text file; `where` names the file in errors."""
    try:
        text = files.read_text(path)
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{where} is not UTF-8 text (byte {error.start}).") from error
    except OSError as error:
        raise InvalidValueError(f"{where} cannot be read: {files.reason(error)}.") from error
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    return lines[:-1] if not lines[-1] else lines


def _words(lines: list[str], size: int | None, where: str) -> list[str]:
    """Return the first `size` lines, or all if `size` is None; raise an error for an empty or repeated line."""
    if size is not None and not is_count(size, 1):
        raise InvalidValueError(f"vocabulary_size for {where} must be a positive integer, but got {size!r}.")
    if not lines:
        raise InvalidValueError(f"{where} is empty.")
    if size is not None and size > len(lines):
        raise InvalidValueError(f"{where} has {len(lines)} lines, but vocabulary_size is {size}.")
    words = lines[:size]
    first: dict[str, int] = {}
    for number, word in enumerate(words, 1):
        if not word:
            raise InvalidValueError(f"{where}, line {number} is empty, but an empty value is a missing one; remove it.")
        if first.setdefault(word, number) != number:
            raise InvalidValueError(f"{where}, line {number} repeats {word!r} of line {first[word]}; remove one.")
    return words


def _integers(words: list[str], where: str) -> list[int]:
    """Parse words as integers; raise InvalidValueError for a word that is no integer or repeats one."""
    values: dict[int, int] = {}
    for number, word in enumerate(words, 1):
        try:
            value = int(word)
        except ValueError as error:
            raise InvalidValueError(f"{where}, line {number} is {word!r}, which is no integer.") from error
        if values.setdefault(value, number) != number:
            raise InvalidValueError(f"{where}, line {number} repeats {value} of line {values[value]}; remove one.")
    return list(values)
