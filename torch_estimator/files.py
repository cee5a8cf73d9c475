"""File operations on local paths and fsspec URLs (``memory://``, ``s3://``, ``gs://``).

All access to model directories goes through this module. A path is a string, an `os.PathLike` or a URL; functions that
return a path return a string. Functions raise system errors (`OSError`) unchanged, because only the caller knows which
operation failed and can name it in an error message.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError

PathLike = str | os.PathLike[str]

_GENERIC = ("fsspec.spec", "fsspec.asyn")
_CHUNK_BYTES = 2**24

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of the names of unfinished files and directories."""


def as_url(path: PathLike) -> str:
    """Return `path` as a local path (``file://`` and ``~`` resolved) or a URL, without a trailing slash."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise InvalidTypeError(f"a path must be a string or a pathlib.Path, but got {text!r}.")
    if not text:
        raise InvalidValueError("a path must not be empty; use '.' for the current directory.")
    for protocol in ("file://", "local://"):
        text = text.removeprefix(protocol)
    if "://" not in text:
        return os.path.expanduser(text.rstrip("/") or "/")
    protocol, _, rest = text.partition("://")
    return f"{protocol}://{rest.rstrip('/')}"


def is_local(path: PathLike) -> bool:
    """Return whether `path` is on a local file system, where a rename is atomic."""
    return "://" not in as_url(path)


def join(path: PathLike, *parts: str) -> str:
    """Return the path of `parts` below `path`.

    >>> join("memory://runs", "census", "checkpoint")
    'memory://runs/census/checkpoint'
    """
    base = as_url(path)
    below = "/".join(part.strip("/") for part in parts)
    return f"{base}{below}" if base.endswith("/") else f"{base}/{below}"


def basename(path: PathLike) -> str:
    """Return the last part of `path`."""
    return as_url(path).rpartition("/")[2]


def parent(path: PathLike) -> str:
    """Return `path` without its last part."""
    url = as_url(path)
    if is_local(url):
        return os.path.dirname(url) or "."
    head, _, _ = url.rpartition("/")
    return f"{head}/" if head.endswith(":/") else head


def reason(error: BaseException) -> str:
    """Return a short description of an error for messages; for system errors, without the path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def exists(path: PathLike) -> bool:
    """Return whether `path` is a file or a directory."""
    if is_local(path):
        return os.path.exists(as_url(path))
    filesystem, key = _remote(path)
    return bool(filesystem.exists(key))


def is_dir(path: PathLike) -> bool:
    """Return whether `path` is a directory."""
    if is_local(path):
        return os.path.isdir(as_url(path))
    filesystem, key = _remote(path)
    return bool(filesystem.isdir(key))


def makedirs(path: PathLike) -> None:
    """Make the directory `path` and its missing parents; on a local file system they survive a power cut."""
    if is_local(path):
        absent = os.path.abspath(as_url(path))
        changed = []
        while not os.path.isdir(absent):
            absent = os.path.dirname(absent)
            changed.append(absent)
        os.makedirs(as_url(path), exist_ok=True)
        for folder in reversed(changed):
            # Ignore errors of syncing: some file systems cannot sync directories, or this process may not open them.
            with contextlib.suppress(OSError):
                sync_dir(folder)
        return
    filesystem, key = _remote(path)
    filesystem.makedirs(key, exist_ok=True)


def listdir(path: PathLike) -> list[str]:
    """Return the sorted names in the directory `path`; an empty list if it does not exist."""
    try:
        if is_local(path):
            return sorted(os.listdir(as_url(path)))
        filesystem, key = _remote(path)
        entries = filesystem.ls(key, detail=False)
    except FileNotFoundError:
        return []
    own = str(key).strip("/")
    return sorted(entry.rstrip("/").rpartition("/")[2] for entry in entries if entry.strip("/") != own)


def all_files(path: PathLike) -> dict[str, int]:
    """Return the size in bytes of each file below the directory `path` by its path in it, in the order of paths."""
    if is_local(path):
        top = as_url(path)
        found = {}
        for name in (os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names):
            try:
                found[os.path.relpath(name, top).replace(os.sep, "/")] = os.stat(name).st_size
            except FileNotFoundError:
                # It was removed meanwhile, unless it is a link to nothing.
                if os.path.lexists(name):
                    raise
    else:
        filesystem, key = _remote(path)
        own = f"{str(key).strip('/')}/"
        details = filesystem.find(key, detail=True)
        found = {name.strip("/").removeprefix(own): int(one["size"]) for name, one in details.items()}
    return dict(sorted(found.items()))


def sizes(path: PathLike) -> dict[str, int]:
    """Return the size in bytes of each file in the directory `path`; an empty dict if it does not exist."""
    try:
        if is_local(path):
            found = {}
            with os.scandir(as_url(path)) as entries:
                for entry in entries:
                    # A file may be removed between the two calls.
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file():
                            found[entry.name] = entry.stat().st_size
            return found
        filesystem, key = _remote(path)
        details = filesystem.ls(key, detail=True)
    except FileNotFoundError:
        return {}
    return {basename(one["name"]): int(one["size"]) for one in details if one["type"] == "file"}


def read_bytes(path: PathLike) -> bytes:
    """Return the content of the file `path`."""
    if is_local(path):
        try:
            return _local_bytes(as_url(path))
        except OSError as error:
            # On NFS, ESTALE means that the file was replaced after it was opened; the new one can be read.
            if error.errno != errno.ESTALE:
                raise
            return _local_bytes(as_url(path))
    filesystem, key = _remote(path)
    return bytes(filesystem.cat_file(key))


