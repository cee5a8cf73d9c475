"""Exports of trained models: one ONNX graph from raw features to predictions.

To lower a part of the model means to add the ONNX nodes that compute it. `writer` writes an export: `receivers` and
`columns` lower the inputs into a `graph`, `network` or `any_module` lowers the model, and the head lowers its
predictions. `exported_model` runs an export, with `feeds` and `signatures`.

Names are imported when they are first used, because running an export needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_estimator.export.export_outputs import ClassificationOutput, PredictOutput, RegressionOutput

__all__ = ["ClassificationOutput", "PredictOutput", "RegressionOutput"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.export_outputs"), name)
