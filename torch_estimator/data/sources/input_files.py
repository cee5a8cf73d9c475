"""Input files: expanding globs, reading bytes at any position, and recognizing the same files in another run."""

from __future__ import annotations

import glob
import json
import lzma
import os
import tempfile
import weakref
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple, cast

from torch_estimator import files
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError

Files = files.PathLike | Sequence[files.PathLike]

_WILDCARDS = frozenset("*?[")
_COPY_BYTES = 2**18
_MOST_UNPACKED_BYTES = 2**22
_ENDS_BYTES = 4096
_MAX_KEPT = 16
_MAX_NAMED = 3
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


def as_patterns(given: Files) -> tuple[str, ...]:
    """Convert the argument `files` of a `Dataset` method (paths, URLs or globs) to a tuple of strings."""
    if isinstance(given, str | os.PathLike):
        return (files.as_url(given),)
    if not isinstance(given, Sequence):
        raise InvalidTypeError(f"files must be a path or a sequence of paths, but got {given!r}.")
    if not given:
        raise InvalidValueError("files must name at least one file, but the sequence is empty.")
    return tuple(files.as_url(path) for path in given)


def expand(patterns: Sequence[str]) -> list[str]:
    """Return the files that paths and globs match, in the order of `patterns`; the files of one glob are sorted.

    Raise a DataError if a path does not exist or is a directory, or if a glob matches nothing.
    """
    found: list[str] = []
    for pattern in patterns:
        found += _expand_local(pattern) if files.is_local(pattern) else _expand_remote(pattern)
    return found


def _expand_local(pattern: str) -> list[str]:
    if os.path.isdir(pattern):
        raise DataError(f"{pattern} is a directory; name its files, for instance with {files.join(pattern, '*')}.")
    if os.path.exists(pattern):
        return [pattern]
    matches = [path for path in sorted(glob.glob(pattern, recursive=True)) if not os.path.isdir(path)]
    if not matches:
        raise _nothing_found(pattern)
    return matches


