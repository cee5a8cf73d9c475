"""Lease of a model directory: a lock that lets only one training at a time write into the directory.

Two trainings in one directory, as when a scheduler starts a job twice, would remove each other's unfinished checkpoints
and export different models. The process that saves checkpoints takes the lease; evaluators and other readers do not
need it. ``locks.py`` says how a lease survives kills, forks and object stores.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from torch_estimator import files
from torch_estimator.errors import ModelDirInUseError
from torch_estimator.runs.locks import Check, Holder, held

logger = logging.getLogger("torch_estimator")

NAME = "training.lease"


@contextlib.contextmanager
def leased(model_dir: str) -> Iterator[Check | None]:
    """Hold the lease of a model directory while the body runs.

    On an object store the lease can be lost, so a function to call before each save is yielded; else None. If the file
    system supports neither locks nor exclusive creation, a warning is logged and the body runs without a lease.

    Raise a ModelDirInUseError if another training holds the lease.
    """

    def in_use(holder: Holder) -> ModelDirInUseError:
        return ModelDirInUseError(
            f"model_dir {model_dir} is in use: {holder} trains in it; let that end first, end it, or use another "
            "model_dir."
        )

    with contextlib.ExitStack() as stack:
        check = None
        try:
            files.makedirs(model_dir)
            check = stack.enter_context(held(files.join(model_dir, NAME), in_use))
        except (OSError, NotImplementedError) as error:
            # A model_dir that is a file is an error that follows.
            if not isinstance(error, FileExistsError):
                logger.warning(
                    "Another training in model_dir %s at the same time would not be noticed: it cannot be leased (%s).",
                    model_dir,
                    files.reason(error),
                )
        yield check
