"""Keras models from files, without running code that is in them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import keras

from torch_estimator import files
from torch_estimator.errors import InvalidValueError

_SAFE_SINCE = (3, 12)


def load_keras_model(path: str | os.PathLike[str], custom_objects: Mapping[str, Any] | None) -> Any:
    """Reads a file that ``model.save("name.keras")`` wrote.

    Raises:
        InvalidValueError: It is no such file, or holds code, which is never run.
    """
    url = files.as_url(path)
    if not url.endswith(".keras"):
        raise InvalidValueError(
            f"keras_model_path must name a .keras file, as model.save writes, but got {url!r}; others may hold code."
        )
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version < _SAFE_SINCE:
        raise InvalidValueError(
            f"keras_model_path needs Keras 3.12 or newer, whose safe mode is one, but this is {keras.__version__}; "
            "update it, or make the model in Python and give keras_model."
        )
    with tempfile.TemporaryDirectory(prefix="torch-estimator-keras-") as folder:
        local = os.path.join(folder, "model.keras")
        try:
            with open(local, "wb") as file:
                file.write(files.read_bytes(url))
        except OSError as error:
            raise InvalidValueError(f"{url} cannot be read: {files.reason(error)}.") from error
        try:
            return keras.saving.load_model(local, custom_objects=dict(custom_objects or {}), safe_mode=True)
        except Exception as error:
            raise InvalidValueError(
                f"{url} cannot be loaded as a Keras model ({type(error).__name__}: {files.reason(error)}); code in the "
                "file is not run, so give classes and functions of your own in custom_objects."
            ) from error
