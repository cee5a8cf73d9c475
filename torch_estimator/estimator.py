"""The Estimator: a model, a directory, and the calls that train, evaluate, predict and export it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import json
import logging
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import (
    Checkpoint,
    check_some_named,
    latest_checkpoint,
    load_checkpoint,
)
from torch_estimator.checkpoint.lease import Check, leased
from torch_estimator.checkpoint.sharded_tensors import is_sharded
from torch_estimator.cluster.ranks import check_trains_alone
from torch_estimator.cluster.task import REPLICA, Task, check_trains
from torch_estimator.data.to_dataset import to_dataset
from torch_estimator.distributed.agreement import agree_on, agree_on_training
from torch_estimator.distributed.description import CLUSTER, describe_optimizers, describe_training
from torch_estimator.distributed.lost import LeftBehind, PeerLost, TrainingOver
from torch_estimator.distributed.peer_recovery import handed, leader_of
from torch_estimator.distributed.shared_evaluation.rounds import told_by_chief
from torch_estimator.errors import CheckpointError, InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.table import tables_of_checkpoint
from torch_estimator.hooks.checkpoint_saver_listener import CheckpointSaverListener
from torch_estimator.hooks.hook import Hook
from torch_estimator.inputs.calling import call_input_fn
from torch_estimator.inputs.input_context import InputContext
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import (
    EstimatorSpec,
    EvalSpec,
    InputFn,
    check_input_fn,
    check_positive,
    checked_hooks,
    checked_listeners,
)
from torch_estimator.strategies.joining import (
    connected_servers,
    end_servers,
    forked_replicas,
    joined_group,
    may_meet,
    meeting_nobody,
)
from torch_estimator.strategies.mirrored import MirroredStrategy
from torch_estimator.strategies.sharded.units import shard
from torch_estimator.strategies.strategies import FullyShardedStrategy, MultiWorkerMirroredStrategy
from torch_estimator.summary.event_files import EventWriter
from torch_estimator.train.evaluation import EvaluationResult, run_evaluation, write_evaluation, write_results
from torch_estimator.train.loop import StopReason, TrainingResult
from torch_estimator.train.model import Model
from torch_estimator.train.prediction import run_prediction
from torch_estimator.train.preemption import Preempted
from torch_estimator.train.random_state import drawing_alike, isolated, seeded
from torch_estimator.train.training import TrainingRun, log_end
from torch_estimator.warm_start import WarmStart, as_settings

if TYPE_CHECKING:
    from torch_estimator.data.dataset import Dataset
    from torch_estimator.distributed.group import Group
    from torch_estimator.feature_column.transform import FeatureTransform
    from torch_estimator.heads.base import Head
    from torch_estimator.models.from_module.optimizers import ModuleOptimizer
    from torch_estimator.parameter_server.client import Links
    from torch_estimator.serving_input import ServingInput

logger = logging.getLogger("torch_estimator")

ModelFn = Callable[..., EstimatorSpec]

_FINAL_MEMBERS = (
    *("train", "evaluate", "predict", "export_saved_model", "export", "model_dir", "config", "params", "eval_dir"),
    *("get_variable_names", "get_variable_value", "trained_module"),
)


class Estimator:
    """Trains, evaluates, predicts with and exports the model that ``model_fn`` describes.

    Args:
        model_fn: Called with those of ``mode``, ``params`` and ``config`` that it names; returns an `EstimatorSpec`.
        model_dir: Where checkpoints, summaries and exports go: a path or an fsspec URL. None takes the one of
            ``config``, or else a temporary directory.
        config: How the job runs.
        params: Handed to ``model_fn``.
        warm_start_from: A checkpoint of another job, or its directory, whose parameters the model starts with where
            ``model_dir`` has no checkpoint yet, or `WarmStartSettings` that say which; the steps count from 0.

    Raises:
        InvalidValueError: Where arguments contradict each other.
        InvalidTypeError: Where ``model_fn`` cannot be called as it must be.
    """

    def __init__(
        self,
        model_fn: ModelFn,
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: WarmStart | None = None,
    ) -> None:
        if config is not None and not isinstance(config, RunConfig):
            raise InvalidTypeError(f"config must be a RunConfig, but got {config!r}.")
        _check_not_overridden(type(self))
        _check_model_fn(model_fn, params)
        self._model_fn = model_fn
        self._warm_start_from = as_settings(warm_start_from)
        self._config = _with_model_dir(config or RunConfig(), model_dir)
        self._params = copy.deepcopy(dict(params or {}))
        self._evaluated: Model | None = None
        self._job: tuple[EvalSpec, ...] | None = None
        self._trained = _Trained()
        self._lease: _Lease | None = None
        self._holds_weights: bool = getattr(model_fn, "holds_weights", False)

    @staticmethod
    def from_module(
        module: torch.nn.Module,
        *,
        head: Head | None = None,
        loss: Callable[[Any, Any], torch.Tensor] | None = None,
        predictions: Callable[[Any], Mapping[str, torch.Tensor]] | None = None,
        metrics: Mapping[str, Any] | None = None,
        optimizer: ModuleOptimizer | None = None,
        columns: Iterable[Any] | None = None,
        transform: FeatureTransform | None = None,
        model_dir: str | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart | None = None,
    ) -> Estimator:
        """Returns an Estimator of any module.

        The module given holds the initial weights and is never changed: every training, evaluation, prediction and
        export works on a copy. `trained_module` gives the trained one.

        Args:
            module: Called with the features of one batch: a tensor, or a dict or tuple of them, as the input has them;
                floating ones in the dtype of its parameters. A ``forward`` of several arguments gets the members of the
                tuple, or those of the dict that it names.
            head: One of `torch_estimator.heads`; either this or ``loss``.
            loss: ``loss(outputs, labels)`` -> scalar, such as ``nn.CrossEntropyLoss()``. Torch's own losses get labels
                of the shape and dtype they take.
            predictions: ``predictions(outputs)`` -> dict of tensors ``[N, ...]``; without it the outputs are predicted.
            metrics: Name -> ``metric(labels, predictions)`` -> number, or a torchmetrics object; see `EstimatorSpec`.
            optimizer: A name (``"Adam"``, at a learning rate of 0.001, ``"SGD"`` at 0.01), a function from named
                parameters to an optimizer, or optimizers and schedules of torch made on the module's parameters, whose
                groups, options and state are taken over. Needed for training.
            columns: Feature columns in front: the module then takes their float32 ``[N, width]``.
            transform: Host half of the columns where the module has its own `feature_column.InputLayer` or
                `LinearModel`.
            model_dir: As in the constructor.
            config: As in the constructor.
            warm_start_from: As in the constructor.

        Raises:
            InvalidValueError: Where arguments contradict each other.
            InvalidTypeError: Where one is of the wrong type, or the module cannot be copied.

        >>> net = torch.nn.Linear(2, 1)
        >>> estimator = Estimator.from_module(
        ...     net, loss=torch.nn.MSELoss(), optimizer="SGD", model_dir="memory://from_module"
        ... )
        >>> data = ([[0.0, 1.0], [1.0, 0.0]], [1.0, 2.0])
        >>> estimator.train(lambda: data, steps=3).evaluate(lambda: data)["global_step"]
        3
        """
        from torch_estimator.models.from_module.module_model import ModuleModel

        model_fn = ModuleModel(
            module,
            head=head,
            loss=loss,
            predictions=predictions,
            metrics=metrics,
            optimizer=optimizer,
            columns=columns,
            transform=transform,
        )
        return Estimator(model_fn, model_dir, config, warm_start_from=warm_start_from)

    def trained_module(self, checkpoint_path: str | None = None) -> torch.nn.Module:
        """Returns the module with a checkpoint's weights, ready to predict; it is the caller's own.

        A Keras model comes with the optimizer's state, so that its ``fit`` goes on from there.

        Args:
            checkpoint_path: Whose weights; None for the newest checkpoint's.

        Raises:
            CheckpointError: Where there is no checkpoint.
        """
        source = self._source(checkpoint_path, "take the module from")
        with isolated(self._config.random_seed):
            model = self._build(ModeKeys.PREDICT, restored=source is not None)
        checkpoint = self._restore(model, source)
        module: torch.nn.Module = getattr(model.module, "unwrapped", model.module)
        if checkpoint is not None and module is not model.module:
            model.restore_carried(checkpoint)
        return module

    @property
    def model_dir(self) -> str:
        """Where the job keeps its files."""
        assert self._config.model_dir is not None
        return str(self._config.model_dir)

    @property
    def config(self) -> RunConfig:
        """The settings the job runs with."""
        return self._config

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the ``params`` given."""
        return copy.deepcopy(self._params)

    def eval_dir(self, name: str | None = None) -> str:
        """Directory of the summaries of evaluations called ``name``."""
        return files.join(self.model_dir, f"eval_{name}" if name else "eval")

    def latest_checkpoint(self) -> str | None:
        """Path of the newest checkpoint, or None."""
        self._settle()
        return latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Names of the variables in the newest checkpoint, the optimizers' and the global step among them.

        Raises:
            CheckpointError: Where the model is not trained yet.
        """
        checkpoint = self._checkpoint()
        return sorted([*checkpoint.variables, *checkpoint.slots, "global_step"])

    def get_variable_value(self, name: str) -> np.ndarray:
        """Value of a variable in the newest checkpoint.

        Raises:
            CheckpointError: Where the model is not trained yet, or has no such variable.
        """
        checkpoint = self._checkpoint()
        if name == "global_step":
            return np.array(checkpoint.step)
        for variables in (checkpoint.variables, checkpoint.slots):
            if name in variables:
                return np.asarray(variables[name].numpy())
        raise CheckpointError(
            f"The checkpoint {checkpoint.path} has no variable {name!r}; get_variable_names() lists them."
        )

    def train(
        self,
        input_fn: InputFn,
        hooks: Iterable[Hook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Iterable[CheckpointSaverListener] | None = None,
    ) -> Estimator:
        """Trains from the newest checkpoint, or from nothing.

        Args:
            input_fn: Returns the training data (see `torch_estimator.data.to_dataset`); called with those of ``mode``,
                ``params``, ``config`` and ``input_context`` (an `InputContext`) that it names.
            hooks: Told while training runs.
            steps: Steps to take.
            max_steps: Global step to stop at; nothing happens where it is reached already. With neither, training
                ends with the input.
            saving_listeners: Told before and after each checkpoint.

        Returns:
            The Estimator itself.

        Raises:
            NanLossDuringTrainingError: The loss or a trained variable became NaN or infinite.
            DataError: Where the input cannot be read.
            CheckpointError: Where the directory holds another model's checkpoints, or cannot be written.
            ModelDirInUseError: Where another training writes into the directory.
            KeyboardInterrupt: After Ctrl-C, once the step at hand is taken and a checkpoint saved; training again goes
                on from there. A second Ctrl-C raises it at once. Where SIGINT has a handler of yours, and in a thread
                other than the main one, nothing of this is done.
        """
        if steps is not None and max_steps is not None:
            raise InvalidValueError(f"Give steps or max_steps, not both, but got steps={steps}, max_steps={max_steps}.")
        self._train(input_fn, hooks, saving_listeners, steps=steps, max_steps=max_steps)
        return self

    def _train(
        self,
        input_fn: InputFn,
        hooks: Iterable[Hook] | None,
        saving_listeners: Iterable[CheckpointSaverListener] | None,
        *,
        steps: int | None = None,
        max_steps: int | None = None,
        input_over_when_ended: bool = True,
        is_over: Callable[[], bool] = lambda: False,
    ) -> TrainingResult | None:
        # is_over: asked by who trains while parameter servers cannot be reached, whether the chief has ended training.
        check_trains(self._config._task)
        if self._config._task.source is None:
            check_trains_alone(os.environ)
        check_input_fn(input_fn)
        check_positive("steps", steps)
        check_positive("max_steps", max_steps)
        told = checked_hooks(hooks)
        listeners = checked_listeners(saving_listeners)
        with self._leased() as lease:
            if lease is not None and lease.check is not None:
                listeners = (*listeners, _LeaseListener(lease.check))
            return self._train_leased(
                input_fn,
                told,
                listeners,
                steps=steps,
                max_steps=max_steps,
                input_over_when_ended=input_over_when_ended,
                is_over=is_over,
            )

    def _train_leased(
        self,
        input_fn: InputFn,
        told: Sequence[Hook],
        listeners: Sequence[CheckpointSaverListener],
        *,
        steps: int | None,
        max_steps: int | None,
        input_over_when_ended: bool,
        is_over: Callable[[], bool],
    ) -> TrainingResult | None:
        sharded = isinstance(self._config.train_distribute, FullyShardedStrategy)
        checkpoint = self._last_checkpoint()
        if checkpoint is None and self._config.is_chief:
            check_some_named(self.model_dir)
        start = checkpoint.step if checkpoint is not None else 0
        if max_steps is not None and max_steps <= start:
            logger.info("Skipping training: max_steps=%d is reached by the checkpoint of step %d.", max_steps, start)
            end_servers(self._config)
            return None
        try:
            with ExitStack() as stack:
                replicas = stack.enter_context(forked_replicas(self._config))
                task = self._config._task if replicas is None else replicas.task
                if replicas is not None and task.rank:
                    copy_of_task = dataclasses.replace(self._config._task, is_copy=True)
                    self._config = dataclasses.replace(self._config, _task=copy_of_task)
                group = stack.enter_context(joined_group(self._config, replicas))
                servers = stack.enter_context(connected_servers(self._config))
                if group is not None and replicas is None:
                    # The chief may have been saving still what it had begun to, while this process was started again.
                    if self.latest_checkpoint() != (checkpoint.path if checkpoint is not None else None):
                        checkpoint = self._last_checkpoint()
                    start = checkpoint.step if checkpoint is not None else 0
                last_step = int(start + steps) if steps is not None else None if max_steps is None else int(max_steps)
                train = functools.partial(
                    self._train_with,
                    task,
                    group,
                    servers,
                    input_fn,
                    checkpoint,
                    last_step,
                    max_steps,
                    input_over_when_ended,
                    is_over,
                )
                while True:
                    try:
                        result = train(told, listeners)
                        break
                    except PeerLost as lost:
                        if sharded:
                            logger.error("%s", lost)
                            raise Preempted from lost
                        # Before the first step; there is nothing to keep.
                        assert group is not None
                        group.meet_another(lost)
        except TrainingOver:
            logger.info("The others have ended the training.")
            return None
        except LeftBehind as behind:
            logger.error("%s", behind)
            raise Preempted from behind
        log_end(result)
        if result.reason is StopReason.INTERRUPTED:
            if task.rank == 0 and (saved := self.latest_checkpoint()) is not None:
                logger.info("The last checkpoint is %s.", saved)
            raise KeyboardInterrupt
        if result.reason is StopReason.PREEMPTED:
            raise Preempted
        return result

    @contextmanager
    def _leased(self) -> Iterator[_Lease | None]:
        """Hold the lease of ``model_dir`` where this process saves checkpoints, unless the caller holds it already."""
        config, thread = self._config, threading.get_ident()
        if not (config.is_chief and (config.save_checkpoints_steps or config.save_checkpoints_secs)):
            yield None
        elif self._lease is not None and self._lease.thread == thread:
            yield self._lease
        else:
            with leased(self.model_dir) as check:
                self._lease = _Lease(thread, check)
                try:
                    yield self._lease
                finally:
                    self._lease = None

    def _last_checkpoint(self) -> Checkpoint | None:
        return load_checkpoint(self.model_dir) if self.latest_checkpoint() is not None else None

    def _train_with(
        self,
        task: Task,
        group: Group | None,
        servers: Links | None,
        input_fn: InputFn,
        checkpoint: Checkpoint | None,
        last_step: int | None,
        max_steps: int | None,
        input_over_when_ended: bool,
        is_over: Callable[[], bool],
        hooks: Sequence[Hook],
        listeners: Sequence[CheckpointSaverListener],
    ) -> TrainingResult:
        saved_step = checkpoint.step if checkpoint is not None else None
        with seeded(self._config.random_seed):
            strategy = self._config.train_distribute
            sharded = strategy if group is not None and isinstance(strategy, FullyShardedStrategy) else None
            model = self._build(ModeKeys.TRAIN, task.device, restored=checkpoint is not None, moved=sharded is None)
            shares_input = task.type == REPLICA
            model_dir = None if shares_input else self.model_dir
            positions = None
            if checkpoint is None and not (group is not None and group.was_under_way):
                # Optimizers may keep a copy of what they begin with.
                self._warm_start(model)
            # A schedule moves what it sets, so they are described as they are at first.
            trainers = model.make_optimizers() if sharded is None else None
            description = {}
            if group is not None or servers is not None:
                # Each of them reads its part of so many.
                sizes = {"the number of processes that train": task.num_workers}
                description = {CLUSTER: sizes, **describe_training(model, trainers)}
            if servers is not None and max_steps is not None:
                # Where they train in step, they compare their last steps.
                description = {**description, "the end of training": {"max_steps": int(max_steps)}}
            agree = functools.partial(
                agree_on_training, description=description, model_dir=model_dir, config=self._config
            )
            if group is not None and group.was_under_way:
                agree(group)
                snapshot = handed(group, leader_of(group.statuses)[0], None)
                checkpoint, last_step = snapshot.as_checkpoint(self.model_dir), snapshot.last_step
                positions = snapshot.positions
                logger.info("The others are at global step %d; going on with them.", snapshot.step)
            elif group is not None:
                begins_with = None if checkpoint is None else files.basename(checkpoint.path)
                agree(group, begins_with=begins_with, last_step=last_step)
                # Only the chief knows whether this training was interrupted.
                input_over_when_ended = bool(group.gather_texts("yes" if input_over_when_ended else "")[0])
            if group is not None and sharded is not None:
                shard(model, group, sharded, from_chief=checkpoint is None)
                trainers = model.make_optimizers()
                agree_on(group, describe_optimizers(model.module, trainers))
            assert trainers is not None
            if task.rank and not shares_input:
                # What each of them drops out or shuffles is its own.
                torch.manual_seed((torch.initial_seed() + task.rank) % 2**63)
            run = TrainingRun(
                model,
                trainers,
                self._dataset(input_fn, ModeKeys.TRAIN, task),
                config=self._config,
                model_dir=self.model_dir,
                checkpoint=checkpoint,
                input_over_when_ended=input_over_when_ended,
                group=group,
                servers=servers,
                saved_step=saved_step,
                agree=agree,
                evaluate=self._evaluate_with_chief,
                description=description,
                positions=positions,
                is_over=is_over,
            )
            if task.rank and shares_input and not run.has_random_state:
                # All of them go through the same input.
                torch.manual_seed((torch.initial_seed() + task.rank) % 2**63)
            self._trained.run = run
            try:
                return run.run(last_step=last_step, hooks=hooks, listeners=listeners)
            finally:
                self._trained.run = None

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Iterable[Hook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, float]:
        """Evaluates a checkpoint.

        With ``eval_distribute=MultiWorkerMirroredStrategy()`` all that train together call this, each runs its part of
        the batches, and all of them have the chief's results.

        Args:
            input_fn: Returns the evaluation data.
            steps: Batches to evaluate, or None for all.
            hooks: Told while the evaluation runs.
            checkpoint_path: What to evaluate; None for the newest one, or the initial weights where there is none.
            name: Distinguishes several evaluations; results go to ``<model_dir>/eval_<name>``.

        Returns:
            Metric name -> value, with ``loss`` and ``global_step``.
        """
        check_input_fn(input_fn)
        check_positive("steps", steps)
        spec = EvalSpec(input_fn, steps, name, checked_hooks(hooks))
        path = checkpoint_path or self.latest_checkpoint()
        if self._shares_evaluations and may_meet():
            with joined_group(self._config, purpose="evaluate") as group:
                return self._evaluate_spec(spec, path, group)
        group = self._called_to_evaluation(spec, path)
        if group is not None:
            try:
                return self._evaluate_spec(spec, path, group)
            except PeerLost as lost:
                logger.warning("%s; evaluating alone.", lost)
                # Hooks may have left something in it.
                self._evaluated = None
        # Alone, this process may take a newer checkpoint where training removes that one meanwhile.
        return self._evaluate_spec(spec, path if checkpoint_path or path is None else self.model_dir)

    def _evaluate_spec(self, spec: EvalSpec, path: str | None, group: Group | None = None) -> EvaluationResult:
        devices = self._devices_of_evaluation() if group is None else ()
        with isolated(self._config.random_seed), ExitStack() as stack:
            if group is not None:
                stack.enter_context(group.sharing_work())
            # Building a model anew would cost more than many an evaluation; only its weights change in between.
            model = self._evaluated if path is not None and self._evaluated is not None else None
            model = model or self._build(ModeKeys.EVAL, restored=path is not None)
            self._evaluated = model
            if group is not None:
                told, seed = told_by_chief(group, [self._told_path(path), torch.initial_seed()])
                path = told if told is None or "/" in told else files.join(self.model_dir, told)
                # Whoever shuffles the input has to do so as the chief does.
                stack.enter_context(drawing_alike(seed))
            checkpoint = self._restore(model, path)
            if group is not None and self._job is None:
                settings = {"the evaluation": {"name": spec.name, "steps": spec.steps}}
                agree_on(group, {**settings, **describe_training(model, None)})
                if path is None:
                    group.broadcast(model.variables().values())
            results = run_evaluation(
                model,
                self._dataset(spec.input_fn, ModeKeys.EVAL),
                global_step=0 if checkpoint is None else checkpoint.step,
                steps=spec.steps,
                hooks=checked_hooks(spec.hooks),
                model_dir=self.model_dir,
                eval_dir=self.eval_dir(spec.name),
                devices=devices,
                group=group,
            )
        if group is None or group.rank == 0:
            write_evaluation(self.eval_dir(spec.name), results, "" if checkpoint is None else checkpoint.path)
        return results

    def _told_path(self, path: str | None) -> str | None:
        """A path as it is told to others, who may see the model_dir elsewhere: in there, the name only."""
        if path is None or files.parent(path) == files.as_url(self.model_dir):
            return path and files.basename(path)
        return os.path.abspath(files.as_url(path)) if files.is_local(path) else path

    @contextmanager
    def _in_job(self, eval_specs: Sequence[EvalSpec]) -> Iterator[None]:
        """While `train_and_evaluate` runs: who trains together evaluates what the chief calls for, when it does."""
        self._job = tuple(eval_specs)
        try:
            with meeting_nobody():
                yield
        finally:
            self._job = None

    def _called_to_evaluation(self, spec: EvalSpec, path: str | None) -> Group | None:
        """For the chief of a job: those who share an evaluation by now; None where it has to evaluate alone."""
        run = self._trained.run
        if run is None or not (self._shares_evaluations and self._config.is_chief):
            return None
        known = [(one.name, one.input_fn, one.steps, one.hooks) for one in self._job or ()]
        if (spec.name, spec.input_fn, spec.steps, spec.hooks) not in known:
            return None
        return run.called_to_evaluation(json.dumps([spec.name, self._told_path(path)]))

    def _evaluate_with_chief(self, group: Group) -> None:
        name, path = json.loads(group.gather_texts("")[0])
        with group.sharing_work():
            specs = [one for one in self._job or () if one.name == name]
            if not specs:
                raise InvalidValueError(f"The chief evaluates {name!r}, but here there is no EvalSpec of that name.")
        self._evaluate_spec(specs[0], path, group)

    @property
    def _shares_evaluations(self) -> bool:
        config, task = self._config, self._config._task
        shares = isinstance(config.eval_distribute, MultiWorkerMirroredStrategy)
        # Replicas of one machine end with their training.
        trains_on_replicas = isinstance(config.train_distribute, MirroredStrategy)
        return shares and not trains_on_replicas and task.num_workers > 1 and not task.num_ps

    def _devices_of_evaluation(self) -> tuple[str, ...]:
        strategy = self._config.eval_distribute
        if isinstance(strategy, MirroredStrategy):
            return strategy.torch_devices()
        if strategy is not None and self._evaluated is None and self._config._task.is_of_cluster:
            logger.warning(
                "eval_distribute is a %s: this process evaluates alone, with the same results; a MirroredStrategy has "
                "replicas of its machine share the work.",
                type(strategy).__name__,
            )
        return ()

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: str | Sequence[Any] | None = None,
        hooks: Iterable[Hook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Yields predictions, computed as they are asked for.

        Args:
            input_fn: Returns features, or features and labels, of which the labels are ignored.
            predict_keys: Predictions to yield, with a `MultiHead` pairs ``(head, key)``; None for all.
            hooks: Told while predicting.
            checkpoint_path: What to predict with; None for the newest checkpoint, or the weights of
                ``warm_start_from`` where there is none.
            yield_single_examples: Whether to yield one example at a time (arrays without the batch dimension), or
                batches.

        Raises:
            InvalidValueError: Where none of ``predict_keys`` is among the predictions.
            CheckpointError: Where there is no checkpoint.
        """
        check_input_fn(input_fn)
        told = checked_hooks(hooks)
        source = self._source(checkpoint_path, "predict with")
        with isolated(self._config.random_seed):
            model = self._build(ModeKeys.PREDICT, restored=source is not None)
        checkpoint = self._restore(model, source)
        dataset = self._dataset(input_fn, ModeKeys.PREDICT)
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        return run_prediction(
            model,
            dataset,
            global_step=0 if checkpoint is None else checkpoint.step,
            keys=keys,
            hooks=told,
            single_examples=yield_single_examples,
            model_dir=self.model_dir,
        )

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: ServingInput | Callable[[], ServingInput],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> str:
        """Writes the model with its preprocessing as one ONNX graph into a new ``<export_dir_base>/<unix seconds>``.

        Args:
            export_dir_base: A path or URL.
            serving_input_receiver_fn: What the export takes: one of `torch_estimator.serving_input`, or a function
                returning one.
            assets_extra: Files to add: name below ``assets.extra`` -> source.
            as_text: Only False; it is here because tf.estimator had it.
            checkpoint_path: What to export; None for the newest checkpoint, or the weights of ``warm_start_from``
                where there is none.

        Returns:
            Path of the export.

        Raises:
            CheckpointError: Where there is no checkpoint.
            ExportError: Where the model cannot be exported.
        """
        from torch_estimator.export.writer import write_export

        if as_text:
            raise InvalidValueError("as_text must be False: an ONNX export has no text form; use 'estimator show'.")
        if serving_input_receiver_fn is None:
            raise InvalidValueError(
                "export_saved_model needs a serving_input_receiver_fn, such as te.serving_input.raw_features(columns)."
            )
        source = self._source(checkpoint_path, "export")
        with isolated(self._config.random_seed):
            model = self._build(ModeKeys.PREDICT, restored=source is not None)
        checkpoint = self._restore(model, source)
        receiver = serving_input_receiver_fn() if callable(serving_input_receiver_fn) else serving_input_receiver_fn
        return write_export(
            export_dir_base,
            module=model.module,
            transform=model.spec.transform,
            head=model.head,
            receiver=receiver,
            assets_extra=assets_extra,
            global_step=0 if checkpoint is None else checkpoint.step,
            forward=model.spec.forward_features,
            layers=model.spec.forward_layers,
            structure=model.structure,
        )

    export = export_saved_model

    def _extended(self, change: Callable[[EstimatorSpec], EstimatorSpec]) -> Estimator:
        """Returns another Estimator of the same job, whose specs are what ``change`` makes of this one's."""

        def model_fn(mode: str, params: dict[str, Any], config: RunConfig) -> EstimatorSpec:
            return change(self._spec(mode, params, config))

        extended = Estimator(model_fn, config=self._config, params=self._params, warm_start_from=self._warm_start_from)
        extended._trained = self._trained
        extended._holds_weights = self._holds_weights
        return extended

    def _source(self, checkpoint_path: str | None, purpose: str) -> str | None:
        """Return what `_restore` takes: a checkpoint, ``model_dir`` for its newest, or None for the initial weights."""
        if checkpoint_path:
            return checkpoint_path
        if self.latest_checkpoint() is not None:
            # Not its path: training may have removed it by the time it is read.
            return self.model_dir
        if not self._holds_weights and self._warm_start_from is None:
            raise CheckpointError(f"There is no checkpoint in {self.model_dir} to {purpose}; train first.")
        return None

    def _spec(self, mode: str, params: dict[str, Any], config: RunConfig) -> EstimatorSpec:
        spec = self._model_fn(**_named_in(self._model_fn, {"mode": mode, "params": params, "config": config}))
        if not isinstance(spec, EstimatorSpec):
            raise InvalidValueError(f"model_fn must return an EstimatorSpec, but returned {spec!r}.")
        return spec

    def _build(self, mode: ModeKeys, device: str | None = None, *, restored: bool = False, moved: bool = True) -> Model:
        """Call ``model_fn``; where `restored`, the caller restores a checkpoint before the model is used."""
        logger.info("Calling model_fn.")
        with tables_of_checkpoint(restored=restored) as left_at_zero:
            spec = self._spec(mode, self.params, self._config)
        logger.info("Done calling model_fn.")
        in_module = set(spec.module.modules())
        for table, draw in left_at_zero.items():
            # A checkpoint holds what is in the module, not what a loss of the user's holds, for instance.
            if table not in in_module:
                draw()
        return Model(self._apart_from_training(spec), device, moved=moved)

    def _apart_from_training(self, spec: EstimatorSpec) -> EstimatorSpec:
        """Copies a module that ``model_fn`` returns in every mode: evaluating must not change the one in training."""
        if any(map(is_sharded, spec.module.parameters())):
            raise InvalidValueError(
                f"model_fn returned a {type(spec.module).__name__} that FullyShardedStrategy has spread over the "
                "processes before; make the module anew in every call."
            )
        if spec.mode == ModeKeys.TRAIN:
            self._trained.module = weakref.ref(spec.module)
            if self._evaluated is not None and self._evaluated.module is spec.module:
                self._evaluated = None
        elif self._trained.module is not None and self._trained.module() is spec.module:
            return dataclasses.replace(spec, module=copy.deepcopy(spec.module))
        return spec

    def _evaluate_live(
        self,
        model: Model | None,
        weights: Mapping[str, torch.Tensor],
        input_fn: InputFn,
        *,
        global_step: int,
        steps: int | None,
        hooks: Sequence[Hook],
        events: EventWriter,
    ) -> Model:
        """Evaluates ``weights`` in a model of its own, made where ``model`` is None; returns it for the next time."""
        with isolated(self._config.random_seed):
            model = model or self._build(ModeKeys.EVAL, restored=True)
            model.copy_variables(weights)
            results = run_evaluation(
                model,
                self._dataset(input_fn, ModeKeys.EVAL),
                global_step=global_step,
                steps=steps,
                hooks=hooks,
                model_dir=self.model_dir,
                eval_dir=events.logdir,
            )
        write_results(events, results)
        events.flush()
        return model

    def _dataset(self, input_fn: InputFn, mode: ModeKeys, task: Task | None = None) -> Dataset:
        size, rank = (1, 0) if task is None else (task.num_workers, task.rank)
        in_sync = 1 if task is None or task.num_ps else size
        # Replicas of one machine have one input, of which each takes its batches.
        shared = task is not None and task.type == REPLICA
        pipelines, pipeline = (1, 0) if shared else (size, rank)
        context = InputContext(num_input_pipelines=pipelines, input_pipeline_id=pipeline, num_replicas_in_sync=in_sync)
        given = {"mode": mode, "params": self.params, "config": self._config, "input_context": context}
        dataset = to_dataset(call_input_fn(input_fn, given), repeat_single_batch=mode == ModeKeys.TRAIN)
        return dataset.divided(size, rank) if shared and size > 1 else dataset

    def _restore(self, model: Model, source: str | None) -> Checkpoint | None:
        """Copy a checkpoint, or the newest of a directory, into a model; return it, or None for initial weights."""
        if source is None:
            if self._warm_start_from is None:
                logger.warning("There is no checkpoint in %s: using the initial weights.", self.model_dir)
            self._warm_start(model)
            return None
        self._settle()
        checkpoint = load_checkpoint(source)
        logger.info("Restoring parameters from %s", checkpoint.path)
        model.restore(checkpoint)
        return checkpoint

    def _wait_for_checkpoint(self) -> None:
        """Waits until the checkpoint that training saves, if any, can be read; raises where it could not be written."""
        if self._trained.run is not None:
            self._trained.run.wait()

    @property
    def _is_interrupted(self) -> bool:
        """Whether Ctrl-C has asked the training that runs, if any, to end."""
        return self._trained.run is not None and self._trained.run.is_interrupted

    def _settle(self) -> None:
        """Lets a hook that evaluates in the middle of training see the checkpoint that is just being written."""
        if self._trained.run is not None:
            self._trained.run.settle()

    def _warm_start(self, model: Model) -> None:
        if self._warm_start_from is not None:
            checkpoint = load_checkpoint(self._warm_start_from.ckpt_to_initialize_from)
            model.warm_start(checkpoint, self._warm_start_from)

    def _checkpoint(self) -> Checkpoint:
        if self.latest_checkpoint() is None:
            raise CheckpointError(f"There is no checkpoint in {self.model_dir} yet; train first.")
        return load_checkpoint(self.model_dir)