def read_part(path: PathLike, start: int, end: int) -> bytes:
    """Return the bytes of the file `path` from position `start` to before `end`; fewer if the file ends earlier."""
    if is_local(path):
        with open(as_url(path), "rb") as file:
            file.seek(start)
            return file.read(end - start)
    filesystem, key = _remote(path)
    return bytes(filesystem.cat_file(key, start=start, end=end))


def read_text(path: PathLike) -> str:
    """Return the content of the UTF-8 file `path`."""
    return read_bytes(path).decode("utf-8")


def read_chunks(path: PathLike) -> Iterator[bytes]:
    """Yield the content of the file `path` in pieces of 16 MiB at most, so that a large file needs little memory."""
    if is_local(path):
        file: Any = open(as_url(path), "rb")  # noqa: SIM115  # closed below, as a remote file is
    else:
        filesystem, key = _remote(path)
        file = filesystem.open(key, "rb")
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def write_file(path: PathLike, chunks: Iterable[bytes | memoryview], *, synced: bool = True) -> None:
    """Write `chunks` in order into the file `path`; a local file is synced to the disk unless told otherwise.

    Readers can see the unfinished file. Write into a directory that has no readers yet, or use `write_atomic`.
    """
    if is_local(path):
        with open(as_url(path), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        return
    filesystem, key = _remote(path)
    with filesystem.open(key, "wb") as file:
        for chunk in chunks:
            file.write(chunk)


@contextlib.contextmanager
def opened_to_write(path: PathLike) -> Iterator[IO[bytes]]:
    """Open a file to write it in pieces; a local one is synced to the disk at the end. See `write_file`."""
    if is_local(path):
        with open(as_url(path), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        return
    filesystem, key = _remote(path)
    with filesystem.open(key, "wb") as file:
        yield file


def write_atomic(path: PathLike, data: bytes | Iterable[bytes], *, synced: bool = True) -> None:
    """Replace the content of the file `path` so that readers see either the old content or the new one.

    A local file is written under a temporary name, synced and renamed. An object store replaces an object atomically;
    for it the parts of `data` are collected in memory. A local file that is not `synced` may be lost in a power cut.
    Its writer does not wait for checkpoints that are written to the same disk.
    """
    if not is_local(path):
        filesystem, key = _remote(path)
        filesystem.pipe_file(key, data if isinstance(data, bytes) else b"".join(data))
        return
    with _temporary(path, [data] if isinstance(data, bytes) else data, synced=synced) as temporary:
        os.replace(temporary, as_url(path))
    if synced:
        sync_dir(parent(path))


def create(path: PathLike, data: bytes) -> bool:
    """Create the file or object `path` with its content; return False if it exists.

    If several processes call this at the same time, exactly one of them gets True. Raise NotImplementedError if an
    object store cannot create an object atomically.
    """
    if is_local(path):
        with _temporary(path, [data]) as temporary:
            try:
                os.link(temporary, as_url(path))
            except FileExistsError:
                return False
        sync_dir(parent(path))
        return True
    filesystem, key = _remote(path)
    if not _creates_exclusively(filesystem):
        raise NotImplementedError(f"{type(filesystem).__name__} has no exclusive creation")
    try:
        filesystem.pipe_file(key, data, mode="create")
    except FileExistsError:
        return False
    return True


def can_create(path: PathLike) -> bool:
    """Return whether `create` works for `path`."""
    return is_local(path) or _creates_exclusively(_remote(path)[0])


def commit_dir(temporary: PathLike, final: PathLike) -> None:
    """Rename the finished local directory `temporary` to `final`, which must not exist.

    Everything inside it is synced before the rename, and the new name after it. Even after a power cut, a directory
    named `final` is complete.
    """
    for folder, _, names in os.walk(as_url(temporary)):
        for name in names:
            _sync(os.path.join(folder, name))
        sync_dir(folder)
    os.rename(as_url(temporary), as_url(final))
    sync_dir(parent(final))


def sync_dir(path: PathLike) -> None:
    """Sync the local directory `path`, so that the names in it survive a power cut.

    Some file systems, such as FUSE and SMB, can sync files but not directories. Their error is ignored.
    """
    try:
        _sync(as_url(path))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def remove_tree(path: PathLike) -> None:
    """Remove the file or directory `path`, if it exists, with everything in it."""
    with contextlib.suppress(FileNotFoundError):
        if not is_local(path):
            filesystem, key = _remote(path)
            filesystem.rm(key, recursive=True)
        elif os.path.isdir(as_url(path)) and not os.path.islink(as_url(path)):
            shutil.rmtree(as_url(path))
        else:
            os.unlink(as_url(path))


@contextlib.contextmanager
def _temporary(path: PathLike, data: Iterable[bytes], *, synced: bool = True) -> Iterator[str]:
    """Write a local file beside `path`; give its path, and remove it if the body leaves it there."""
    final = as_url(path)
    name = f"{TEMPORARY_PREFIX}{basename(final)}-{os.getpid()}-{threading.get_ident()}"
    temporary = os.path.join(os.path.dirname(final), name)
    try:
        write_file(temporary, data, synced=synced)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _creates_exclusively(filesystem: Any) -> bool:
    kind = type(filesystem)
    put = getattr(kind, "_pipe_file", kind.pipe_file)
    # fsspec's generic implementation is not atomic: it checks whether the object exists and writes it afterwards.
    return "mode" in inspect.signature(put).parameters and put.__module__ not in _GENERIC


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _local_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _remote(path: PathLike) -> tuple[Any, str]:
    import fsspec.core

    url = as_url(path)
    try:
        filesystem, key = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InvalidValueError(f"{url} cannot be used: {reason(error)}.") from error
    # Discard cached directory listings, because they lack files that other processes have written since.
    filesystem.invalidate_cache()
    return filesystem, key
