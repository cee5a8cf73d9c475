"""The cache of compiled steps, kept from run to run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from torch_estimator import files
from torch_estimator.compile.ownership import changeable_by_others, is_own

logger = logging.getLogger("torch_estimator")

DIRECTORY_VARIABLE = "TORCH_ESTIMATOR_CACHE_DIR"

DIGESTS = "digests.json"
"""In each entry: the SHA-256 of every other file, by name."""

_MOST_STEPS = 64
_ABANDONED_SECS = 24 * 3600.0


class StepCache:
    """Folders by key, each complete or absent.

    They hold machine code that the training loads. So the cache is used only where no other user can change it, and an
    entry only where its files are what `keep` wrote: a power cut can leave an entry whose blocks were never written,
    and loading it ends the process with a signal. Where the cache cannot be used, nothing is found and nothing kept,
    and each run builds in a temporary directory for itself.

    Args:
        directory: Of all of them; by default ``$TORCH_ESTIMATOR_CACHE_DIR``, or ``torch-estimator`` in the user's
            cache directory.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        # Without links: a link could be changed between the check and the use.
        self._directory = Path(os.path.realpath(directory or _default_directory())) / "steps"
        self._warned = False

    def folder(self, key: str) -> Path | None:
        """Return the entry of a key; None where there is none. A damaged entry is removed."""
        folder = self._directory / key
        try:
            if not self._is_safe(self._directory) or not os.path.lexists(folder):
                return None
        except OSError:
            return None
        if not _is_whole(folder):
            logger.warning("The compiled step in %s is damaged or of another user; it is compiled again.", folder)
            self.remove(folder)
            return None
        with contextlib.suppress(OSError):
            # The step used last is the last to be removed.
            os.utime(folder)
        return folder

    def workplace(self) -> Path:
        """Return a new folder to build in, in the cache where that is possible; see `can_keep`."""
        if self._is_ready(self._directory):
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=".building-", dir=self._directory))
        return Path(tempfile.mkdtemp(prefix="torch-estimator-"))

    def can_keep(self, built: Path) -> bool:
        """Return whether `keep` can make an entry of a folder of `workplace`."""
        return built.parent == self._directory

    def reserve(self, key: str) -> BinaryIO | None:
        """Reserve a key for the process that builds its entry, until every copy of the returned file is closed.

        None where another process has reserved it. Where files cannot be locked, several processes may build the same.
        """
        import fcntl  # Windows has no such module.

        if not self._is_ready(self._directory):
            return _nothing()
        path = self._directory / f".{key}.lock"
        try:
            # Neither through a link nor truncated: the file may be anything.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return _nothing()
        file = open(descriptor, "rb")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Locks that have not been taken for a day are removed.
            os.utime(descriptor)
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            logger.debug("Compiled steps cannot be reserved in %s (%s).", self._directory, error.strerror)
        return file

    def of_machine(self, key: str) -> Path | None:
        """Return the path of the file that keeps what the compiler found out about a machine; None without a cache."""
        folder = self._directory.with_name("machine")
        return folder / f"{key}.json" if self._is_ready(folder) else None

    def keep(self, built: Path, key: str) -> Path:
        """Make a folder of `workplace` the entry of a key; return where it lies now."""
        folder = self._directory / key
        if not self.can_keep(built):
            return built
        try:
            digests = {one.name: _digest(one) for one in built.iterdir()}
            (built / DIGESTS).write_text(json.dumps(digests))
            for one in built.iterdir():
                # The compiler's files have the mode that the umask gives.
                one.chmod(0o600)
            files.commit_dir(built, folder)
        except OSError:
            # Another process has built the same, or the disk is full.
            existing = self.folder(key)
            if existing is None:
                return built
            shutil.rmtree(built, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._remove_oldest()
        return folder

    def remove(self, folder: Path) -> None:
        """Remove an entry."""
        # Also one that this user may rename but not empty, or only in part: what is left is no entry.
        gone = self._directory / f".removed-{os.getpid()}-{folder.name}"
        with contextlib.suppress(OSError):
            os.rename(folder, gone)
            _remove(gone)

    def _is_ready(self, directory: Path) -> bool:
        """Return whether a directory of the cache can be used, made where it is absent; warn once where it cannot."""
        try:
            _make_private(directory)
            return self._is_safe(directory)
        except OSError as error:
            if not self._warned:
                self._warned = True
                told = "Compiled steps are not kept for later runs: %s (%s); %s may name another directory."
                logger.info(told, error.strerror, directory, DIRECTORY_VARIABLE)
            return False

    def _is_safe(self, directory: Path) -> bool:
        part = changeable_by_others(directory)
        if part is not None and not self._warned:
            self._warned = True
            status = os.lstat(part)
            logger.warning(
                "Compiled steps in %s are not used, because other users can change %s (owner %d, mode %o): make it "
                "yours alone (chown, chmod go-w), or name another directory in %s; until then each run compiles for "
                "itself.",
                directory,
                part,
                status.st_uid,
                status.st_mode & 0o7777,
                DIRECTORY_VARIABLE,
            )
        return part is None

    def _remove_oldest(self) -> None:
        folders = [one for one in self._directory.iterdir() if not one.name.startswith(".")]
        # What a compilation that was killed has left.
        long_ago = time.time() - _ABANDONED_SECS
        abandoned = [one for one in self._directory.glob(".*") if _modified(one) < long_ago]
        for path in (*sorted(folders, key=_modified)[:-_MOST_STEPS], *abandoned):
            _remove(path)


def _make_private(directory: Path) -> None:
    """Make a directory and its parents where they are absent, for this user alone whatever the umask says."""
    for part in (*reversed(directory.parents), directory):
        if not part.exists():
            part.mkdir(mode=0o700, exist_ok=True)


def _is_whole(folder: Path) -> bool:
    """Return whether an entry is this user's, and each of its files what `StepCache.keep` wrote."""
    try:
        if not folder.is_dir() or not is_own(folder):
            return False
        digests = json.loads((folder / DIGESTS).read_text())
        found = list(folder.iterdir())
        return all(map(is_own, found)) and digests == {one.name: _digest(one) for one in found if one.name != DIGESTS}
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


def _nothing() -> BinaryIO:
    """Return what `StepCache.reserve` returns where nothing can be reserved, and nothing kept either."""
    return Path(os.devnull).open("rb")


def key_of(parts: Iterable[object]) -> str:
    """The key of a step, from all that it depends on."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def _default_directory() -> Path:
    if given := os.environ.get(DIRECTORY_VARIABLE):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "torch-estimator"
    except RuntimeError:
        # A user without a home directory; nothing can be found or made below this.
        return Path(os.devnull)


def _modified(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
