"""Unfinished exports: kept while somebody writes them, removed once nobody can.

Whoever writes an export locks its temporary directory; a process that is killed loses its locks. Where a lock says
nothing, as on some network file systems, an export that has not changed for an hour counts as left over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from torch_estimator import files

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

TEMPORARY = "temp-"
OLD_SECS = 3600.0

# Names the running kernel: a lock tells about processes of the same kernel only, in containers or not.
_OWNER = ".owner"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


@contextlib.contextmanager
def owned(temporary: str) -> Iterator[None]:
    """Marks the local directory `temporary` as being written until the end of the block, however that comes."""
    kernel = _kernel()
    owner = os.path.join(temporary, _OWNER)
    with _locked(temporary) as locked:
        if locked and kernel:
            # Not before the lock is held: together they are the proof that remove_leftovers looks for.
            files.write_file(owner, [kernel])
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(owner)


def remove_leftovers(base: str, now: float) -> None:
    """Removes the unfinished exports in the local directory `base` that nobody writes any more.

    What cannot be looked at or removed stays: the export that is to come does not need it gone.

    Args:
        base: Directory of exports.
        now: The time in seconds.
    """
    for name in files.listdir(base):
        if name.startswith(TEMPORARY) and name.removeprefix(TEMPORARY).isdecimal():
            with contextlib.suppress(OSError):
                _remove_if_left(files.join(base, name), now)


def _remove_if_left(temporary: str, now: float) -> None:
    if os.path.islink(temporary) or not os.path.isdir(temporary):
        return
    with _locked(temporary) as locked:
        proven = locked and _owner(temporary) == _kernel()
        if proven or (locked is not False and now - _last_change(temporary) > OLD_SECS):
            files.remove_tree(temporary)


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[bool | None]:
    """Whether the lock of `directory` was free and is now held; None where there are no locks."""
    if fcntl is None:
        yield None
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked: bool | None = True
        except BlockingIOError:
            locked = False
        except OSError:
            locked = None
        yield locked
    finally:
        os.close(descriptor)


def _kernel() -> bytes:
    try:
        return files.read_bytes(_BOOT_ID).strip()
    except OSError:
        return b""


def _owner(temporary: str) -> bytes | None:
    try:
        return files.read_bytes(os.path.join(temporary, _OWNER))
    except OSError:
        return None


def _last_change(directory: str) -> float:
    """The latest time at which anything in `directory` was written."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names]
    folders = [folder for folder, _, _ in os.walk(directory)]
    return max(os.stat(path).st_mtime for path in [*paths, *folders])
