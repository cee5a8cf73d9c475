"""Which files a saved position belongs to: told by what they hold and are called, not by where they lie."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from torch_estimator import files
from torch_estimator.data.byte_files import ByteFile, open_byte_file
from torch_estimator.errors import DataError

_ENDS_BYTES = 4096
_MOST_KEPT = 16
_MOST_NAMED = 3


class FileIdentity(NamedTuple):
    """A file: its last name, its length, and a hash of its first and last 4 KiB."""

    name: str
    bytes: int
    ends: str


def identify(file: ByteFile | str) -> FileIdentity:
    """Returns the identity of a file, or of that at a path or URL.

    Raises:
        DataError: It cannot be read.
    """
    opened = open_byte_file(file, unpack=False) if isinstance(file, str) else file
    ends = [(0, min(_ENDS_BYTES, opened.size))]
    if opened.size > _ENDS_BYTES:
        ends.append((max(opened.size - _ENDS_BYTES, _ENDS_BYTES), opened.size))
    return FileIdentity(files.basename(opened.url), opened.size, _hash(b"".join(opened.read_many(ends))))


def file_version(url: str) -> Any:
    """Returns what changes when a file is written: JSON.

    Raises:
        DataError: The file cannot be looked at.
    """
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
    """Returns what a position in files depends on: JSON, and small also for very many files."""
    return {
        "count": len(identities),
        "first": [list(identity) for identity in identities[:_MOST_KEPT]],
        "hash": _hash(json.dumps(identities).encode()),
    }


def files_difference(saved: Any, own: dict[str, Any]) -> str:
    """Returns a clause that says how the files of a saved position differ from those of another one."""
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
    return f"one of the {count} files has changed, which is not one of the first {_MOST_KEPT}"


def _named(identities: Sequence[FileIdentity], count: int) -> str:
    names = ", ".join(identity.name for identity in identities[:_MOST_NAMED])
    more = f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""
    return f"{count} {'file' if count == 1 else 'files'} ({names}{more})"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]
