"""The chief's role: train and save; somebody else evaluates."""

from __future__ import annotations

from collections.abc import Sequence

from torch_estimator.estimator import Estimator
from torch_estimator.executors.checks import check_saves_checkpoints
from torch_estimator.executors.continuous_eval_listener import ContinuousEvalListener
from torch_estimator.executors.status_writer import Announcement
from torch_estimator.specs import EvalSpec, TrainSpec


def run_chief(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> None:
    """Trains, and tells the evaluator when that is over."""
    check_saves_checkpoints(estimator.config)
    training = Announcement(estimator, train_spec)
    training.train(train_spec.saving_listeners, input_over_when_ended=not training.interrupted)
    training.end()