@dataclasses.dataclass(frozen=True, slots=True)
class _Lease:
    """The lease of a model directory.

    Attributes:
        thread: That took it. Another thread that trains at the same time is another training.
        check: Raises where the lease is lost; None where it cannot be.
    """

    thread: int
    check: Check | None


class _LeaseListener(CheckpointSaverListener):
    """Keeps a training that has lost its lease from saving."""

    reads_checkpoint = False

    def __init__(self, check: Check) -> None:
        self._check = check

    def before_save(self, global_step: int) -> None:
        self._check()


@dataclasses.dataclass(slots=True)
class _Trained:
    """The module trained last and the run that is going on, by an Estimator or one that was made of it."""

    module: weakref.ref[torch.nn.Module] | None = None
    run: TrainingRun | None = None


def _named_in(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return {name: value for name, value in given.items() if name in parameters and name not in bound}


def _check_not_overridden(kind: type[Estimator]) -> None:
    for name in _FINAL_MEMBERS:
        if getattr(kind, name) is not getattr(Estimator, name):
            raise InvalidValueError(
                f"{kind.__name__} must not override Estimator.{name}; what differs belongs into its model_fn."
            )


def _check_model_fn(model_fn: object, params: Mapping[str, Any] | None) -> None:
    if not callable(model_fn):
        raise InvalidTypeError(f"model_fn must be callable, but got {model_fn!r}.")
    parameters = inspect.signature(model_fn).parameters
    known = ("mode", "params", "config")
    for name, parameter in parameters.items():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if name not in known and not optional:
            raise InvalidValueError(
                f"model_fn may take {', '.join(known)}, but takes {name!r}; features and labels go to the module "
                "and the loss of the EstimatorSpec that it returns."
            )
    if params is not None and "params" not in parameters:
        raise InvalidValueError("params are given, but model_fn does not take an argument called params.")


def _with_model_dir(config: RunConfig, model_dir: str | None) -> RunConfig:
    given = None if model_dir is None else files.as_url(model_dir)
    configured = None if config.model_dir is None else files.as_url(config.model_dir)
    if given and configured and given != configured:
        raise InvalidValueError(
            f"model_dir is {given!r}, but {configured!r} in config; make them the same or remove one of them."
        )
    chosen = given or configured
    if chosen is None and config._task.is_of_cluster:
        raise InvalidValueError(
            f"{config._task.source} names a cluster, whose processes need one model_dir that all of them see, but none "
            "is given; set it in RunConfig or TF_CONFIG."
        )
    if chosen is None:
        chosen = tempfile.mkdtemp(prefix="torch_estimator_")
        logger.warning("No model_dir given: using the temporary directory %s.", chosen)
    return config.replace(model_dir=chosen)
