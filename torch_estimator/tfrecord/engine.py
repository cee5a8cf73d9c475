"""The functions for records and tf.Examples: ``examples.c``, or `in_python` where there is no C compiler."""

from __future__ import annotations

import ctypes
import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from torch_estimator.code_cache import CodeCache, compiler_version, entry_key, processor
from torch_estimator.tfrecord import in_python

logger = logging.getLogger("torch_estimator")

Array = np.ndarray[Any, Any]

_SOURCE = Path(__file__).with_name("examples.c")
_LIBRARY = "examples.so"
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O2", "-fPIC", "-shared")
_MOST_KEPT = 8
_COMPILE_SECS = 60
_RECORD_BYTES = 16


class Scan(NamedTuple):
    """Records that were found in a part of a file.

    Attributes:
        starts: Where the content of each record begins, int64 ``[records]``.
        lengths: Length of the content of each record, int64 ``[records]``.
        end: Position after the last record.
        status: 0, or why the record at `end` cannot be read: `NEEDS_MORE`, `BAD_LENGTH` or `BAD_DATA`.
    """

    starts: Array
    lengths: Array
    end: int
    status: int


NEEDS_MORE, BAD_LENGTH, BAD_DATA = 1, 2, 3

BYTES, FLOATS, INTEGERS, STEPS = 1, 2, 3, 4
"""Kinds of values of a feature; a feature list has steps."""


class Index(NamedTuple):
    """Where the values of some features are in many tf.Examples.

    Attributes:
        position: Where the list of values begins, int64 ``[features, rows]``.
        size: Length of the list in bytes, int64 ``[features, rows]``.
        counts: Number of values, int64 ``[features, rows]``.
        kind: `BYTES`, `FLOATS`, `INTEGERS` or `STEPS`, or 0 if the feature is missing, uint8 ``[features, rows]``.
        damaged: Whether a row is not a tf.Example, bool ``[rows]``.
    """

    position: Array
    size: Array
    counts: Array
    kind: Array
    damaged: Array


class Engine(Protocol):
    """Functions that read records and tf.Examples. Positions are relative to `data`."""

    def scan(self, data: bytes, position: int, stop: int) -> Scan:
        """Return the records that begin between `position` and `stop`, up to the first one that cannot be read."""
        ...

    def frame(self, contents: Sequence[bytes]) -> bytes:
        """Return contents as records, one after the other."""
        ...

    def find(self, data: bytes, position: int, stop: int) -> int:
        """Return the first position between `position` and `stop` with a record's valid header, or -1."""
        ...

    def index(
        self, data: bytes, starts: Array, lengths: Array, names: tuple[bytes, ...], *, lists: bool = False
    ) -> Index:
        """Return where the values of the named features are in tf.Examples, given by their starts and lengths.

        With `lists`, return where the steps of the named feature lists are in SequenceExamples.
        """
        ...

    def steps(self, data: bytes, position: Array, size: Array, count: Array) -> Index:
        """Index all steps of one feature list as one feature with ``sum(count)`` rows."""
        ...

    def floats(self, data: bytes, position: Array, size: Array, count: Array) -> Array:
        """Return the numbers of one feature in all rows, one after the other: float32 ``[sum(count)]``."""
        ...

    def integers(self, data: bytes, position: Array, size: Array, count: Array) -> Array:
        """Return the numbers of one feature in all rows, one after the other: int64 ``[sum(count)]``."""
        ...

    def texts(self, data: bytes, position: Array, size: Array, count: Array) -> tuple[Array, Array]:
        """Return the bytes of one feature in all rows, and where each value begins, int64 ``[sum(count) + 1]``."""
        ...


@cache
def engine() -> Engine:
    """Return the functions in C, or those in Python if there is no C compiler."""
    library = _compiled()
    return in_python if library is None else _InC(library)


def _compiled() -> ctypes.CDLL | None:
    compiler = os.environ.get("CC") or next(filter(shutil.which, _COMPILERS), None)
    problem = "there is no C compiler"
    if compiler is not None and os.name == "posix":
        try:
            return _load([*shlex.split(compiler), *_FLAGS])
        except (OSError, subprocess.SubprocessError) as error:
            problem = f"{compiler} failed ({error})"
    logger.info("TFRecords are read in Python, which is slow, because %s.", problem)
    return None


