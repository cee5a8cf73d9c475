"""What tells one training from another: a word in its model directory, for as long as it is not over."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from torch_estimator import files
from torch_estimator.errors import ClusterError

WORD = "the token of its model_dir"
"""What servers call the word in what they tell of their training."""

LAST_STEP = "last_step"
"""The same of the global step at which it ends, if that is known."""

_NAME = "parameter_servers.token"


class Token:
    """The word.

    Args:
        model_dir: Of the training.
        name: What the cluster calls this process.
        is_over: Whether the chief has told elsewhere that it has ended the training, to one that never read the word.
    """

    def __init__(self, model_dir: str, name: str, is_over: Callable[[], bool] = lambda: False) -> None:
        self._model_dir = model_dir
        self._path = files.join(model_dir, _NAME)
        self._name = name
        self._is_over = is_over
        self._word: str | None = None

    def known(self) -> str | None:
        """The one that is there, if any."""
        try:
            return files.read_text(self._path)
        except OSError:
            return None

    def make(self) -> str:
        """The one that an interrupted training has left, or a new one."""
        if files.exists(self._path):
            return files.read_text(self._path)
        token = uuid.uuid4().hex
        files.makedirs(self._model_dir)
        files.write_atomic(self._path, token.encode())
        return token

    def read(self) -> str:
        """The one that the chief has made.

        Raises:
            ClusterError: This process has another model directory than the chief.
        """
        try:
            self._word = files.read_text(self._path)
            return self._word
        except OSError as error:
            raise ClusterError(
                f"{self._name} does not see the chief's model_dir: in its {self._model_dir} there is no file that the "
                f"chief has written ({files.reason(error)}); give all of them one that they share."
            ) from error

    def is_there(self) -> bool:
        """Whether the word that was read still is the one of the directory, as far as that can be told."""
        try:
            return files.read_text(self._path) == self._word
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def is_gone(self) -> bool:
        """Whether the training of this process has ended."""
        return (self._word is not None and not self.is_there()) or self._is_over()

    def remove(self) -> None:
        """After the end of the training."""
        files.remove_tree(self._path)
