"""Directories of exports: their names, how they are written, and how unfinished ones are removed.

An export is named by the time at which it is written, in seconds since 1970, with ten digits. On a local file system an
export is written into ``temp-<name>`` and renamed when it is complete. In an object store, which cannot rename, the
signatures are uploaded last: a directory without signatures is not an export.

A writer that is killed leaves an unfinished directory behind. The next writer removes it, but must not remove a
directory that another process is still writing. Each writer therefore holds a lock on its directory, which the kernel
releases when the process dies. On network file systems the lock may not be visible to other machines. There, an
unfinished directory is removed if it has not changed for an hour.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator

from torch_estimator import files
from torch_estimator.errors import ExportError
from torch_estimator.export.signatures import SIGNATURES_FILE
from torch_estimator.runs.locks import FileLock, kernel

OLD_SECS = 3600.0
_EMPTY_SECS = 10.0
# Another writer locks a directory for a moment, to see whether it is abandoned.
_LOOK_SECS = 1.0

_NAME = re.compile(r"[0-9]{10}")
_TEMPORARY = "temp-"
_MOST_NAMES_TRIED = 10

# Name of a file with the id of the kernel on which the writer runs. All containers on a machine share one kernel.
# A free lock proves that the writer is dead only if the writer ran on the same kernel.
OWNER = ".owner"


def export_names(export_dir_base: files.PathLike) -> list[str]:
    """Return the names of the exports in a directory, the oldest first."""
    # Strip slashes, because some object stores list a directory as 'name/'.
    names = (name.strip("/") for name in files.listdir(export_dir_base))
    return sorted(name for name in names if _NAME.fullmatch(name))


@contextlib.contextmanager
def new_export(base: str, clock: Callable[[], float]) -> Iterator[tuple[str, str]]:
    """Create an export: yield a local directory to write into, and the path that the finished export will have.

    The export exists after the block, or not at all if the block raises. `clock` returns the time in seconds since
    1970.
    """
    files.makedirs(base)
    if not files.is_local(base):
        final = _free_name(base, clock, lambda final: not files.exists(final))
        with tempfile.TemporaryDirectory(prefix="torch-estimator-export-") as local:
            yield local, final
            _upload(local, final)
        return
    remove_leftovers(base, clock())
    final = _free_name(base, clock, _claim)
    temporary = _temporary(final)
    try:
        with owned(temporary):
            yield temporary, final
        files.commit_dir(temporary, final)
    except BaseException:
        files.remove_tree(temporary)
        raise


@contextlib.contextmanager
def owned(temporary: str) -> Iterator[None]:
    """Mark a local directory as being written by this process until the end of the ``with`` block."""
    owner = os.path.join(temporary, OWNER)
    with _locked(temporary, wait_secs=_LOOK_SECS) as lock:
        if lock is not None and kernel():
            # Write the file only after locking. A directory that has this file but no lock counts as abandoned.
            # After a power cut the kernel is another one, so that the file need not survive that.
            files.write_file(owner, [kernel().encode()], synced=False)
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(owner)


def remove_leftovers(base: str, now: float) -> None:
    """Remove the unfinished exports that dead processes left in a local directory.

    Errors are ignored, since a leftover directory does not prevent a new export. `now` is in seconds since 1970.
    """
    for name in files.listdir(base):
        if name.startswith(_TEMPORARY) and name.removeprefix(_TEMPORARY).isdecimal():
            with contextlib.suppress(OSError):
                _remove_if_abandoned(files.join(base, name), now)


def _free_name(base: str, clock: Callable[[], float], is_free: Callable[[str], bool]) -> str:
    """Return a free path for a new export, named by the current second, or by a later second if the path is taken.

    The name is always later than the name of the newest export, so that names sort in the order of writing.
    """
    first = max([int(clock()), *(int(name) + 1 for name in export_names(base)[-1:])])
    for second in range(first, first + _MOST_NAMES_TRIED):
        final = files.join(base, str(second))
        if is_free(final):
            return final
    raise ExportError(
        f"no free name for an export in {base}: {first} to {first + _MOST_NAMES_TRIED - 1} are taken; "
        f"remove what is left of unfinished exports ({_TEMPORARY}…) or try again."
    )


def _claim(final: str) -> bool:
    """Reserve the name of a local export by creating its temporary directory. Return whether the name was free.

    If several processes choose the same name, mkdir succeeds in only one of them.
    """
    if files.exists(final):
        return False
    try:
        os.mkdir(_temporary(final))
    except FileExistsError:
        return False
    if files.exists(final):
        # Give the name up, because another process completed an export of that name between the two checks.
        os.rmdir(_temporary(final))
        return False
    return True


def _temporary(final: str) -> str:
    return files.join(files.parent(final), _TEMPORARY + files.basename(final))


def _upload(local: str, final: str) -> None:
    """Upload the files of an export to an object store. The signatures come last, since they complete the export."""
    names = [
        os.path.relpath(os.path.join(folder, name), local) for folder, _, found in os.walk(local) for name in found
    ]
    try:
        for name in sorted(names, key=lambda name: (name == SIGNATURES_FILE, name)):
            target = files.join(final, *name.split(os.sep))
            files.makedirs(files.parent(target))
            with open(os.path.join(local, name), "rb") as file:
                files.write_file(target, iter(lambda file=file: file.read(2**24), b""))  # type: ignore[misc]
    except BaseException:
        files.remove_tree(final)
        raise


def _remove_if_abandoned(temporary: str, now: float) -> None:
    if os.path.islink(temporary) or not os.path.isdir(temporary):
        return
    with _locked(temporary) as lock:
        writer_died_here = lock is not None and _owner(temporary) == kernel().encode()
        # A writer puts its file into a new directory at once, unless it is killed before.
        old_secs = OLD_SECS if os.listdir(temporary) else _EMPTY_SECS
        if writer_died_here or now - _last_change(temporary) > old_secs:
            files.remove_tree(temporary)


def _locked(directory: str, wait_secs: float = 0.0) -> contextlib.AbstractContextManager[FileLock | None]:
    """Lock a directory for the ``with`` block, which gets None where there are no locks.

    Raise a BlockingIOError if another process is writing into the directory.
    """
    try:
        return FileLock(directory, directory=True, wait_secs=wait_secs)
    except NotImplementedError:
        return contextlib.nullcontext()


def _owner(temporary: str) -> bytes | None:
    """Return the boot id that the writer of a directory recorded there, or None if there is none."""
    try:
        return files.read_bytes(os.path.join(temporary, OWNER))
    except OSError:
        return None


def _last_change(directory: str) -> float:
    """Return the latest modification time of a directory and everything in it, in seconds since 1970."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names]
    folders = [folder for folder, _, _ in os.walk(directory)]
    return max(os.stat(path).st_mtime for path in [*paths, *folders])
