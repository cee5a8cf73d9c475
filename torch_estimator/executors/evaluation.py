"""One `EvalSpec` at work: evaluates a checkpoint, checks the result, hands it to the exporters."""

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the evaluation of one checkpoint gave.

    Attributes:
        metrics: Of the evaluation.
        exports: What each exporter returned, in their order.
        checkpoint_path: What was evaluated.
        final: Whether the exporters were told that it is the final export.
    """

    metrics: Mapping[str, Any]
    exports: list[str | None]
    checkpoint_path: str
    final: bool


class SpecEvaluator:
    """Evaluates checkpoints by one spec, not more often than the spec allows.

    Args:
        estimator: What to evaluate.
        spec: How.
        max_steps: Global step at which an export is the final one, or None.
        clock: Seconds that only go forward.
        record: Of what has been done, for a process that takes over from this one; it says what is done already.
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
        """Whether the checkpoint of ``step`` is new and enough time has gone by."""
        if self.last_step is None:
            return True
        return step != self.last_step and self._clock() >= self._last_time + self.spec.throttle_secs

    def evaluate(self, step: int, checkpoint_path: str, *, final: bool = False) -> None:
        """Evaluates and exports; ``final`` where training has ended, else it is where ``max_steps`` is reached."""
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
        """Takes over from an evaluator that was killed: does the exports that it owes, and repeats nothing."""
        done = self._record.of(self.spec.name) if self._record is not None else None
        if done is None:
            return
        self.last_step = done.step
        metrics = EvaluationResult(done.metrics.items(), batches=done.batches)
        exports = done.exports[: len(self.spec.all_exporters)]
        self._export_all(Outcome(metrics, exports, done.checkpoint_path, done.final))

    def take_note(self) -> None:
        """Completes the record of an evaluator that was killed between an evaluation's last event and its own word."""
        begun = self._record.begun if self._record is not None else None
        if self._record is None or begun is None or begun.name != (self.spec.name or ""):
            return
        checkpoint = files.basename(begun.checkpoint_path)
        metrics = evaluation_since(self._estimator.eval_dir(self.spec.name), checkpoint, begun.at)
        if metrics is not None:
            self._record.evaluated(self.spec.name, begun.checkpoint_path, metrics, final=False)

    def finish(self) -> None:
        """Has those exporters that did not export the last evaluation do so now that it is the final one."""
        assert self.outcome is not None
        if self.outcome.final:
            return
        final = replace(self.outcome, exports=[], final=True)
        self._export_all(final, before=self.outcome.exports)

    def _export_all(self, outcome: Outcome, before: Sequence[str | None] = ()) -> None:
        """Calls the exporters that are still to come, but for those that have exported ``before``."""
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
