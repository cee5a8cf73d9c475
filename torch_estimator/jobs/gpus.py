"""GPUs of this machine: each is given to one role at a time, by a lock on a file that all users share."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Mapping

from torch_estimator.errors import InvalidValueError
from torch_estimator.runs.locks import FileLock

_DEVICE = re.compile(r"nvidia(\d+)")
_POLL_SECS = 1.0
VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_here(environ: Mapping[str, str] = os.environ, devices: str = "/dev") -> list[str]:
    """Return the numbers of the GPUs that this process may use."""
    if VISIBLE in environ:
        return [one.strip() for one in environ[VISIBLE].split(",") if one.strip()]
    found = (_DEVICE.fullmatch(name) for name in os.listdir(devices))
    return sorted((match[1] for match in found if match), key=int)


class Gpus:
    """The GPUs that a job has taken. They are free again when it calls `release`, or when its process has ended."""

    def __init__(self, here: list[str], folder: str | None = None) -> None:
        self._here = here
        self._folder = os.path.join(tempfile.gettempdir(), "torch-estimator-gpus") if folder is None else folder
        self._locks: dict[str, FileLock] = {}

    def take(self, count: int) -> list[str]:
        """Take a number of GPUs, all at once; wait until they are free."""
        if count > len(self._here):
            raise InvalidValueError(
                f"the job asks for {count} GPUs, and this machine has {len(self._here)}; take another machine type."
            )
        while len(self._locks) < count and not self.try_to_take(count):
            time.sleep(_POLL_SECS)
        return list(self._locks)

    def release(self) -> None:
        """Let others have the GPUs."""
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()

    def try_to_take(self, count: int) -> list[str]:
        """Take a number of GPUs, or none if fewer are free now."""
        # Everybody may write there, and nobody may remove the files of others.
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder)
            os.chmod(self._folder, 0o1777)
        for number in self._here:
            if len(self._locks) < count:
                with contextlib.suppress(BlockingIOError):
                    self._locks[number] = FileLock(os.path.join(self._folder, re.sub(r"\W", "_", number)))
        if len(self._locks) < count:
            # Two jobs that hold a part each would wait for each other.
            self.release()
        return list(self._locks)
