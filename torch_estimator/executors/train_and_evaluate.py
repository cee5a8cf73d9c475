"""The function `train_and_evaluate`: train, save checkpoints, evaluate and export in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch_estimator import activity
from torch_estimator.cluster.task import EVALUATOR, MASTER, PARAMETER_SERVER, Task, check_trains
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.executors.chief import run_chief, run_local
from torch_estimator.executors.evaluation import ContinuousEvalListener, Outcome
from torch_estimator.executors.evaluator import run_evaluator
from torch_estimator.executors.worker import run_worker
from torch_estimator.run_config import RunConfig
from torch_estimator.runs.training_status import EndOfTraining
from torch_estimator.specs import EvalSpec, TrainSpec

logger = logging.getLogger("torch_estimator")


def train_and_evaluate(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Sequence[EvalSpec],
    continuous_eval_listener: ContinuousEvalListener | None = None,
) -> tuple[Any, Any]:
    """Train and evaluate an estimator, and export it.

    Checkpoints are saved as the estimator's `RunConfig` says. After each checkpoint but the first, and no sooner than
    ``throttle_secs`` after the evaluation before, the model is evaluated and the exporters are called. The last
    checkpoint is always evaluated. A job that is killed at any point and started again continues where it was.

    In a cluster each process does its own part: the chief and the workers train together, the chief saves, and the
    evaluator evaluates the checkpoints until training is over. The chief evaluates, too, if there can be no evaluator,
    or if worker 0 is the chief and the cluster lists no evaluator.

    Args:
        estimator: The estimator to train.
        train_spec: How to train it.
        eval_spec: How to evaluate it; several specs, with distinct names, evaluate the same checkpoints.
        continuous_eval_listener: Called before and after each evaluation; may end the training.

    Returns:
        The metrics of the last evaluation, and the list of what its exporters returned, with None for each that did not
        export. With several specs, the metrics are a dict by the specs' names, and the list holds the exports of all
        specs in order. ``(None, None)`` if ``max_steps`` was reached before, or if another process evaluates.

    Raises:
        InvalidTypeError: An argument has the wrong type.
        InvalidValueError: Checkpoints are switched off, or an evaluation returns no metrics.
        ModelDirInUseError: Another training writes into the model directory.

    >>> def read(rows, shuffle):
    ...     x = np.random.default_rng(rows).uniform(-1, 1, rows)
    ...     data = te.data.Dataset.from_arrays({"x": x}, (x > 0).astype(np.int64))
    ...     return data.shuffle(rows).repeat().batch(16) if shuffle else data.batch(16)
    >>> x = fc.numeric_column("x")
    >>> estimator = te.DNNClassifier([8], [x], config=te.RunConfig("memory://train_and_evaluate", random_seed=1))
    >>> metrics, exports = te.train_and_evaluate(
    ...     estimator,
    ...     te.TrainSpec(lambda: read(200, shuffle=True), max_steps=100),
    ...     te.EvalSpec(
    ...         lambda: read(50, shuffle=False),
    ...         steps=None,
    ...         exporters=te.FinalExporter("last", te.serving_input.raw_features([x])),
    ...     ),
    ... )
    >>> metrics["global_step"], metrics["accuracy"] > 0.9
    (100, True)
    >>> model = te.ExportedModel.load(exports[0])
    >>> model.predict({"x": [-0.9, 0.9]})["classes"].ravel().tolist()
    ['0', '1']
    """
    eval_specs = _checked_eval_specs(eval_spec)
    if not isinstance(estimator, Estimator):
        raise InvalidTypeError(f"estimator must be an Estimator, but got {estimator!r}.")
    if not isinstance(train_spec, TrainSpec):
        raise InvalidTypeError(f"train_spec must be a TrainSpec, but got {train_spec!r}.")
    listener = continuous_eval_listener or ContinuousEvalListener()
    if not isinstance(listener, ContinuousEvalListener):
        raise InvalidTypeError(f"continuous_eval_listener must be a ContinuousEvalListener, but got {listener!r}.")
    task = estimator.config.task
    if task.type == PARAMETER_SERVER:
        # Import this module only here, since it needs ZeroMQ, which other processes may do without.
        from torch_estimator.parameter_server.process import run_parameter_server

        with EndOfTraining(estimator.model_dir) as is_over, activity.recording(estimator.model_dir, task):
            run_parameter_server(task, wait_secs=estimator.config.session_creation_timeout_secs, is_over=is_over)
        return None, None
    if task.type != EVALUATOR:
        _check_saves_checkpoints(estimator.config)
    # Keep the lease on `model_dir`, which excludes other trainings, until the whole job is done: the evaluations and
    # exports after the training use the directory, too.
    with (
        estimator.job.calls_to_evaluate(eval_specs),
        estimator.job.leased(),
        activity.recording(estimator.model_dir, task),
    ):
        outcomes = _role(task)(estimator, train_spec, eval_specs, listener)
    if outcomes is None:
        return None, None
    exports = [path for outcome in outcomes for path in outcome.exports]
    if isinstance(eval_spec, EvalSpec):
        return outcomes[0].metrics, exports
    return {spec.name: outcome.metrics for spec, outcome in zip(eval_specs, outcomes, strict=True)}, exports


def _role(task: Task) -> Callable[..., list[Outcome] | None]:
    """Return the function that runs the role of this process in the job, such as `run_chief`."""
    if not task.is_of_cluster:
        return run_local
    logger.info("This process is %s, according to %s.", task, task.source)
    if task.type == EVALUATOR:
        return run_evaluator
    check_trains(task)
    if not task.is_chief:
        return run_worker
    return run_chief if task.has_evaluator and task.type != MASTER else run_local


def _checked_eval_specs(eval_spec: object) -> tuple[EvalSpec, ...]:
    specs = (eval_spec,) if isinstance(eval_spec, EvalSpec) else eval_spec
    if not isinstance(specs, Sequence) or not specs or not all(isinstance(spec, EvalSpec) for spec in specs):
        raise InvalidTypeError(f"eval_spec must be an EvalSpec or a list of them, but got {eval_spec!r}.")
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise InvalidValueError(f"Several EvalSpecs need distinct names, but got {names}.")
    exporters = [exporter.name for spec in specs for exporter in spec.all_exporters]
    if len(set(exporters)) < len(exporters):
        raise InvalidValueError(f"Exporters of several EvalSpecs need distinct names, but got {exporters}.")
    return tuple(specs)


def _check_saves_checkpoints(config: RunConfig) -> None:
    """Check that training saves checkpoints, since those are evaluated."""
    if not (config.save_checkpoints_steps or config.save_checkpoints_secs):
        raise InvalidValueError(
            "train_and_evaluate evaluates checkpoints, so there should be some: set save_checkpoints_steps or "
            f"save_checkpoints_secs of RunConfig, which are {config.save_checkpoints_steps} and "
            f"{config.save_checkpoints_secs}."
        )
