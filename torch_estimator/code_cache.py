"""Cache of machine code on disk, for later runs: compiled steps, their precompiled headers, the parser of TFRecords.

An entry is a folder of machine code that a program loads, so the cache must be protected as installed programs are:

- It is used only if no other user can change it. Otherwise another user could run code in this user's name.
- An entry is used only if its files have the digests that `CodeCache.keep` wrote. After a power cut an entry may have
  blocks that were never written, and loading it would end the process with a signal.

If the cache cannot be used, `find` finds nothing and `keep` keeps nothing: each run compiles in a temporary directory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from torch_estimator import files
from torch_estimator.runs.locks import FileLock

logger = logging.getLogger("torch_estimator")

DIRECTORY_VARIABLE = "TORCH_ESTIMATOR_CACHE_DIR"
"""Environment variable that names the directory of the cache."""

DIGESTS = "digests.json"
"""File in each entry: the SHA-256 of every other file, by name."""

# Lines of /proc/cpuinfo that say what a processor can do, on x86, ARM and MIPS.
_CPU_FACTS = ("model name", "flags", "Features", "CPU part", "cpu model")
_ABANDONED_SECS = 24 * 3600.0


class CodeCache:
    """Cache directory with one folder (an "entry") per cache key. Each entry is complete or absent.

    The directory is by default ``$TORCH_ESTIMATOR_CACHE_DIR``, or ``torch-estimator`` in the user's cache directory;
    the entries are in its folder `content`. Above `most` entries the least recently used ones are removed. `what` is
    the name of an entry in log messages.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        content: str = "steps",
        most: int = 64,
        what: str = "step",
    ) -> None:
        # Resolve symbolic links once, because a link could be changed between the check and the use.
        self.base = Path(os.path.realpath(directory or _default_directory()))
        self._directory = self.base / content
        self._most = most
        self._what = what
        self._has_warned = False

    def find(self, key: str) -> Path | None:
        """Return the folder of a key, or None if the cache has no such entry. Remove a damaged entry."""
        folder = self._directory / key
        try:
            if not self._is_safe(self._directory) or not os.path.lexists(folder):
                return None
        except OSError:
            return None
        if not _is_intact(folder):
            message = "The compiled %s in %s is damaged or of another user; it is compiled again."
            logger.warning(message, self._what, folder)
            self.remove(folder)
            return None
        with contextlib.suppress(OSError):
            # Set the time of the last use. The least recently used entries are removed first.
            os.utime(folder)
        return folder

    def make_build_folder(self, key: str | None = None) -> Path:
        """Create a folder to compile in, inside the cache if possible, so that `keep` can rename the folder.

        If the compiler is killed, the next `reserve` of the key, which the caller has reserved, removes the folder.
        Without a key it is removed after a day.
        """
        if self._is_ready(self._directory):
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=_building(key), dir=self._directory))
        return Path(tempfile.mkdtemp(prefix="torch-estimator-"))

    def can_keep(self, built: Path) -> bool:
        """Return whether a folder of `make_build_folder` is inside the cache, so that `keep` can rename the folder."""
        return built.parent == self._directory

    def reserve(self, key: str) -> BinaryIO | None:
        """Lock a key, so that no other process compiles the same step; return None if another process has locked it.

        Remove what a process that was killed has left of the same step. The locked file that is returned reserves the
        key until every copy of it is closed, also in forked processes. If files cannot be locked here, it has no lock:
        then several processes may build the same entry.
        """
        if not self._is_ready(self._directory):
            return _unlocked_file()
        path = self._directory / f".{key}.lock"
        try:
            # Forked processes hold the lock of a detached descriptor, too.
            file = open(FileLock(str(path), mode=0o600).detach(), "rb")  # noqa: SIM115
        except BlockingIOError:
            return None
        except (OSError, NotImplementedError) as error:
            logger.debug("Compiled steps cannot be reserved in %s (%s).", self._directory, error)
            return _unlocked_file()
        # Update the time of the file, because lock files that are older than a day are removed.
        os.utime(file.fileno())
        # Only the process with the lock builds this step, so nobody uses these folders.
        for left in self._directory.glob(f"{_building(key)}*"):
            _remove(left)
        return file

    def keep(self, built: Path, key: str) -> Path:
        """Rename a finished folder of `make_build_folder` to the entry of a key, and return the new path.

        If that is impossible, the folder stays where it is, and its path is returned.
        """
        folder = self._directory / key
        if not self.can_keep(built):
            return built
        try:
            digests = {one.name: _digest(one) for one in built.iterdir()}
            (built / DIGESTS).write_text(json.dumps(digests))
            for one in built.iterdir():
                # Let only this user write. The umask may have let other users write to the compiler's files.
                one.chmod(0o600)
            files.commit_dir(built, folder)
        except OSError:
            # Another process has made the same entry, or the disk is full.
            existing = self.find(key)
            if existing is None:
                return built
            shutil.rmtree(built, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._remove_oldest()
        return folder

    def remove(self, folder: Path) -> None:
        """Remove an entry."""
        # Rename the entry first, so that it is gone at once even if this user may not delete all of its files.
        gone = self._directory / f".removed-{os.getpid()}-{folder.name}"
        with contextlib.suppress(OSError):
            os.rename(folder, gone)
            _remove(gone)

    def refuse(self, key: str) -> None:
        """Remove the entry of a key, and make `is_refused` true of it for a day."""
        if self._is_ready(self._directory):
            self.remove(self._directory / key)
            with contextlib.suppress(OSError):
                (self._directory / f".{key}.refused").touch()

    def is_refused(self, key: str) -> bool:
        """Return whether the compiled step of a key was found to compute something else than Python."""
        return (self._directory / f".{key}.refused").exists()

    def _is_ready(self, directory: Path) -> bool:
        """Create a directory of the cache if it is absent. Return whether the directory exists and is safe to use."""
        try:
            _make_private(directory)
            return self._is_safe(directory)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                message = "Compiled %ss are not kept for later runs: %s (%s); %s may name another directory."
                logger.info(message, self._what, error.strerror, directory, DIRECTORY_VARIABLE)
            return False

    def _is_safe(self, directory: Path) -> bool:
        """Return True if no other user can change the content of a directory. Otherwise warn once and return False."""
        part = changeable_by_others(directory)
        if part is not None and not self._has_warned:
            self._has_warned = True
            status = os.lstat(part)
            logger.warning(
                "Compiled %ss in %s are not used, because other users can change %s (owner %d, mode %o): make it "
                "yours alone (chown, chmod go-w), or name another directory in %s; until then each run compiles for "
                "itself.",
                self._what,
                directory,
                part,
                status.st_uid,
                status.st_mode & 0o7777,
                DIRECTORY_VARIABLE,
            )
        return part is None

    def _remove_oldest(self) -> None:
        """Remove the least recently used entries until `most` remain, and temporary files that are older than a day."""
        folders = [one for one in self._directory.iterdir() if not one.name.startswith(".")]
        long_ago = time.time() - _ABANDONED_SECS
        abandoned = [one for one in self._directory.glob(".*") if _modified(one) < long_ago]
        for path in (*sorted(folders, key=_modified)[: -self._most], *abandoned):
            _remove(path)


def entry_key(parts: Iterable[object]) -> str:
    """Return a key of the cache: a hash of the texts of everything that its entry depends on."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def processor() -> str:
    """Return the processor's model and instruction sets, as reported by the operating system."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.partition(":")[0].strip() in _CPU_FACTS}))


def compiler_version(command: Sequence[str]) -> str:
    """Return what a compiler says of its version; empty if it cannot be run."""
    try:
        return subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def changeable_by_others(directory: Path) -> Path | None:
    """Return the first of `directory` and its parents that lets another user change its content; None if none does.

    The directory must belong to this user, and its parents to this user or root. None of them may be writable by other
    users. A parent with the sticky bit, such as `/tmp`, may be writable, because a user can rename only their own files
    there. The directory is absolute and without symbolic links, because the target of a link could be changed later.
    Raise OSError if it is no directory, or if its parents may not be searched.
    """
    user = os.geteuid()
    # A user namespace that does not map root shows another owner for root's directories: the owner of "/".
    trusted = {user, 0, os.lstat("/").st_uid}
    # Check from the root downwards. If no other user can change a directory, nobody can replace the directory below.
    for part in (*reversed(directory.parents), directory):
        status = os.lstat(part)
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(part))
        is_last = part == directory
        is_owned = status.st_uid == user if is_last else status.st_uid in trusted
        is_guarded = not _is_writable_by_others(status) or (not is_last and bool(status.st_mode & stat.S_ISVTX))
        if not (stat.S_ISDIR(status.st_mode) and is_owned and is_guarded):
            return part
    return None


