"""Small jobs for tests: a line fitted to points, an exporter that writes a file, and assertions on the results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import torch_estimator as te
from torch_estimator import files


class Line(nn.Module):
    """Linear model with two inputs and one output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        return self.linear(features["x"])


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return ((outputs - labels) ** 2).mean()


def absolute_error(labels: Tensor, predictions: Mapping[str, Tensor]) -> Tensor:
    return (predictions["output"] - labels).abs().mean()


def line_model_fn(mode: str) -> te.EstimatorSpec:
    return te.EstimatorSpec(
        mode=mode,
        module=Line(),
        loss=squared_error,
        metrics={"absolute_error": absolute_error},
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    )


def line(model_dir: object, **settings: Any) -> te.Estimator:
    """Return an estimator of a line. By default it saves at the start and the end only."""
    settings = {"random_seed": 1, "save_checkpoints_steps": 1000, **settings}
    return te.Estimator(line_model_fn, str(model_dir), te.RunConfig(**settings))


def points(rows: int = 400, batch: int = 4) -> te.data.Dataset:
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    y = (x @ np.array([[2.0], [-1.0]]) + 0.5).astype(np.float32)
    return te.data.Dataset.from_arrays({"x": x}, y).batch(batch)


class WritingExporter:
    """Exporter that writes a file named by the step, and records its calls.

    Args:
        name: Name of the exporter.
        only_final: Whether only the final export is written.
        failures: Number of first calls that raise an error.
    """

    def __init__(self, name: str = "writing", *, only_final: bool = False, failures: int = 0) -> None:
        self.name = name
        self.calls: list[dict[str, Any]] = []
        self._only_final = only_final
        self._failures = failures

    def export(
        self,
        estimator: te.Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        if self._failures:
            self._failures -= 1
            raise ConnectionError("killed while exporting")
        self.calls.append(
            {
                "estimator": estimator,
                "export_path": export_path,
                "checkpoint_path": checkpoint_path,
                "eval_result": eval_result,
                "is_the_final_export": is_the_final_export,
            }
        )
        if self._only_final and not is_the_final_export:
            return None
        path = files.join(export_path, str(eval_result["global_step"]))
        files.makedirs(export_path)
        files.write_atomic(path, b"exported")
        return path

    @property
    def steps(self) -> list[int]:
        return [call["eval_result"]["global_step"] for call in self.calls]

    @property
    def finals(self) -> list[bool]:
        return [call["is_the_final_export"] for call in self.calls]


def variables(estimator: te.Estimator) -> dict[str, np.ndarray]:
    """Return all numbers in the newest checkpoint: weights, slots and the global step."""
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def assert_same_variables(one: te.Estimator, other: te.Estimator) -> None:
    ours, theirs = variables(one), variables(other)
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def checkpoint_steps(model_dir: object) -> list[int]:
    from torch_estimator.checkpoint.checkpoint import checkpoint_paths

    return [int(path.rpartition("-")[2]) for path in checkpoint_paths(str(model_dir))]
