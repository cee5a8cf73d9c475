"""Local paths and fsspec URLs (``memory://``, ``s3://``, ``gs://``) behind one small set of functions.

Everything that touches a model directory goes through here. A path is a string, an `os.PathLike` or a URL;
functions that return a path return a string. System errors are left as they are (`OSError`), for callers who
know what was being done and can say it.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import shutil
import threading
from collections.abc import Iterable
from typing import Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError

PathLike = str | os.PathLike[str]

_GENERIC = ("fsspec.spec", "fsspec.asyn")

TEMPORARY_PREFIX = ".tmp-"
"""What names of unfinished files and directories begin with."""


def as_url(path: PathLike) -> str:
    """Returns `path` as a local path (``file://`` and ``~`` resolved) or a URL, without a trailing slash.

    Raises:
        InvalidTypeError: `path` is neither a string nor a path.
        InvalidValueError: `path` is empty.
    """
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
    """Whether `path` is on a local file system, where a rename is atomic."""
    return "://" not in as_url(path)


def join(path: PathLike, *parts: str) -> str:
    """Returns `parts` below `path`.

    >>> join("memory://runs", "census", "checkpoint")
    'memory://runs/census/checkpoint'
    """
    base = as_url(path)
    below = "/".join(part.strip("/") for part in parts)
    return f"{base}{below}" if base.endswith("/") else f"{base}/{below}"


def basename(path: PathLike) -> str:
    """Returns the last part of `path`."""
    return as_url(path).rpartition("/")[2]


def parent(path: PathLike) -> str:
    """Returns `path` without its last part."""
    url = as_url(path)
    if is_local(url):
        return os.path.dirname(url) or "."
    head, _, _ = url.rpartition("/")
    return f"{head}/" if head.endswith(":/") else head


def reason(error: BaseException) -> str:
    """Returns what went wrong in few words, without the path that `str(error)` repeats."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def exists(path: PathLike) -> bool:
    """Whether there is a file or a directory at `path`."""
    if is_local(path):
        return os.path.exists(as_url(path))
    filesystem, key = _remote(path)
    return bool(filesystem.exists(key))


def is_dir(path: PathLike) -> bool:
    """Whether there is a directory at `path`."""
    if is_local(path):
        return os.path.isdir(as_url(path))
    filesystem, key = _remote(path)
    return bool(filesystem.isdir(key))


def makedirs(path: PathLike) -> None:
    """Make the directory `path` and those above it where they are absent; local ones survive a power cut."""
    if is_local(path):
        absent = os.path.abspath(as_url(path))
        changed = []
        while not os.path.isdir(absent):
            absent = os.path.dirname(absent)
            changed.append(absent)
        os.makedirs(as_url(path), exist_ok=True)
        for folder in reversed(changed):
            # The new directories are there. Not everybody may open the one above, and not every file system syncs it.
            with contextlib.suppress(OSError):
                sync_dir(folder)
        return
    filesystem, key = _remote(path)
    filesystem.makedirs(key, exist_ok=True)


def listdir(path: PathLike) -> list[str]:
    """Returns the sorted names of what is in the directory `path`; nothing where it does not exist."""
    try:
        if is_local(path):
            return sorted(os.listdir(as_url(path)))
        filesystem, key = _remote(path)
        entries = filesystem.ls(key, detail=False)
    except FileNotFoundError:
        return []
    own = str(key).strip("/")
    return sorted(entry.rstrip("/").rpartition("/")[2] for entry in entries if entry.strip("/") != own)


def sizes(path: PathLike) -> dict[str, int]:
    """Returns the bytes of each file in the directory `path` by name; nothing where it does not exist."""
    try:
        if is_local(path):
            with os.scandir(as_url(path)) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        filesystem, key = _remote(path)
        details = filesystem.ls(key, detail=True)
    except FileNotFoundError:
        return {}
    return {basename(one["name"]): int(one["size"]) for one in details if one["type"] == "file"}


def read_bytes(path: PathLike) -> bytes:
    """Returns the content of the file `path`."""
    if is_local(path):
        try:
            return _local_bytes(as_url(path))
        except OSError as error:
            # On a network file system it was replaced after it was opened.
            if error.errno != errno.ESTALE:
                raise
            return _local_bytes(as_url(path))
    filesystem, key = _remote(path)
    return bytes(filesystem.cat_file(key))


def read_text(path: PathLike) -> str:
    """Returns the content of the UTF-8 file `path`."""
    return read_bytes(path).decode("utf-8")


def write_file(path: PathLike, chunks: Iterable[bytes | memoryview]) -> None:
    """Writes `chunks` one after the other into the file `path` and syncs it to the disk, if it is local.

    Readers may see the file grow: write it into a directory nobody looks into yet, or use `write_atomic`.
    """
    if is_local(path):
        with open(as_url(path), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return
    filesystem, key = _remote(path)
    with filesystem.open(key, "wb") as file:
        for chunk in chunks:
            file.write(chunk)


def write_atomic(path: PathLike, data: bytes) -> None:
    """Replaces the content of the file `path`; a reader sees all of the old or all of the new.

    Local files are written beside, synced and renamed. Object stores put a whole object at once.
    """
    if not is_local(path):
        filesystem, key = _remote(path)
        filesystem.pipe_file(key, data)
        return
    final = as_url(path)
    name = f"{TEMPORARY_PREFIX}{basename(final)}-{os.getpid()}-{threading.get_ident()}"
    temporary = os.path.join(os.path.dirname(final), name)
    try:
        write_file(temporary, [data])
        os.replace(temporary, final)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_dir(parent(final))


def create(path: PathLike, data: bytes) -> bool:
    """Write the new object `path` on a remote file system; return False where there is one, also one of this moment.

    Raises:
        NotImplementedError: The file system cannot do this at one stroke.
    """
    filesystem, key = _remote(path)
    kind = type(filesystem)
    put = getattr(kind, "_pipe_file", kind.pipe_file)
    # What fsspec itself has for all file systems looks first and writes then.
    if "mode" not in inspect.signature(put).parameters or put.__module__ in _GENERIC:
        raise NotImplementedError(f"{kind.__name__} has no exclusive creation")
    try:
        filesystem.pipe_file(key, data, mode="create")
    except FileExistsError:
        return False
    return True


def commit_dir(temporary: PathLike, final: PathLike) -> None:
    """Give the finished local directory `temporary` its `final` name, which must be free.

    Syncs every file and directory in it first, and the name afterwards: a directory of that name is whole, also after a
    power cut.
    """
    for folder, _, names in os.walk(as_url(temporary)):
        for name in names:
            _sync(os.path.join(folder, name))
        sync_dir(folder)
    os.rename(as_url(temporary), as_url(final))
    sync_dir(parent(final))


def sync_dir(path: PathLike) -> None:
    """Make the names in the local directory `path` survive a power cut, where its file system can sync directories."""
    try:
        _sync(as_url(path))
    except OSError as error:
        # So say FUSE, SMB and other file systems that sync files only.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def remove_tree(path: PathLike) -> None:
    """Removes the file `path`, or the directory with all that is in it; nothing where it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        if not is_local(path):
            filesystem, key = _remote(path)
            filesystem.rm(key, recursive=True)
        elif os.path.isdir(as_url(path)) and not os.path.islink(as_url(path)):
            shutil.rmtree(as_url(path))
        else:
            os.unlink(as_url(path))


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
    # Other processes write there too; a listing kept from an earlier call would hide their files.
    filesystem.invalidate_cache()
    return filesystem, key
