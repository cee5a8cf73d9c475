"""The chief's role: train and save; somebody else evaluates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_estimator.estimator import Estimator
from torch_estimator.roles.checks import check_saves_checkpoints
from torch_estimator.roles.continuous_eval_listener import ContinuousEvalListener
from torch_estimator.roles.training_state import new_training, read_training_state, write_training_state
from torch_estimator.specs import EvalSpec, TrainSpec


def run_chief(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> None:
    """Trains, and tells the evaluator when that is over."""
    check_saves_checkpoints(estimator.config)
    before = read_training_state(estimator.model_dir)
    interrupted = before is not None and not before.ended
    state = new_training(train_spec.max_steps)
    write_training_state(estimator.model_dir, state)
    estimator._train(
        train_spec.input_fn,
        train_spec.hooks,
        train_spec.saving_listeners,
        max_steps=train_spec.max_steps,
        input_over_when_ended=not interrupted,
    )
    write_training_state(estimator.model_dir, replace(state, ended=True))
