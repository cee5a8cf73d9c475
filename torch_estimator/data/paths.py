"""From what a user names to the files that are read."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from torch_estimator import files
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError

Files = files.PathLike | Sequence[files.PathLike]

_WILDCARDS = frozenset("*?[")


def as_patterns(given: Files) -> tuple[str, ...]:
    """Returns paths, URLs and globs as a tuple of strings.

    Raises:
        InvalidTypeError: They are something else.
        InvalidValueError: There is none.
    """
    if isinstance(given, str | os.PathLike):
        return (files.as_url(given),)
    if not isinstance(given, Sequence):
        raise InvalidTypeError(f"files must be a path or a sequence of paths, but got {given!r}.")
    if not given:
        raise InvalidValueError("files must name at least one file, but the sequence is empty.")
    return tuple(files.as_url(path) for path in given)


def expand(patterns: Sequence[str]) -> list[str]:
    """Returns the files that paths and globs stand for: in the order given, those of a glob sorted.

    Raises:
        DataError: A path or a glob stands for nothing, or for a directory.
    """
    found: list[str] = []
    for pattern in patterns:
        found += _local(pattern) if files.is_local(pattern) else _remote(pattern)
    return found


def _local(pattern: str) -> list[str]:
    if os.path.isdir(pattern):
        raise DataError(f"{pattern} is a directory; name its files, for instance with {files.join(pattern, '*')}.")
    if os.path.exists(pattern):
        return [pattern]
    matches = [path for path in sorted(glob.glob(pattern, recursive=True)) if not os.path.isdir(path)]
    if not matches:
        raise _nothing(pattern)
    return matches


def _remote(pattern: str) -> list[str]:
    import fsspec.core

    try:
        filesystem, key = fsspec.core.url_to_fs(pattern)
        filesystem.invalidate_cache()
        if not _WILDCARDS.intersection(pattern):
            if not filesystem.isfile(key):
                raise _nothing(pattern)
            return [pattern]
        matches = sorted(path for path in filesystem.glob(key) if filesystem.isfile(path))
    except (ImportError, ValueError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{pattern} cannot be read: {files.reason(error)}.") from error
    if not matches:
        raise _nothing(pattern)
    return [filesystem.unstrip_protocol(path) for path in matches]


def _nothing(pattern: str) -> DataError:
    if _WILDCARDS.intersection(pattern):
        return DataError(f"No file matches {pattern}.")
    return DataError(f"There is no file {pattern}.")
