"""`BestExporter`: export the model after an evaluation if it is the best so far."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.export.warmup import MOST_INSTANCES
from torch_estimator.exporters.exporter import (
    ExportableEstimator,
    check_exports_to_keep,
    check_settings,
    export_as,
    remove_old_exports,
)
from torch_estimator.runs.state_file import StateFile

logger = logging.getLogger("torch_estimator")

BEST_RESULT_NAME = "best_eval_result.json"

_ARGUMENTS = {"best_eval_result", "current_eval_result"}


def loss_smaller(best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]) -> bool:
    """Return whether the current loss is strictly smaller than the best one. NaN is worse than any number.

    Args:
        best_eval_result: Metrics of the best evaluation so far.
        current_eval_result: Metrics of the current evaluation.

    Raises:
        InvalidValueError: A result has no ``loss``.

    >>> te.exporters.loss_smaller({"loss": 0.5}, {"loss": 0.4})
    True
    >>> te.exporters.loss_smaller({"loss": 0.5}, {"loss": float("nan")})
    False
    """
    for which, result in (("best", best_eval_result), ("current", current_eval_result)):
        if not result or "loss" not in result:
            raise InvalidValueError(
                f"the {which} evaluation result has no 'loss' to compare, it has {sorted(result or {})}; "
                "give BestExporter a compare_fn that uses one of these."
            )
    best, current = float(best_eval_result["loss"]), float(current_eval_result["loss"])
    return current < best or (math.isnan(best) and not math.isnan(current))


@dataclass(frozen=True, slots=True)
class BestExporter:
    """Exporter that exports a model if it is the best so far, and keeps the newest `exports_to_keep` exports.

    The first evaluated model is always exported. `compare_fn` decides whether a later model is better than the best so
    far. After an export, the metrics are written to ``<export_path>/best_eval_result.json``, so that a restarted job
    does not export a worse model.

    Args:
        name: Name of the directory of the exports, ``<model_dir>/export/<name>``.
        serving_input_receiver_fn: Serving input: the inputs of the exported model; see `te.serving_input`.
        event_file_pattern: Ignored. tf.estimator read the best result from these files.
        compare_fn: Function ``compare_fn(best_eval_result, current_eval_result) -> bool`` that returns whether the
            current result is better.
        assets_extra: Files to copy into the export's ``assets.extra``, by their path in it.
        as_text: Has no effect. tf.estimator has this parameter.
        exports_to_keep: Number of exports to keep; None for all.
        warmup_instances: Number of input rows to record in an export, 0 to 8; see `Estimator.export_saved_model`.
        dtype: ``"float32"`` or ``"float16"``, for tables; see `Estimator.export_saved_model`.

    Raises:
        InvalidTypeError: `name` is not a string, or `compare_fn` is not a function.
        InvalidValueError: Another argument cannot be used.

    >>> def closer(best_eval_result, current_eval_result):
    ...     return abs(current_eval_result["prediction/mean"] - 3.0) < abs(best_eval_result["prediction/mean"] - 3.0)
    >>> x = fc.numeric_column("x")
    >>> data = {"x": [1.0, 2.0]}, [2.0, 4.0]
    >>> estimator = te.LinearRegressor([x], config=te.RunConfig("memory://BestExporter", save_checkpoints_steps=10))
    >>> exporter = te.BestExporter("best", te.serving_input.raw_features([x]), compare_fn=closer)
    >>> _, exports = te.train_and_evaluate(
    ...     estimator,
    ...     te.TrainSpec(lambda: data, max_steps=30),
    ...     te.EvalSpec(lambda: data, exporters=exporter, throttle_secs=0),
    ... )
    >>> exports[0].startswith("memory://BestExporter/export/best/")
    True
    """

    name: str = "best_exporter"
    serving_input_receiver_fn: Any = None
    event_file_pattern: str | None = None
    compare_fn: Callable[..., bool] = loss_smaller
    assets_extra: Mapping[str, str] | None = None
    as_text: bool = False
    exports_to_keep: int | None = 5
    warmup_instances: int = MOST_INSTANCES
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_settings(self)
        check_exports_to_keep(self.exports_to_keep)
        _check_compare_fn(self.compare_fn)

    def export(
        self,
        estimator: ExportableEstimator,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Export the model if `eval_result` is the best so far; see `Exporter.export`."""
        if getattr(eval_result, "batches", None) == 0:
            # Skip an empty evaluation, because it reports loss 0.0, and no later model could beat that.
            logger.warning("%s: nothing was exported, because the evaluation input was empty.", self.name)
            return None
        best = _read_best(export_path)
        if self._compares_nan(eval_result):
            logger.warning(
                "%s: nothing was exported, because a metric that decides which model is the best is NaN.", self.name
            )
            return None
        if (
            best is not None
            and not self._compares_nan(best)
            and not self.compare_fn(best_eval_result=best, current_eval_result=dict(eval_result))
        ):
            return None
        path = export_as(self, estimator, export_path, checkpoint_path)
        # Write the metrics after the export. A job that is killed in between then exports again after its restart.
        # With the metrics written first, the restarted job would assume that the export exists.
        _best_file(export_path).write({key: _jsonable(value) for key, value in eval_result.items()})
        remove_old_exports(export_path, self.exports_to_keep)
        return path

    def _compares_nan(self, result: Mapping[str, Any]) -> bool:
        """Return whether `compare_fn` reads a metric that is NaN, which is neither better nor worse than another."""
        broken = {key for key, value in result.items() if isinstance(value, float | np.floating) and math.isnan(value)}
        if not broken:
            return False
        read = _ReadKeys(result)
        self.compare_fn(best_eval_result=read, current_eval_result=read)
        return not broken.isdisjoint(read.keys_read)


class _ReadKeys(dict[str, Any]):
    """Metrics that note which of them are read."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        super().__init__(result)
        self.keys_read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        self.keys_read.add(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Return a metric, or `default` if there is none."""
        self.keys_read |= {key} & self.keys()
        return super().get(key, default)


def _check_compare_fn(compare_fn: object) -> None:
    rule = "BestExporter: compare_fn must take exactly the arguments best_eval_result and current_eval_result"
    if compare_fn is None:
        raise InvalidValueError(f"{rule}, but got None.")
    if not callable(compare_fn):
        raise InvalidTypeError(f"{rule}, but got {compare_fn!r}.")
    arguments = list(inspect.signature(compare_fn).parameters)
    if set(arguments) != _ARGUMENTS:
        raise InvalidValueError(f"{rule}, but got a function of ({', '.join(arguments)}).")


def _best_file(export_path: str) -> StateFile[dict[str, Any]]:
    path = files.join(export_path, BEST_RESULT_NAME)
    return StateFile(path, dict[str, Any], error=InvalidValueError, cure="remove it to begin anew")


def _read_best(export_path: str) -> dict[str, Any] | None:
    """Return the metrics of the best evaluation so far, or None before the first export."""
    file = _best_file(export_path)
    result = file.read()
    if result is not None:
        try:
            float(result.get("loss", 0.0))
        except (TypeError, ValueError, OverflowError) as error:
            raise file.damaged(ValueError(f"'loss' must be a number, but is {result['loss']!r}")) from error
    return result


def _jsonable(value: Any) -> Any:
    """Convert a metric (a number, an array or bytes) to a value that JSON can represent."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return np.asarray(value).tolist()
