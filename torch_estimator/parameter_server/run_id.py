"""Run id: identifies one training with parameter servers.

The chief draws it at random when a training begins, and keeps it in a file of the model directory until the training is
over. A chief that is restarted before that finds the file, and so continues the same training. Workers read the run id
from the file, which also shows that they have the same model directory as the chief.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable

from torch_estimator import files
from torch_estimator.errors import ClusterError

LAST_STEP = "last_step"
"""Key of the global step at which training ends, in the reply to HELLO."""

MODEL_DIR = "model_dir"
"""Key of the chief's model directory, among the properties that it sends to each server."""

_FILE = "parameter_servers.token"


class RunIdFile:
    """The file in the model directory that holds the run id of the current training.

    Args:
        model_dir: Directory of the job.
        name: Name of this process in the cluster, for messages.
        is_over: Returns whether the chief has announced in another way that training is over. A process that has never
            read the run id depends on it.
    """

    def __init__(self, model_dir: str, name: str, is_over: Callable[[], bool] = lambda: False) -> None:
        self._model_dir = model_dir
        self._path = files.join(model_dir, _FILE)
        self._name = name
        self._is_over = is_over
        self._read: str | None = None

    def read_if_there(self) -> int | None:
        """Return the run id in the file; None if the file cannot be read."""
        try:
            return _number(files.read_text(self._path))
        except OSError:
            return None

    def read_or_create(self) -> int:
        """As the chief, return the run id of an interrupted training, or write a new run id and return it."""
        if files.exists(self._path):
            return _number(files.read_text(self._path))
        text = uuid.uuid4().hex
        files.makedirs(self._model_dir)
        files.write_atomic(self._path, text.encode())
        return _number(text)

    def read(self) -> int:
        """As a worker, return the run id that the chief has written.

        Raises:
            ClusterError: This process has another model directory than the chief.
        """
        try:
            self._read = files.read_text(self._path)
        except OSError as error:
            raise ClusterError(
                f"{self._name} does not see the chief's model_dir: in its {self._model_dir} there is no file that the "
                f"chief has written ({files.reason(error)}); give all of them one that they share."
            ) from error
        return _number(self._read)

    def is_training_over(self) -> bool:
        """Return whether this process's training is over: its run id is no longer in the file, or `is_over` says so."""
        return (self._read is not None and not self._is_there()) or self._is_over()

    def remove(self) -> None:
        """As the chief, delete the file when the training is over."""
        files.remove_tree(self._path)

    def _is_there(self) -> bool:
        try:
            return files.read_text(self._path) == self._read
        except FileNotFoundError:
            return False
        except OSError:
            # An error of the file system does not mean that the training is over.
            return True


def _number(text: str) -> int:
    """Hash the text in the run id file to the run id in messages: a number of 64 bits, never 0."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) or 1
