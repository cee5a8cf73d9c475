"""A worker's role: train together with the chief, who saves."""

from __future__ import annotations

from collections.abc import Sequence

from torch_estimator.estimator import Estimator
from torch_estimator.roles.checks import check_saves_checkpoints
from torch_estimator.roles.continuous_eval_listener import ContinuousEvalListener
from torch_estimator.specs import EvalSpec, TrainSpec


def run_worker(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> None:
    """Trains."""
    check_saves_checkpoints(estimator.config)
    estimator._train(train_spec.input_fn, train_spec.hooks, (), max_steps=train_spec.max_steps)
