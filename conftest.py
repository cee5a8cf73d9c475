"""Settings of all tests, the package's own examples included."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Keras chooses its backend when it is imported.
os.environ["KERAS_BACKEND"] = "torch"

# Compiling takes half of the time, and what is compiled runs somewhat slower.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
# Compiled steps of tests, for this run and for later ones.
os.environ.setdefault(
    "TORCH_ESTIMATOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torch-estimator-tests-{os.getuid()}")
)
