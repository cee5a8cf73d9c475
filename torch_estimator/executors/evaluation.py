"""Evaluation by an `EvalSpec`: evaluate a checkpoint, check the metrics, call the exporters."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_estimator import activity, files
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.executors.evaluation_record import EvaluationRecord
from torch_estimator.executors.evaluation_watch import evaluation_watch
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
    """Result of evaluating one checkpoint; `exports` has what each exporter returned, in the order of the exporters.

    `final` says whether the exporters were called with ``is_the_final_export=True``.
    """

    metrics: Mapping[str, Any]
    exports: list[str | None]
    checkpoint_path: str
    final: bool


class SpecEvaluator:
    """Evaluator for one `EvalSpec`: it evaluates checkpoints and calls the exporters.

    An export from global step `max_steps` on is the final one. `clock` returns monotonic seconds. With a record, a
    process that replaces this one repeats nothing that is done.
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
        """Return whether to evaluate the checkpoint of ``step``: it is new, and ``throttle_secs`` have passed.

        The process's `EvaluationWatch` may want it sooner.
        """
        if self.last_step is None:
            return True
        is_soon = self._clock() < self._last_time + self.spec.throttle_secs
        return step != self.last_step and (not is_soon or evaluation_watch().wants(step))

    def evaluate(self, step: int, checkpoint_path: str, *, final: bool = False) -> None:
        """Evaluate the checkpoint of a global step and call the exporters.

        `final` says that it is the last checkpoint of the training. One at ``max_steps`` is always final.
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
        with activity.doing("exporting", step=lambda: metrics["global_step"]):
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
