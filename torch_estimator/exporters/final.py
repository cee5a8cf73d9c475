"""Export once, when training has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_estimator.exporters.exporter import ExportableEstimator, check_settings


@dataclass(frozen=True, slots=True)
class FinalExporter:
    """Exports the model that training ended with.

    Args:
        name: Names the directory of the exports.
        serving_input_receiver_fn: What the exported model takes as input; see `te.serving_input`.
        assets_extra: Files to put into the export's ``assets.extra``, by their path in it.
        as_text: Only False; it is here because tf.estimator had it.

    Raises:
        InvalidTypeError: `name` is not a string.
        InvalidValueError: Another argument cannot be used.
    """

    name: str
    serving_input_receiver_fn: Any
    assets_extra: Mapping[str, str] | None = None
    as_text: bool = False

    def __post_init__(self) -> None:
        check_settings("FinalExporter", self.name, self.serving_input_receiver_fn, self.as_text)

    def export(
        self,
        estimator: ExportableEstimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Exports if `is_the_final_export`; see `Exporter.export`."""
        if not is_the_final_export:
            return None
        return estimator.export_saved_model(
            export_path,
            self.serving_input_receiver_fn,
            assets_extra=self.assets_extra,
            checkpoint_path=checkpoint_path,
        )
