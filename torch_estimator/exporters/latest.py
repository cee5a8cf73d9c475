"""Export after every evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_estimator.exporters.exporter import ExportableEstimator, check_settings
from torch_estimator.exporters.garbage import check_exports_to_keep, remove_old_exports


@dataclass(frozen=True, slots=True)
class LatestExporter:
    """Exports every model that is evaluated and keeps the newest exports.

    Args:
        name: Names the directory of the exports.
        serving_input_receiver_fn: What the exported model takes as input; see `te.serving_input`.
        assets_extra: Files to put into the export's ``assets.extra``, by their path in it.
        as_text: Only False; it is here because tf.estimator had it.
        exports_to_keep: How many exports to keep; None keeps all.

    Raises:
        InvalidTypeError: `name` is not a string.
        InvalidValueError: Another argument cannot be used.
    """

    name: str
    serving_input_receiver_fn: Any
    assets_extra: Mapping[str, str] | None = None
    as_text: bool = False
    exports_to_keep: int | None = 5

    def __post_init__(self) -> None:
        check_settings("LatestExporter", self.name, self.serving_input_receiver_fn, self.as_text)
        check_exports_to_keep(self.exports_to_keep)

    def export(
        self,
        estimator: ExportableEstimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Exports and removes the oldest exports; see `Exporter.export`."""
        path = estimator.export_saved_model(
            export_path,
            self.serving_input_receiver_fn,
            assets_extra=self.assets_extra,
            checkpoint_path=checkpoint_path,
        )
        remove_old_exports(export_path, self.exports_to_keep)
        return path
