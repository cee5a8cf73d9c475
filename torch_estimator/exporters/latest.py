"""`LatestExporter`: export the model after every evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_estimator.export.warmup import MOST_INSTANCES
from torch_estimator.exporters.exporter import (
    ExportableEstimator,
    check_exports_to_keep,
    check_settings,
    export_as,
    remove_old_exports,
)


@dataclass(frozen=True, slots=True)
class LatestExporter:
    """Exporter that exports the model after every evaluation, and keeps the newest `exports_to_keep` exports.

    Args:
        name: Name of the directory of the exports, ``<model_dir>/export/<name>``.
        serving_input_receiver_fn: Serving input: the inputs of the exported model; see `te.serving_input`.
        assets_extra: Files to copy into the export's ``assets.extra``, by their path in it.
        as_text: Has no effect. tf.estimator has this parameter.
        exports_to_keep: Number of exports to keep; None for all.
        warmup_instances: Number of input rows to record in an export, 0 to 8; see `Estimator.export_saved_model`.
        dtype: ``"float32"`` or ``"float16"``, for tables; see `Estimator.export_saved_model`.

    Raises:
        InvalidTypeError: `name` is not a string.
        InvalidValueError: Another argument cannot be used.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [1.0, 2.0]}, [2.0, 4.0]
    >>> estimator = te.LinearRegressor([x], config=te.RunConfig("memory://LatestExporter", save_checkpoints_steps=10))
    >>> exporter = te.LatestExporter("newest", te.serving_input.raw_features([x]), exports_to_keep=2)
    >>> _, exports = te.train_and_evaluate(
    ...     estimator,
    ...     te.TrainSpec(lambda: data, max_steps=30),
    ...     te.EvalSpec(lambda: data, exporters=exporter, throttle_secs=0),
    ... )
    >>> exports[0].startswith("memory://LatestExporter/export/newest/")
    True
    """

    name: str
    serving_input_receiver_fn: Any
    assets_extra: Mapping[str, str] | None = None
    as_text: bool = False
    exports_to_keep: int | None = 5
    warmup_instances: int = MOST_INSTANCES
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_settings(self)
        check_exports_to_keep(self.exports_to_keep)

    def export(
        self,
        estimator: ExportableEstimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Export the model, and remove old exports; see `Exporter.export`."""
        path = export_as(self, estimator, export_path, checkpoint_path)
        remove_old_exports(export_path, self.exports_to_keep)
        return path
