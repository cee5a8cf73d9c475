"""Write the arguments of tf.estimator's premade classes, and their defaults, to `tensorflow_defaults.json`.

It needs an environment of its own: ``pip install tensorflow-cpu==2.15.1``. From the repository's root::

    python -m tests.models.tensorflow_defaults
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).with_suffix(".json")
CLASSES = [
    *(f"DNN{kind}" for kind in ("Classifier", "Regressor", "Estimator")),
    *(f"Linear{kind}" for kind in ("Classifier", "Regressor", "Estimator")),
    *(f"DNNLinearCombined{kind}" for kind in ("Classifier", "Regressor", "Estimator")),
    *(f"Baseline{kind}" for kind in ("Classifier", "Regressor", "Estimator")),
]


def arguments(model: type) -> dict[str, Any]:
    """Return the default by argument, in order: ``"required"``, or a function's name in place of the function."""
    return {
        name: "required" if one.default is one.empty else getattr(one.default, "__name__", one.default)
        for name, one in inspect.signature(model).parameters.items()
    }


def main() -> None:
    import tensorflow as tf

    generations = {"v1": tf.compat.v1.estimator, "v2": tf.estimator}
    found = {
        generation: {name: arguments(getattr(classes, name)) for name in CLASSES}
        for generation, classes in generations.items()
    }
    REFERENCE.write_text(json.dumps({"tensorflow": tf.__version__, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
