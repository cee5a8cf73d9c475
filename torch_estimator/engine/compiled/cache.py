"""Where compiled steps are kept from run to run."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

logger = logging.getLogger("torch_estimator")

DIRECTORY_VARIABLE = "TORCH_ESTIMATOR_CACHE_DIR"

_MOST_STEPS = 64
_ABANDONED_SECS = 24 * 3600.0


class StepCache:
    """Folders by key, each complete or absent.

    They hold machine code, so the directory has to be the user's own: one that others may write to is not used. Where
    the directory cannot be read nothing is found, and where nothing can be written to it nothing is kept.

    Args:
        directory: Of all of them; by default ``$TORCH_ESTIMATOR_CACHE_DIR``, or ``torch-estimator`` in the user's
            cache directory.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._directory = Path(directory or _default_directory()) / "steps"
        self._told = False

    def folder(self, key: str) -> Path | None:
        """Where the step of a key lies; None where it is not there."""
        folder = self._directory / key
        try:
            if not folder.is_dir() or not self._is_ours():
                return None
        except OSError:
            return None
        with contextlib.suppress(OSError):
            # The step used last is the last to be removed.
            os.utime(folder)
        return folder

    def workplace(self) -> Path:
        """A new folder to build in, beside the others where that is possible; see `can_keep`."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._is_ours():
                return Path(tempfile.mkdtemp(prefix=".building-", dir=self._directory))
        except OSError as error:
            if not self._told:
                self._told = True
                told = "Compiled steps are not kept for later runs: %s (%s); %s may name another directory."
                logger.info(told, error.strerror, self._directory, DIRECTORY_VARIABLE)
        return Path(tempfile.mkdtemp(prefix="torch-estimator-"))

    def can_keep(self, built: Path) -> bool:
        """Whether a folder of `workplace` lies where `keep` gives it its place."""
        return built.parent == self._directory

    def reserve(self, key: str) -> BinaryIO | None:
        """Says to all processes that the step of a key is being built, until the file is closed by all who have it.

        None where somebody has said so already. On file systems without locks several may build the same.
        """
        import fcntl  # which Windows has not

        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = (self._directory / f".{key}.lock").open("wb")
        except OSError:
            # Nothing can be kept here either.
            return Path(os.devnull).open("rb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            logger.debug("Compiled steps cannot be reserved in %s (%s).", self._directory, error.strerror)
        return file

    def of_machine(self) -> Path | None:
        """Where what the compiler finds out about this machine is kept; None where nothing can be."""
        folder = self._directory.with_name("machine")
        with contextlib.suppress(OSError):
            if self._directory.is_dir() and self._is_ours():
                folder.mkdir(mode=0o700, exist_ok=True)
                return folder
        return None

    def keep(self, built: Path, key: str) -> Path:
        """Gives a folder that was built its place; returns where it lies now."""
        folder = self._directory / key
        if not self.can_keep(built):
            return built
        try:
            os.rename(built, folder)
        except OSError:
            # Somebody else built the same.
            if not folder.is_dir():
                return built
            shutil.rmtree(built, ignore_errors=True)
        self._remove_oldest()
        return folder

    def remove(self, folder: Path) -> None:
        """Forgets a step."""
        shutil.rmtree(folder, ignore_errors=True)

    def _is_ours(self) -> bool:
        status = os.stat(self._directory)
        if status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return True
        logger.warning(
            "Compiled steps in %s are not used, because others may write there; make it yours alone (chmod 700), or "
            "set %s.",
            self._directory,
            DIRECTORY_VARIABLE,
        )
        return False

    def _remove_oldest(self) -> None:
        folders = [one for one in self._directory.iterdir() if not one.name.startswith(".")]
        # What a compilation that was killed has left.
        long_ago = time.time() - _ABANDONED_SECS
        abandoned = [one for one in self._directory.glob(".*") if _modified(one) < long_ago]
        for path in (*sorted(folders, key=_modified)[:-_MOST_STEPS], *abandoned):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


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
