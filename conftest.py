"""Settings of all tests, the package's own examples included."""

from __future__ import annotations

import os

# Keras chooses its backend when it is imported.
os.environ["KERAS_BACKEND"] = "torch"
