"""`FinalExporter`: export the model once, when training has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_estimator.export.warmup import MOST_INSTANCES
from torch_estimator.exporters.exporter import ExportableEstimator, check_settings, export_as


@dataclass(frozen=True, slots=True)
class FinalExporter:
    """Exporter that exports only the final model, when training has ended.

    Args:
        name: Name of the directory of the exports, ``<model_dir>/export/<name>``.
        serving_input_receiver_fn: Serving input: the inputs of the exported model; see `te.serving_input`.
        assets_extra: Files to copy into the export's ``assets.extra``, by their path in it.
        as_text: Has no effect. tf.estimator has this parameter.
        warmup_instances: Number of input rows to record in the export, 0 to 8; see `Estimator.export_saved_model`.
        dtype: ``"float32"`` or ``"float16"``, for tables; see `Estimator.export_saved_model`.

    Raises:
        InvalidTypeError: `name` is not a string.
        InvalidValueError: Another argument cannot be used.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [1.0, 2.0]}, [2.0, 4.0]
    >>> estimator = te.LinearRegressor([x], config=te.RunConfig("memory://FinalExporter", save_checkpoints_steps=10))
    >>> exporter = te.FinalExporter("last", te.serving_input.raw_features([x]))
    >>> _, exports = te.train_and_evaluate(
    ...     estimator,
    ...     te.TrainSpec(lambda: data, max_steps=30),
    ...     te.EvalSpec(lambda: data, exporters=exporter, throttle_secs=0),
    ... )
    >>> exports[0].startswith("memory://FinalExporter/export/last/")
    True
    """

    name: str
    serving_input_receiver_fn: Any
    assets_extra: Mapping[str, str] | None = None
    as_text: bool = False
    warmup_instances: int = MOST_INSTANCES
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_settings(self)

    def export(
        self,
        estimator: ExportableEstimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Export the model if training has ended; see `Exporter.export`."""
        if not is_the_final_export:
            return None
        return export_as(self, estimator, export_path, checkpoint_path)
