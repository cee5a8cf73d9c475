"""Strings or integers numbered by their line in a file."""

from __future__ import annotations

from typing import Any

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import check_text, is_count, plain
from torch_estimator.feature_column.hashing import HashFunction
from torch_estimator.feature_column.raw_feature import check_key, dtype_name, is_integer
from torch_estimator.feature_column.vocabulary_list import VocabularyListCategoricalColumn


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
    """A categorical column whose value's id is the number of its line in a file, from 0.

    The file is read once, here: the column is that of `categorical_column_with_vocabulary_list` with the file's
    words, and an export carries them.

    Args:
        key: Name of the raw column.
        vocabulary_file: UTF-8 text, one word a line; a local path or an fsspec URL.
        vocabulary_size: How many lines to use, from the first on; None for all.
        num_oov_buckets: Number of ids for values that are not in the vocabulary; excludes `default_value`.
        default_value: Id of a value that is not in the vocabulary; None (or -1): no id.
        dtype: String or an integer type.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids; only `num_oov_buckets` uses it.
        multivalent: Whether rows hold lists of values.

    Raises:
        InvalidValueError: The file cannot be read, is shorter than `vocabulary_size`, or has an empty, repeated or
            unreadable line; or an argument is out of range.
    """
    check_key(key)
    name = dtype_name(dtype)
    if name != "string" and not is_integer(name):
        raise InvalidValueError(f"dtype of column {key!r} must be string or an integer type, but got {name!r}.")
    check_text(files.as_url(vocabulary_file), f"vocabulary_file of column {key!r}")
    where = f"vocabulary_file {files.as_url(vocabulary_file)} of column {key!r}"
    words = _words(_lines(vocabulary_file, where), plain(vocabulary_size), where)
    return VocabularyListCategoricalColumn(
        key=key,
        vocabulary_list=tuple(words) if name == "string" else tuple(_integers(words, where)),
        dtype="string" if name == "string" else "int64",
        default_value=-1 if default_value is None else plain(default_value),
        num_oov_buckets=plain(num_oov_buckets),
        hash_function=hash_function,
        multivalent=multivalent,
    )


def _lines(path: files.PathLike, where: str) -> list[str]:
    try:
        text = files.read_text(path)
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{where} is not UTF-8 text (byte {error.start}).") from error
    except OSError as error:
        raise InvalidValueError(f"{where} cannot be read: {files.reason(error)}.") from error
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    return lines[:-1] if not lines[-1] else lines


def _words(lines: list[str], size: int | None, where: str) -> list[str]:
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
    values: dict[int, int] = {}
    for number, word in enumerate(words, 1):
        try:
            value = int(word)
        except ValueError as error:
            raise InvalidValueError(f"{where}, line {number} is {word!r}, which is no integer.") from error
        if values.setdefault(value, number) != number:
            raise InvalidValueError(f"{where}, line {number} repeats {value} of line {values[value]}; remove one.")
    return list(values)
