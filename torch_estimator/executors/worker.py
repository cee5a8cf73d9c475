"""Role of a worker, which trains together with the chief."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from torch_estimator import activity
from torch_estimator.estimator import Estimator
from torch_estimator.executors.evaluation import ContinuousEvalListener
from torch_estimator.run_config import RunConfig
from torch_estimator.runs.training_status import EndOfTraining
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
    """Run a worker: train together with the chief. With parameter servers, start some seconds after the chief."""
    config = estimator.config
    # Watch for the end of training from here on, because a short training may begin and end during the delay.
    with EndOfTraining(estimator.model_dir) as is_over:
        if config.num_ps_replicas:
            delay = worker_delay_secs(config)
            if delay:
                logger.info("Waiting %d s before training starts here.", delay)
                with (
                    activity.doing("starting"),
                    activity.waiting(lambda: [config.task.name_of_rank(0)], activity.OTHERS),
                ):
                    time.sleep(delay)
        estimator.job.train(train_spec.input_fn, train_spec.hooks, (), max_steps=train_spec.max_steps, is_over=is_over)


def worker_delay_secs(config: RunConfig) -> int:
    """Return the number of seconds that a worker waits before it trains; the same as in tf.estimator."""
    most = config.experimental_max_worker_delay_secs
    return min(_MAX_DELAY_SECS if most is None else most, _DELAY_SECS * (config.task_id + 1))
