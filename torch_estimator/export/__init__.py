"""Exports of trained models: one ONNX graph from raw features to predictions.

To lower a part of the model means to add the ONNX nodes that compute it. `writer` writes an export: `receivers` and
`columns` lower the inputs into a `graph`, `network` or `any_module` lowers the model, and the head lowers its
predictions. `exported_model` runs an export, with `feeds` and `signatures`.

Names are imported when they are first used, because running an export needs no torch, but writing an export does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_estimator.export.exported_model import ExportedModel
    from torch_estimator.export.writer import write_export

__all__ = ["ExportedModel", "write_export"]

_HOMES = {"ExportedModel": "exported_model", "write_export": "writer"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
