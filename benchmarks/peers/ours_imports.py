"""How long `import torch` takes, and how much torch_estimator adds; in the project's own environment."""

from __future__ import annotations

import importlib
import json
import time


def main() -> None:
    """Prints the seconds of one import after the other."""
    seconds = {
        "torch_s": _import("torch"),
        "added_s": _import("torch_estimator"),
        "program_s": _import("examples.census.trainer.task") + _import("torch_estimator.models.dnn_linear_combined"),
    }
    started = time.perf_counter()
    package = importlib.import_module("torch_estimator")
    for name in package.__all__:
        getattr(package, name)
    seconds["names_s"] = time.perf_counter() - started
    print(json.dumps({"peer": "torch-estimator", "version": package.__version__, **seconds}))


def _import(module: str) -> float:
    started = time.perf_counter()
    importlib.import_module(module)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
