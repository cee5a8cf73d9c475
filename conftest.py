"""Settings of all tests, the package's own examples included."""

from __future__ import annotations

import os
from typing import Any

import pytest

# Keras chooses its backend when it is imported.
os.environ["KERAS_BACKEND"] = "torch"

# Some tests import onnxruntime themselves.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@pytest.fixture(scope="session")
def doctest_namespace() -> dict[str, Any]:
    """Return the names that examples in docstrings use without importing them; docs/reference/index.md lists them."""
    import numpy as np
    import torch

    import torch_estimator as te

    return {"fc": te.feature_column, "np": np, "te": te, "torch": torch}
