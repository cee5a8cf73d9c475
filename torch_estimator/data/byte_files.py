"""Files of bytes that can be read at any place: local, remote, or gzipped."""

from __future__ import annotations

import os
import tempfile
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from torch_estimator import files
from torch_estimator.errors import DataError

_COPY_BYTES = 2**18


class ByteFile(ABC):
    """An input file.

    Attributes:
        url: Its name, for messages.
        size: Its length in bytes.
        range_bytes: Length of the ranges that it is best read in, if they are in no order.
    """

    url: str
    size: int
    range_bytes = 64 * 2**10

    @abstractmethod
    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes ``start:stop``, cut at the end of the file."""

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns the bytes of several ranges, read side by side where that is faster."""
        return [self.read(start, stop) for start, stop in ranges]


def open_byte_file(url: str, *, unpack: bool = True) -> ByteFile:
    """Opens a file, decompressing it if its name ends in ``.gz``, unless it is wanted as it is.

    Raises:
        DataError: It cannot be read.
    """
    check_regular(url)
    with _reading(url):
        if unpack and url.endswith(".gz"):
            return _GzipFile(url)
        return _LocalFile(url) if files.is_local(url) else _RemoteFile(url)


def check_regular(url: str) -> None:
    """Check that a local path, where there is something, can be read at any place.

    Raises:
        DataError: It is a pipe or a device, which might never end, or have no beginning any more in the next epoch.
    """
    if files.is_local(url) and os.path.exists(url) and not (os.path.isfile(url) or os.path.isdir(url)):
        raise DataError(f"{url} is a pipe or a device, which cannot be read at any place; write the data into a file.")


@contextmanager
def _reading(url: str) -> Iterator[None]:
    try:
        yield
    except (OSError, zlib.error) as error:
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
        # Opened anew each time: a data set may have more files than a process may have open.
        with _reading(self.url):
            descriptor = os.open(self.url, os.O_RDONLY)
        try:
            return [_pread(descriptor, start, min(stop, self.size), self.url) for start, stop in ranges]
        finally:
            os.close(descriptor)


class _RemoteFile(ByteFile):
    # Every range is a request there.
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


class _GzipFile(ByteFile):
    """Decompressed into an unnamed temporary file, since gzip cannot be read from the middle."""

    def __init__(self, url: str) -> None:
        self.url = url
        descriptor, path = tempfile.mkstemp(prefix="torch-estimator-")
        os.unlink(path)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        with _opened(url) as file:
            self.size = _decompress(file, descriptor)

    def read(self, start: int, stop: int) -> bytes:
        return _pread(self._descriptor, start, min(stop, self.size), self.url)


def _opened(url: str) -> BinaryIO:
    if files.is_local(url):
        return open(url, "rb")
    import fsspec

    return cast(BinaryIO, fsspec.open(url, "rb").open())


def _decompress(file: BinaryIO, descriptor: int) -> int:
    """Writes what is in a gzip file; returns its length."""
    written = 0
    unpacker: Any = None
    while data := file.read(_COPY_BYTES):
        # A gzip file may hold several members, one after the other; zero bytes after the last are padding.
        while data:
            unpacker = unpacker or zlib.decompressobj(wbits=31)
            unpacked = unpacker.decompress(data)
            _write_all(descriptor, unpacked)
            written += len(unpacked)
            data = unpacker.unused_data.lstrip(b"\0")
            unpacker = None if unpacker.eof else unpacker
    if unpacker is not None:
        raise zlib.error("the file is cut off in its middle")
    return written


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _pread(descriptor: int, start: int, stop: int, url: str) -> bytes:
    parts = []
    while start < stop:
        part = os.pread(descriptor, stop - start, start)
        if not part:
            raise DataError(f"{url} became shorter while it was read.")
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
