"""Roles of processes that train: the chief, which saves, and the workers.

`run_local` (``local.py``) is the role of a process that trains and evaluates; ``evaluator.py`` has the evaluator's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from torch_estimator.errors import InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.executors.announced_training import AnnouncedTraining
from torch_estimator.executors.evaluation import ContinuousEvalListener
from torch_estimator.executors.training_status import EndOfTraining
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import EvalSpec, TrainSpec

logger = logging.getLogger("torch_estimator")

_DELAY_SECS = 5
_MAX_DELAY_SECS = 60


def run_chief(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> None:
    """Train and save checkpoints; announce the end of the training to the evaluator."""
    check_saves_checkpoints(estimator.config)
    training = AnnouncedTraining(estimator, train_spec)
    training.train(train_spec.saving_listeners, starts_input_over=not training.interrupted)
    training.end()


def run_worker(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener,
) -> None:
    """Train together with the chief, which saves; with parameter servers, start some seconds after it."""
    config = estimator.config
    check_saves_checkpoints(config)
    # Start to watch for the end before the delay, during which a short training may both begin and end.
    with EndOfTraining(estimator.model_dir) as is_over:
        if config.num_ps_replicas:
            delay = worker_delay_secs(config)
            if delay:
                logger.info("Waiting %d s before training starts here.", delay)
                time.sleep(delay)
        estimator.job.train(train_spec.input_fn, train_spec.hooks, (), max_steps=train_spec.max_steps, is_over=is_over)


def worker_delay_secs(config: RunConfig) -> int:
    """Return how many seconds after the chief a worker starts, as tf.estimator's workers did."""
    most = config.experimental_max_worker_delay_secs
    return min(_MAX_DELAY_SECS if most is None else most, _DELAY_SECS * (config.task_id + 1))


def check_saves_checkpoints(config: RunConfig) -> None:
    """Check that there will be checkpoints to evaluate.

    Raises:
        InvalidValueError: Saving checkpoints is switched off.
    """
    if not (config.save_checkpoints_steps or config.save_checkpoints_secs):
        raise InvalidValueError(
            "train_and_evaluate evaluates checkpoints, so there should be some: set save_checkpoints_steps or "
            f"save_checkpoints_secs of RunConfig, which are {config.save_checkpoints_steps} and "
            f"{config.save_checkpoints_secs}."
        )
