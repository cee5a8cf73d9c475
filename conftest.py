"""Settings of all tests, the package's own examples included."""

from __future__ import annotations

import os

# Keras chooses its backend when it is imported.
os.environ["KERAS_BACKEND"] = "torch"

# Some tests import onnxruntime themselves.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Compiling takes half of the time, and what is compiled runs somewhat slower.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