def _building(key: str | None) -> str:
    """Return how the name of a folder begins in which the step of a key is built."""
    return f".building-{key}-" if key is not None else ".building-"


def _is_private(path: Path) -> bool:
    """Return whether a path belongs to this user, is not a symbolic link, and is not writable by other users."""
    status = os.lstat(path)
    return not stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid() and not _is_writable_by_others(status)


def _is_writable_by_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid)


def _is_private_group(number: int) -> bool:
    """Return whether a group has this user as its only member.

    On systems where each user has a group of the same name, the umask lets the group write (002).
    """
    import grp  # Windows has neither grp nor pwd.
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return user.pw_gid == number and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _make_private(directory: Path) -> None:
    """Create a directory and its missing parents with mode 0700, so that only this user can access them."""
    for part in (*reversed(directory.parents), directory):
        if not part.exists():
            part.mkdir(mode=0o700, exist_ok=True)


def _is_intact(folder: Path) -> bool:
    """Return whether a cache entry belongs to this user and has exactly the files that `CodeCache.keep` wrote."""
    try:
        if not folder.is_dir() or not _is_private(folder):
            return False
        digests = json.loads((folder / DIGESTS).read_text())
        found = list(folder.iterdir())
        return all(map(_is_private, found)) and digests == {
            one.name: _digest(one) for one in found if one.name != DIGESTS
        }
    except (OSError, ValueError, RecursionError):
        return False


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _unlocked_file() -> BinaryIO:
    """Return an open file without a lock, for directories and file systems in which files cannot be locked."""
    return Path(os.devnull).open("rb")


def _default_directory() -> Path:
    if given := os.environ.get(DIRECTORY_VARIABLE):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "torch-estimator"
    except RuntimeError:
        # This user has no home directory. Return a path below which nothing exists or can be created.
        return Path(os.devnull)


def _modified(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
