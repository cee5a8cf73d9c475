"""Evaluation by an `EvalSpec`: evaluate a checkpoint, check the metrics, call the exporters."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.executors.evaluation_record import EvaluationRecord
from torch_estimator.specs import EvalSpec
from torch_estimator.summary.event_reader import evaluation_since
from torch_estimator.train.evaluation import EvaluationResult


class ContinuousEvalListener:
    """Base class for listeners that `train_and_evaluate` calls before and after each evaluation.

    >>> class StopAfterThree(te.ContinuousEvalListener):
    ...     evaluations = 0
    ...
    ...     def after_eval(self):
    ...         self.evaluations += 1
    ...         return self.evaluations < 3
    """

    def before_eval(self) -> bool:
        """Return whether to evaluate. False ends training, or just the evaluator process, if any."""
        return True

    def after_eval(self) -> bool:
        """Return whether to go on after an evaluation. False ends training, or just the evaluator process, if any."""
        return True


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of evaluating and exporting one checkpoint.

    Attributes:
        metrics: The metrics.
        exports: What each exporter returned, in the order of the exporters.
        checkpoint_path: The checkpoint.
        final: Whether the exporters were called with ``is_the_final_export=True``.
    """

    metrics: Mapping[str, Any]
    exports: list[str | None]
    checkpoint_path: str
    final: bool


class SpecEvaluator:
    """Evaluator for one `EvalSpec`: it evaluates checkpoints and calls the exporters.

    Args:
        estimator: The estimator to evaluate.
        spec: The input, the number of batches, the hooks and the exporters.
        max_steps: Global step from which on an export is the final one, or None.
        clock: Returns monotonic seconds.
        record: Record of what is done, so that a process that replaces this one repeats nothing; None keeps no record.
    """

    def __init__(
        self,
        estimator: Estimator,
        spec: EvalSpec,
        max_steps: int | None,
        clock: Callable[[], float] = time.monotonic,
        record: EvaluationRecord | None = None,
    ) -> None:
        self.spec = spec
        self.last_step: int | None = None
        self.outcome: Outcome | None = None
        self._record = record
        self._estimator = estimator
        self._max_steps = max_steps
        self._clock = clock
        self._last_time = 0.0

    def is_due(self, step: int) -> bool:
        """Return whether to evaluate the checkpoint of ``step``: it is new, and ``throttle_secs`` have passed."""
        if self.last_step is None:
            return True
        return step != self.last_step and self._clock() >= self._last_time + self.spec.throttle_secs

    def evaluate(self, step: int, checkpoint_path: str, *, final: bool = False) -> None:
        """Evaluate a checkpoint and call the exporters.

        Args:
            step: The checkpoint's global step.
            checkpoint_path: The checkpoint.
            final: Whether it is the last checkpoint of the training. A checkpoint at ``max_steps`` is always final.
        """
        self._last_time = self._clock()
        self.last_step = step
        if self._record is not None:
            self._record.begin(self.spec.name, checkpoint_path)
        metrics = self._estimator.evaluate(
            input_fn=self.spec.input_fn,
            steps=self.spec.steps,
            hooks=self.spec.hooks,
            checkpoint_path=checkpoint_path,
            name=self.spec.name,
        )
        _check_metrics(metrics)
        final = final or (self._max_steps is not None and metrics["global_step"] >= self._max_steps)
        if self._record is not None:
            self._record.evaluated(self.spec.name, checkpoint_path, metrics, final=final)
        self._export_all(Outcome(metrics, [], checkpoint_path, final))

    def catch_up(self) -> None:
        """Complete the last evaluation of an evaluator that was killed: call its remaining exporters."""
        done = self._record.of(self.spec.name) if self._record is not None else None
        if done is None:
            return
        self.last_step = done.step
        metrics = EvaluationResult(done.metrics.items(), batches=done.batches)
        exports = done.exports[: len(self.spec.all_exporters)]
        self._export_all(Outcome(metrics, exports, done.checkpoint_path, done.final))

    def complete_record(self) -> None:
        """Add the last evaluation of a killed evaluator to the record, if its metrics are already in the event file."""
        begun = self._record.state.begun if self._record is not None else None
        if self._record is None or begun is None or begun.name != (self.spec.name or ""):
            return
        checkpoint = files.basename(begun.checkpoint_path)
        metrics = evaluation_since(self._estimator.eval_dir(self.spec.name), checkpoint, begun.at)
        if metrics is not None:
            self._record.evaluated(self.spec.name, begun.checkpoint_path, metrics, final=False)

    def finish(self) -> None:
        """Make the final exports after training has ended: call each exporter that has not exported the last model."""
        assert self.outcome is not None
        if self.outcome.final:
            return
        final = replace(self.outcome, exports=[], final=True)
        self._export_all(final, before=self.outcome.exports)

    def _export_all(self, outcome: Outcome, before: Sequence[str | None] = ()) -> None:
        """Call each exporter without a result in ``outcome.exports``, unless it has already exported (``before``)."""
        exports = list(outcome.exports)
        for exporter, path in itertools.zip_longest(self.spec.all_exporters[len(exports) :], before[len(exports) :]):
            path = path or self._export(exporter, outcome.checkpoint_path, outcome.metrics, outcome.final)
            exports.append(path)
            if self._record is not None:
                self._record.exported(self.spec.name, exports, final=outcome.final)
        self.outcome = replace(outcome, exports=exports)

    def _export(self, exporter: Any, checkpoint_path: str, metrics: Mapping[str, Any], final: bool) -> str | None:
        path: str | None = exporter.export(
            estimator=self._estimator,
            export_path=files.join(self._estimator.model_dir, "export", exporter.name),
            checkpoint_path=checkpoint_path,
            eval_result=metrics,
            is_the_final_export=final,
        )
        return path


def _check_metrics(metrics: object) -> None:
    if not metrics:
        raise InvalidValueError(f"Estimator.evaluate must return metrics, but returned {metrics!r}.")
    if not isinstance(metrics, Mapping):
        raise InvalidTypeError(f"Estimator.evaluate must return a dict of metrics, but returned {metrics!r}.")
    if "global_step" not in metrics:
        raise InvalidValueError(f"Estimator.evaluate must return 'global_step', but returned only {sorted(metrics)}.")
