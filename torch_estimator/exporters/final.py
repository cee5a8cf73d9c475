"""`FinalExporter`: export the model once, when training has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_estimator.export.recording import check_count
from torch_estimator.export.warmup import MOST_INSTANCES
from torch_estimator.exporters.exporter import ExportableEstimator, check_settings


@dataclass(frozen=True, slots=True)
class FinalExporter:
    """Exporter that exports only the final model, when training has ended.

    >>> receiver = te.serving_input.raw_features([fc.numeric_column("age")])
    >>> te.FinalExporter("census", receiver).name
    'census'

    Args:
        name: Name of the directory of the exports, ``<model_dir>/export/<name>``.
        serving_input_receiver_fn: Serving input: the inputs of the exported model; see `te.serving_input`.
        assets_extra: Files to copy into the export's ``assets.extra``, by their path in it.
        as_text: Must be False. tf.estimator has this parameter.
        warmup_instances: Number of input rows to record in the export, 0 to 8; see `Estimator.export_saved_model`.

    Raises:
        InvalidTypeError: `name` is not a string.
        InvalidValueError: Another argument cannot be used.
    """

    name: str
    serving_input_receiver_fn: Any
    assets_extra: Mapping[str, str] | None = None
    as_text: bool = False
    warmup_instances: int = MOST_INSTANCES

    def __post_init__(self) -> None:
        check_settings("FinalExporter", self.name, self.serving_input_receiver_fn, self.as_text)
        check_count(self.warmup_instances)

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
        return estimator.export_saved_model(
            export_path,
            self.serving_input_receiver_fn,
            assets_extra=self.assets_extra,
            checkpoint_path=checkpoint_path,
            warmup_instances=self.warmup_instances,
        )
