"""A new exporter is one class: train_and_evaluate calls it, and its exports predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch_estimator as te
from tests.line_jobs import line, points


@dataclass(frozen=True, slots=True)
class EveryStepsExporter:
    """Exporter of the evaluated models whose global step is a multiple of a number.

    Args:
        name: Name of the directory of the exports.
        serving_input: Inputs of the exported model.
        steps: The number.
    """

    name: str
    serving_input: Any
    steps: int

    def export(
        self,
        estimator: te.Estimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Export the model if its step is due."""
        if eval_result["global_step"] % self.steps:
            return None
        return estimator.export_saved_model(export_path, self.serving_input, checkpoint_path=checkpoint_path)


def test_train_and_evaluate_runs_a_new_exporter(tmp_path: Path) -> None:
    serving_input = te.serving_input.like({"x": [[0.0, 0.0]]})
    exporter = EveryStepsExporter("every", serving_input, steps=20)
    assert isinstance(exporter, te.Exporter)
    _, exports = te.train_and_evaluate(
        line(tmp_path, save_checkpoints_steps=10, compile=False),
        te.TrainSpec(lambda: points().repeat(), max_steps=30),
        te.EvalSpec(points, steps=1, start_delay_secs=0, throttle_secs=0, exporters=exporter),
    )
    assert exports == [None]
    (export,) = (tmp_path / "export" / "every").iterdir()
    model = te.ExportedModel.load(export)
    assert model.manifest.global_step == 20
    assert model.predict({"x": [[1.0, 2.0]]})["output"].shape == (1, 1)