def _load(command: Sequence[str]) -> ctypes.CDLL:
    """Load the library that an earlier process compiled with the same command and source; otherwise compile it."""
    cache = CodeCache(content="tfrecord", most=_MOST_KEPT, what="parser")
    key = entry_key([_SOURCE.read_text(), *command, compiler_version(command), processor()])
    if (folder := cache.find(key)) is not None:
        return ctypes.CDLL(str(folder / _LIBRARY))
    folder = cache.make_build_folder()
    try:
        whole = [*command, str(_SOURCE), "-o", str(folder / _LIBRARY)]
        subprocess.run(whole, check=True, capture_output=True, text=True, timeout=_COMPILE_SECS)
        # Loading first takes a library that cannot be loaded out of the cache.
        library = ctypes.CDLL(str(folder / _LIBRARY))
        cache.keep(folder, key)
        return library
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _InC:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name in ("scan_records", "find_record"):
            getattr(library, name).restype = ctypes.c_int64

    def scan(self, data: bytes, position: int, stop: int) -> Scan:
        most = max(stop - position, 0) // _RECORD_BYTES + 1
        starts, lengths = np.empty(most, np.int64), np.empty(most, np.int64)
        count, status = ctypes.c_int64(), ctypes.c_int32()
        content = np.frombuffer(data, np.uint8)
        end = self._library.scan_records(
            _address(content),
            _int64(content.size),
            _int64(position),
            _int64(stop),
            _address(starts),
            _address(lengths),
            ctypes.byref(count),
            ctypes.byref(status),
        )
        return Scan(starts[: count.value].copy(), lengths[: count.value].copy(), int(end), status.value)

    def frame(self, contents: Sequence[bytes]) -> bytes:
        lengths = np.fromiter(map(len, contents), np.int64, len(contents))
        framed = np.empty(int(lengths.sum()) + _RECORD_BYTES * len(contents), np.uint8)
        data = np.frombuffer(b"".join(contents) + b"\0", np.uint8)
        self._library.frame_records(_address(data), _address(lengths), _int64(len(contents)), _address(framed))
        return framed.tobytes()

    def find(self, data: bytes, position: int, stop: int) -> int:
        content = np.frombuffer(data, np.uint8)
        return int(self._library.find_record(_address(content), _int64(content.size), _int64(position), _int64(stop)))

    def index(
        self, data: bytes, starts: Array, lengths: Array, names: tuple[bytes, ...], *, lists: bool = False
    ) -> Index:
        found = _empty_index(len(names), len(starts))
        text = np.frombuffer(b"".join(names) + b"\0", np.uint8)
        name_starts = np.cumsum([0, *map(len, names)], dtype=np.int64)
        content = np.frombuffer(data, np.uint8)
        failed = self._library.index_examples(
            _address(content),
            _address(starts),
            _address(lengths),
            _int64(len(starts)),
            _address(text),
            _address(name_starts),
            _int64(len(names)),
            ctypes.c_int32(lists),
            *map(_address, found),
        )
        return in_python.index(data, starts, lengths, names, lists=lists) if failed else found

    def steps(self, data: bytes, position: Array, size: Array, count: Array) -> Index:
        found = _empty_index(1, int(count.sum()))
        where = [np.ascontiguousarray(array) for array in (position, size)]
        self._library.index_steps(
            _address(np.frombuffer(data, np.uint8)),
            *map(_address, where),
            _int64(len(position)),
            *map(_address, found),
        )
        return found

    def floats(self, data: bytes, position: Array, size: Array, count: Array) -> Array:
        return self._numbers("decode_floats", np.dtype(np.float32), data, position, size, count)

    def integers(self, data: bytes, position: Array, size: Array, count: Array) -> Array:
        return self._numbers("decode_integers", np.dtype(np.int64), data, position, size, count)

    def texts(self, data: bytes, position: Array, size: Array, count: Array) -> tuple[Array, Array]:
        # A list takes more bytes than its values, since each value has a tag and a length.
        out = np.empty(int(size.sum()), np.uint8)
        offsets = np.empty(int(count.sum()) + 1, np.int64)
        self._decode("decode_bytes", data, position, size, count, offsets, out)
        return out[: offsets[-1]], offsets

    def _numbers(
        self, function: str, kind: np.dtype[Any], data: bytes, position: Array, size: Array, count: Array
    ) -> Array:
        out = np.empty(int(count.sum()), kind)
        self._decode(function, data, position, size, count, out)
        return out

    def _decode(self, function: str, data: bytes, position: Array, size: Array, count: Array, *out: Array) -> None:
        content = np.frombuffer(data, np.uint8)
        where = [np.ascontiguousarray(array) for array in (position, size, count)]
        getattr(self._library, function)(
            _address(content), *map(_address, where), _int64(len(position)), *map(_address, out)
        )


def _empty_index(features: int, rows: int) -> Index:
    position, size, counts = (np.zeros((features, rows), np.int64) for _ in range(3))
    return Index(position, size, counts, np.zeros((features, rows), np.uint8), np.zeros(rows, bool))


def _address(array: Array) -> ctypes.c_void_p:
    # `array.ctypes` makes an object that takes longer.
    return ctypes.c_void_p(array.__array_interface__["data"][0])


_int64 = ctypes.c_int64
