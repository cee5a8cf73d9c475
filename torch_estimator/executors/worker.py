"""A worker's role: train together with the chief, who saves."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from torch_estimator.estimator import Estimator
from torch_estimator.executors.checks import check_saves_checkpoints
from torch_estimator.executors.continuous_eval_listener import ContinuousEvalListener
from torch_estimator.executors.training_status import EndOfTraining
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import EvalSpec, TrainSpec

logger = logging.getLogger("torch_estimator")

_DELAY_SECS = 5
_MAX_DELAY_SECS = 60


def run_worker(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> None:
    """Trains; with parameter servers it starts later than those before it."""
    config = estimator.config
    check_saves_checkpoints(config)
    # Made before the delay, in which a short training may both begin and end.
    with EndOfTraining(estimator.model_dir) as is_over:
        if config.num_ps_replicas:
            delay = worker_delay_secs(config)
            if delay:
                logger.info("Waiting %d s before training starts here.", delay)
                time.sleep(delay)
        estimator._train(train_spec.input_fn, train_spec.hooks, (), max_steps=train_spec.max_steps, is_over=is_over)


def worker_delay_secs(config: RunConfig) -> int:
    """How much later than the chief a worker starts, as tf.estimator's did."""
    most = config.experimental_max_worker_delay_secs
    return min(_MAX_DELAY_SECS if most is None else most, _DELAY_SECS * (config.task_id + 1))
