"""What an exporter is, and what it asks of an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch_estimator.errors import InvalidTypeError, InvalidValueError


class ExportableEstimator(Protocol):
    """What the exporters here need of an estimator."""

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Any,
        assets_extra: Mapping[str, str] | None = None,
        *,
        checkpoint_path: str | None = None,
    ) -> str:
        """Writes an export below `export_dir_base` and returns its path."""


@runtime_checkable
class Exporter(Protocol):
    """Decides after an evaluation whether to export the model; anything with `name` and `export` will do."""

    @property
    def name(self) -> str:
        """Names the directory of the exports, ``<model_dir>/export/<name>``."""

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Exports the model, or does not.

        Args:
            estimator: The estimator that was evaluated.
            export_path: ``<model_dir>/export/<name>``.
            checkpoint_path: The checkpoint that was evaluated.
            eval_result: The metrics, ``global_step`` among them.
            is_the_final_export: Whether training has ended.

        Returns:
            The path of the export, or None where there is none.
        """


def check_settings(kind: str, name: object, serving_input_receiver_fn: object, as_text: object) -> None:
    """Checks what all exporters here have in common; `kind` is the class's name, for the message.

    Raises:
        InvalidTypeError: `name` is not a string.
        InvalidValueError: `name` is empty or has a slash, there is no receiver, or `as_text` is asked for.
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"{kind}: name must be a string, but got {name!r}.")
    if not name or "/" in name:
        raise InvalidValueError(f"{kind}: name must be a directory's name and not empty, but got {name!r}.")
    if serving_input_receiver_fn is None:
        raise InvalidValueError(
            f"{kind} {name!r}: serving_input_receiver_fn must say what the exported model takes as input, "
            "for instance te.serving_input.raw_features(columns), but got None."
        )
    if as_text:
        raise InvalidValueError(
            f"{kind} {name!r}: as_text must be False, because an ONNX export has no text form; "
            "'estimator show --dir EXPORT' prints what an export takes and returns."
        )
