"""Protocol that every exporter implements, and helpers for exporters: checks of settings, removal of old exports.

A new exporter is a class with `name` and `export`, in a file of its own. It needs no registration: pass it to
`EvalSpec(exporters=...)`. An exporter that is part of the package is imported in ``exporters/__init__.py`` and listed
in ``torch_estimator/__init__.pyi``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.export.directory import export_names
from torch_estimator.export.recording import check_count, check_dtype
from torch_estimator.export.warmup import MOST_INSTANCES

_logger = logging.getLogger(__name__)


class ExportableEstimator(Protocol):
    """Part of an Estimator that exporters use: the method that writes an export."""

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Any,
        assets_extra: Mapping[str, str] | None = None,
        *,
        checkpoint_path: str | None = None,
        warmup_instances: int = MOST_INSTANCES,
    ) -> str:
        """Export the model into a new directory below `export_dir_base`; return the path of the new directory."""


@runtime_checkable
class Exporter(Protocol):
    """Rule that decides after each evaluation whether to export the model.

    Any object with `name` and `export` is an exporter.

    >>> class Report:
    ...     name = "report"
    ...
    ...     def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
    ...         return f"{export_path} after step {eval_result['global_step']}"
    >>> _, exports = te.train_and_evaluate(
    ...     te.BaselineRegressor("memory://Exporter"),
    ...     te.TrainSpec(lambda: ({"x": [1.0]}, [2.0]), max_steps=3),
    ...     te.EvalSpec(lambda: ({"x": [1.0]}, [2.0]), exporters=Report()),
    ... )
    >>> exports
    ['memory://Exporter/export/report after step 3']
    """

    @property
    def name(self) -> str:
        """Name of the exporter, whose exports are written into ``<model_dir>/export/<name>``."""

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Export the model or do nothing, as the exporter decides. Called after each evaluation.

        Args:
            estimator: The Estimator that was evaluated.
            export_path: Directory of the exports, ``<model_dir>/export/<name>``.
            checkpoint_path: Checkpoint that was evaluated.
            eval_result: Metrics of the evaluation, and ``global_step``.
            is_the_final_export: Whether training has ended.

        Returns:
            The path of the export, or None without one.
        """


def check_settings(exporter: Any) -> None:
    """Check the settings that every exporter in this package has."""
    kind, name = type(exporter).__name__, exporter.name
    if not isinstance(name, str):
        raise InvalidTypeError(f"{kind}: name must be a string, but got {name!r}.")
    if not name or "/" in name:
        raise InvalidValueError(f"{kind}: name must be a directory's name and not empty, but got {name!r}.")
    if exporter.serving_input_receiver_fn is None:
        raise InvalidValueError(
            f"{kind} {name!r}: serving_input_receiver_fn must say what the exported model takes as input, "
            "for instance te.serving_input.raw_features(columns), but got None."
        )
    check_count(exporter.warmup_instances)
    check_dtype(exporter.dtype)
    if exporter.as_text:
        _logger.info(
            "%s %r: as_text has no effect: an ONNX export has no text form. 'estimator show' prints an export.",
            kind,
            name,
        )


def export_as(exporter: Any, estimator: ExportableEstimator, export_path: str, checkpoint_path: str) -> str:
    """Export a checkpoint with the settings of an exporter of this package; return the path of the export."""
    # Only an Estimator of this package knows of dtypes.
    more: dict[str, Any] = {} if exporter.dtype == "float32" else {"dtype": exporter.dtype}
    return estimator.export_saved_model(
        export_path,
        exporter.serving_input_receiver_fn,
        assets_extra=exporter.assets_extra,
        checkpoint_path=checkpoint_path,
        warmup_instances=exporter.warmup_instances,
        **more,
    )


def check_exports_to_keep(exports_to_keep: int | None) -> None:
    """Check that the setting `exports_to_keep` is None or a positive whole number."""
    if exports_to_keep is not None and not (exports_to_keep > 0 and float(exports_to_keep).is_integer()):
        raise InvalidValueError(
            f"exports_to_keep must be a positive whole number, or None to keep all, but got {exports_to_keep}."
        )


def remove_old_exports(export_dir_base: files.PathLike, exports_to_keep: int | None) -> None:
    """Remove all exports in a directory except the newest. Log a warning for an export that cannot be removed.

    Only directories named like an export, by ten digits, are removed. None keeps all.
    """
    if exports_to_keep is None:
        return
    for name in export_names(export_dir_base)[:-exports_to_keep]:
        path = files.join(export_dir_base, name)
        try:
            files.remove_tree(path)
        except OSError as error:
            _logger.warning("old export %s cannot be removed: %s.", path, files.reason(error))