def _expand_remote(pattern: str) -> list[str]:
    import fsspec.core

    try:
        filesystem, key = fsspec.core.url_to_fs(pattern)
        filesystem.invalidate_cache()
        if not _WILDCARDS.intersection(pattern):
            if not filesystem.isfile(key):
                raise _nothing_found(pattern)
            return [pattern]
        matches = sorted(path for path in filesystem.glob(key) if filesystem.isfile(path))
    except (ImportError, ValueError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{pattern} cannot be read: {files.reason(error)}.") from error
    if not matches:
        raise _nothing_found(pattern)
    return [filesystem.unstrip_protocol(path) for path in matches]


def _nothing_found(pattern: str) -> DataError:
    if _WILDCARDS.intersection(pattern):
        return DataError(f"No file matches {pattern}.")
    return DataError(f"There is no file {pattern}.")


class ByteFile(ABC):
    """A file of `size` bytes that can be read at any position.

    `range_bytes` is the best length of ranges that are read in random order.
    """

    url: str
    size: int
    range_bytes = 64 * 2**10

    @abstractmethod
    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes ``start:stop``, cut at the end of the file."""

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of several ranges, read concurrently if that is faster."""
        return [self.read(start, stop) for start, stop in ranges]


def open_byte_file(url: str, *, unpack: bool | None = None) -> ByteFile:
    """Open a local or remote file for reading at any position.

    Decompress it (gzip or zlib) if `unpack`, or if that is None and the name ends in ``.gz``.
    """
    check_regular(url)
    with _reading(url):
        if url.endswith(".gz") if unpack is None else unpack:
            return convert_file(url, gunzipped)
        return _LocalFile(url) if files.is_local(url) else _RemoteFile(url)


def check_regular(url: str) -> None:
    """Raise a DataError if a local path is a pipe or a device.

    A pipe might never end, and it cannot be read again in the next epoch.
    """
    if files.is_local(url) and os.path.exists(url) and not (os.path.isfile(url) or os.path.isdir(url)):
        raise DataError(f"{url} is a pipe or a device, which cannot be read at any place; write the data into a file.")


@contextmanager
def _reading(url: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError) as error:
        raise DataError(f"{url} cannot be read: {files.reason(error)}.") from error


class _LocalFile(ByteFile):
    def __init__(self, path: str) -> None:
        self.url = path
        self.size = os.stat(path).st_size
        with open(path, "rb"):
            pass

    def read(self, start: int, stop: int) -> bytes:
        return self.read_many([(start, stop)])[0]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        # Open the file anew for every call, because a data set may have more files than a process may keep open.
        with _reading(self.url):
            descriptor = os.open(self.url, os.O_RDONLY)
        try:
            return [_pread(descriptor, start, min(stop, self.size), self.url) for start, stop in ranges]
        finally:
            os.close(descriptor)


class _RemoteFile(ByteFile):
    # Every range is a request to a server, so the ranges are longer than in local files.
    range_bytes = 2**20

    def __init__(self, url: str) -> None:
        import fsspec.core

        self.url = url
        self._filesystem, self._key = fsspec.core.url_to_fs(url)
        self.size = int(self._filesystem.size(self._key))

    def read(self, start: int, stop: int) -> bytes:
        if start >= min(stop, self.size):
            return b""
        with _reading(self.url):
            return bytes(self._filesystem.cat_file(self._key, start=start, end=min(stop, self.size)))

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        starts = [start for start, _ in ranges]
        stops = [min(stop, self.size) for _, stop in ranges]
        with _reading(self.url):
            keys = [self._key] * len(ranges)
            return cast("list[bytes]", self._filesystem.cat_ranges(keys, starts, stops, on_error="raise"))


class _ConvertedFile(ByteFile):
    """A file that can only be read from its start, converted into an unnamed temporary file."""

    def __init__(self, url: str, convert: Callable[[BinaryIO], Iterable[bytes]]) -> None:
        self.url = url
        descriptor, path = tempfile.mkstemp(prefix="torch-estimator-")
        os.unlink(path)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        with _opened(url) as file:
            self.size = sum(_write_all(descriptor, block) for block in convert(file))

    def read(self, start: int, stop: int) -> bytes:
        return _pread(self._descriptor, start, min(stop, self.size), self.url)


def convert_file(url: str, convert: Callable[[BinaryIO], Iterable[bytes]]) -> ByteFile:
    """Open a file whose bytes are what `convert` returns of the opened file, block by block."""
    with _reading(url):
        return _ConvertedFile(url, convert)


def _opened(url: str) -> BinaryIO:
    if files.is_local(url):
        return open(url, "rb")
    import fsspec

    return cast(BinaryIO, fsspec.open(url, "rb").open())


def gunzipped(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a gzip or zlib file."""
    unpacker: Any = None
    while data := file.read(_COPY_BYTES):
        # A gzip file may hold several members (compressed streams), so decompress one after the other. Zero bytes
        # after a member are padding.
        while data:
            unpacker = unpacker or zlib.decompressobj(wbits=_GZIP_OR_ZLIB)
            yield unpacker.decompress(data, _MOST_UNPACKED_BYTES)
            data = unpacker.unconsumed_tail or unpacker.unused_data.lstrip(b"\0")
            unpacker = None if unpacker.eof else unpacker
    if unpacker is not None:
        raise zlib.error("the file is cut off in its middle")


def _write_all(descriptor: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return len(data)


def _pread(descriptor: int, start: int, stop: int, url: str) -> bytes:
    parts = []
    while start < stop:
        part = os.pread(descriptor, stop - start, start)
        if not part:
            raise DataError(f"{url} became shorter while it was read.")
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class FileIdentity(NamedTuple):
    """Identity of a file in a saved position: its name, its length, and a hash of its first and last 4 KiB.

    The folder is left out, so that a run can be resumed after the data was moved.
    """

    name: str
    bytes: int
    ends: str


def identify(file: ByteFile | str) -> FileIdentity:
    """Return the name, length and hash by which a saved position identifies a file."""
    opened = open_byte_file(file, unpack=False) if isinstance(file, str) else file
    ends = [(0, min(_ENDS_BYTES, opened.size))]
    if opened.size > _ENDS_BYTES:
        ends.append((max(opened.size - _ENDS_BYTES, _ENDS_BYTES), opened.size))
    return FileIdentity(files.basename(opened.url), opened.size, _hash(b"".join(opened.read_many(ends))))


def file_version(url: str) -> Any:
    """Return a value that changes when a file is written: path, size and time, or a key from the server."""
    try:
        if files.is_local(url):
            found = os.stat(url)
            return [os.path.realpath(url), found.st_size, found.st_mtime_ns]
        import fsspec.core

        filesystem, key = fsspec.core.url_to_fs(url)
        return [url, filesystem.ukey(key)]
    except (OSError, ImportError, ValueError) as error:
        raise DataError(f"{url} cannot be read: {files.reason(error)}.") from error


def files_signature(identities: Sequence[FileIdentity]) -> dict[str, Any]:
    """Return what a saved position stores about its files: their number, the first identities, and a hash of all."""
    return {
        "count": len(identities),
        "first": [list(identity) for identity in identities[:_MAX_KEPT]],
        "hash": _hash(json.dumps(identities).encode()),
    }


def files_difference(saved: Any, own: dict[str, Any]) -> str:
    """Return a clause that says how the files of a saved position differ from the files of this input.

    Both arguments are results of `files_signature`.
    """
    try:
        before = [FileIdentity(*identity) for identity in saved["first"]]
        count = int(saved["count"])
    except (KeyError, TypeError, ValueError):
        return "it names no files that this version can compare"
    now = [FileIdentity(*identity) for identity in own["first"]]
    if count != own["count"]:
        return f"it is of {_named(before, count)}, but now there {_are(own['count'])} {_named(now, own['count'])}"
    for old, new in zip(before, now, strict=False):
        if old.name != new.name:
            return f"where its file {old.name} was, there is now {new.name}"
        if old.bytes != new.bytes:
            return f"its file {old.name} had {old.bytes} bytes, but now has {new.bytes}"
        if old.ends != new.ends:
            return f"the content of its file {old.name} has changed"
    return f"one of the {count} files has changed, which is not one of the first {_MAX_KEPT}"


def _named(identities: Sequence[FileIdentity], count: int) -> str:
    names = ", ".join(identity.name for identity in identities[:_MAX_NAMED])
    more = f" and {count - _MAX_NAMED} more" if count > _MAX_NAMED else ""
    return f"{count} {'file' if count == 1 else 'files'} ({names}{more})"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]
