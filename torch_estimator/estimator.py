"""The Estimator: a model, a directory, and the calls that train, evaluate, predict and export it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import Checkpoint, check_some_named, latest_checkpoint, load_checkpoint
from torch_estimator.checkpoint.lease import Check, leased
from torch_estimator.cluster.environment import check_trains_alone
from torch_estimator.cluster.task import check_trains
from torch_estimator.compile.runner_choice import make_runner
from torch_estimator.distributed.errors import PeerLost
from torch_estimator.errors import CheckpointError, InvalidTypeError, InvalidValueError
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, checked_hooks, checked_listeners
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import (
    EstimatorSpec,
    EvalSpec,
    InputFn,
    check_input_fn,
    check_positive,
)
from torch_estimator.strategies.data_parallel import busy_with_group, shares_evaluation
from torch_estimator.strategies.default import strategy_of
from torch_estimator.strategy import EvaluationShare, Session, Strategy
from torch_estimator.summary.event_writer import EventWriter
from torch_estimator.train.evaluation import write_results
from torch_estimator.train.evaluator import CheckpointEvaluator
from torch_estimator.train.loop import StopReason, TrainingResult
from torch_estimator.train.model import Model
from torch_estimator.train.model_builder import ModelBuilder, ModelFn, TrainedModule
from torch_estimator.train.prediction import run_prediction
from torch_estimator.train.preemption import Preempted
from torch_estimator.train.random_state import isolated, seeded
from torch_estimator.train.training import Training, log_end
from torch_estimator.warm_start import WarmStart, as_settings

if TYPE_CHECKING:
    from torch_estimator.feature_column.transform import FeatureTransform
    from torch_estimator.from_module.optimizers import ModuleOptimizer
    from torch_estimator.heads.base import Head
    from torch_estimator.serving_input import ServingInput

logger = logging.getLogger("torch_estimator")

_FINAL_MEMBERS = (
    *("train", "evaluate", "predict", "export_saved_model", "export", "model_dir", "config", "params", "eval_dir"),
    *("get_variable_names", "get_variable_value", "trained_module"),
)


class Estimator:
    """Trains, evaluates, predicts with and exports the model that ``model_fn`` describes.

    Args:
        model_fn: Function that returns an `EstimatorSpec`. It may take any of ``mode``, ``params`` and ``config``.
        model_dir: Directory of checkpoints, summaries and exports: a path or an fsspec URL. None stands for the
            ``model_dir`` of ``config``, or for a temporary directory if ``config`` has none either.
        config: Settings of the job.
        params: Values to pass to ``model_fn`` as ``params``.
        warm_start_from: A checkpoint of another job, or its directory, or `WarmStartSettings`. If ``model_dir`` has no
            checkpoint yet, the model starts with the parameters of that job; its steps count from 0.

    Raises:
        InvalidValueError: Arguments contradict each other, or ``model_fn`` takes an argument of another name.
        InvalidTypeError: ``model_fn`` is not a function, or ``config`` is not a `RunConfig`.

    >>> def model_fn(params):
    ...     def adam(named_parameters):
    ...         return torch.optim.Adam([one for _, one in named_parameters])
    ...
    ...     module = torch.nn.Linear(2, params["units"])
    ...     return EstimatorSpec(mode="train", module=module, loss=torch.nn.MSELoss(), optimizer=adam)
    >>> estimator = Estimator(model_fn, "memory://estimator", params={"units": 1})
    >>> data = ([[0.0, 1.0], [1.0, 0.0]], [[1.0], [2.0]])
    >>> estimator.train(lambda: data, steps=2).get_variable_value("global_step")
    array(2)
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
        self._config = _with_model_dir(config or RunConfig(), model_dir)
        self._set_up(ModelBuilder(model_fn, params or {}, as_settings(warm_start_from), TrainedModule()))
        self._running = _Running()
        self._holds_weights: bool = getattr(model_fn, "holds_weights", False)

    def _set_up(self, builder: ModelBuilder) -> None:
        self._builder = builder
        self._evaluator = CheckpointEvaluator(builder, self._config, self.model_dir)
        self._lease: _Lease | None = None

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
        """Return an Estimator of any module.

        The given module holds the initial weights and is never changed: every training, evaluation, prediction and
        export works on a copy. `trained_module` returns the trained copy.

        Args:
            module: The module. It is called with the features of one batch in the structure that the input gives them:
                a tensor, or a dict or tuple of tensors. Floating-point features are converted to the dtype of the
                module's parameters. If ``forward`` has several arguments, it is called with the members of the tuple,
                or with the members of the dict that have the names of its arguments.
            head: One of `torch_estimator.heads`; give either a head or a ``loss``.
            loss: ``loss(outputs, labels)`` -> scalar, such as ``nn.CrossEntropyLoss()``. For torch's own losses, labels
                are converted to the shape and dtype that the loss takes.
            predictions: ``predictions(outputs)`` -> dict of tensors ``[N, ...]``; by default the outputs themselves.
            metrics: Name -> ``metric(labels, predictions)`` -> number, or a torchmetrics object; see `EstimatorSpec`.
            optimizer: A name (``"Adam"`` with a learning rate of 0.001, ``"SGD"`` with 0.01), or a function from named
                parameters to an optimizer, or optimizers and schedules of torch that were made with the module's
                parameters. The groups, options and state of such optimizers are copied. Needed for training.
            columns: Feature columns in front of the module. The module is then called with the columns' output, float32
                ``[N, width]``.
            transform: The part of the columns that runs in the input thread, for a module with its own
                `feature_column.InputLayer` or `LinearModel`.
            model_dir: The same as in the constructor.
            config: The same as in the constructor.
            warm_start_from: The same as in the constructor.

        Raises:
            InvalidValueError: Arguments contradict each other.
            InvalidTypeError: An argument is of the wrong type, or the module cannot be copied.

        >>> net = torch.nn.Linear(2, 1)
        >>> estimator = Estimator.from_module(
        ...     net, loss=torch.nn.MSELoss(), optimizer="SGD", model_dir="memory://from_module"
        ... )
        >>> data = ([[0.0, 1.0], [1.0, 0.0]], [1.0, 2.0])
        >>> estimator.train(lambda: data, steps=3).evaluate(lambda: data)["global_step"]
        3
        """
        from torch_estimator.from_module.module_model import ModuleModel

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
        """Return a new module with a checkpoint's weights, in evaluation mode.

        A Keras model also gets the optimizer's state, so that its ``fit`` continues from the checkpoint.

        Args:
            checkpoint_path: The checkpoint; None for the newest one.

        Raises:
            CheckpointError: There is no checkpoint.
        """
        model, checkpoint = self._restored_model(checkpoint_path, "take the module from")
        module: torch.nn.Module = getattr(model.module, "unwrapped", model.module)
        if checkpoint is not None and module is not model.module:
            model.restore_carried(checkpoint)
        return module

    @property
    def model_dir(self) -> str:
        """Directory of the job: checkpoints, summaries and exports."""
        assert self._config.model_dir is not None
        return str(self._config.model_dir)

    @property
    def config(self) -> RunConfig:
        """Settings of the job."""
        return self._config

    @property
    def params(self) -> dict[str, Any]:
        """Copy of the ``params`` that the constructor was called with."""
        return copy.deepcopy(self._builder.params)

    def eval_dir(self, name: str | None = None) -> str:
        """Return the directory for the summaries of the evaluations with the name ``name``."""
        return self._evaluator.eval_dir(name)

    def latest_checkpoint(self) -> str | None:
        """Return the path of the newest checkpoint, or None."""
        self._settle()
        return latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Return the names of all variables in the newest checkpoint, including optimizer slots and ``global_step``.

        Raises:
            CheckpointError: The model is not trained yet.
        """
        checkpoint = self._checkpoint()
        return sorted([*checkpoint.variables, *checkpoint.slots, "global_step"])

    def get_variable_value(self, name: str) -> np.ndarray:
        """Return the value of a variable in the newest checkpoint.

        Raises:
            CheckpointError: The model is not trained yet, or has no such variable.
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
        """Train from the newest checkpoint, or from the initial weights.

        Args:
            input_fn: Function that returns the training data (see `torch_estimator.data.to_dataset`). It may take any
                of ``mode``, ``params``, ``config`` and ``input_context`` (an `InputContext`).
            hooks: Hooks that are called while training runs.
            steps: Number of steps to take.
            max_steps: Global step to stop at. If a checkpoint has already reached it, nothing is trained. With neither
                ``steps`` nor ``max_steps``, training ends with the input.
            saving_listeners: Listeners that are called before and after each checkpoint.

        Returns:
            The Estimator itself.

        Raises:
            NanLossDuringTrainingError: The loss or a trained variable became NaN or infinite.
            DataError: The input cannot be read.
            CheckpointError: The directory holds another model's checkpoints, or cannot be written.
            ModelDirInUseError: Another training writes into the directory.
            KeyboardInterrupt: Ctrl-C was pressed. Training finishes the current step and saves a checkpoint before it
                raises this error, and the next call of ``train`` continues from that checkpoint. A second Ctrl-C raises
                the error at once. This does not apply if the program has its own SIGINT handler, nor in threads
                other than the main thread.
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
        starts_input_over: bool = True,
        is_over: Callable[[], bool] = lambda: False,
    ) -> TrainingResult | None:
        """Train; return how the training ended, or None if there was nothing to train.

        The arguments are those of `train`, and two more:

        - `starts_input_over` matters if the input had already ended when the last checkpoint was saved. If True (a new
          call of ``train``), the input starts over. If False (an interrupted call is resumed), no further step is
          taken.
        - `is_over` returns whether the chief has announced the end of the training.
        """
        check_trains(self._config._task)
        if self._config._task.source is None:
            check_trains_alone(os.environ)
        check_input_fn(input_fn)
        check_positive("steps", steps)
        check_positive("max_steps", max_steps)
        hooks, listeners = checked_hooks(hooks), checked_listeners(saving_listeners)
        strategy = strategy_of(self._config)
        with self._leased() as lease:
            if lease is not None and lease.check is not None:
                listeners = (*listeners, _LeaseListener(lease.check))
            checkpoint = self._last_checkpoint()
            if checkpoint is None and self._config.is_chief:
                check_some_named(self.model_dir)
            if max_steps is not None and checkpoint is not None and max_steps <= checkpoint.step:
                reached = "Skipping training: max_steps=%d is reached by the checkpoint of step %d."
                logger.info(reached, max_steps, checkpoint.step)
                strategy.dismiss(self._config)
                return None
            result = None
            with strategy.join(self._config) as session:
                if self.latest_checkpoint() != (None if checkpoint is None else checkpoint.path):
                    # Read the checkpoint again: if this process was restarted, the chief may have saved a newer one
                    # while this process was waiting to join.
                    checkpoint = self._last_checkpoint()
                while result is None:
                    with session.attempt():
                        training = self._training(session, checkpoint, steps, max_steps, starts_input_over, is_over)
                        result = self._run(session, training, input_fn, hooks, listeners)
        if result is None:
            return None
        log_end(result)
        if result.reason is StopReason.INTERRUPTED:
            if session.task.rank == 0 and (saved := self.latest_checkpoint()) is not None:
                logger.info("The last checkpoint is %s.", saved)
            raise KeyboardInterrupt
        if result.reason is StopReason.PREEMPTED:
            raise Preempted
        return result

    def _training(
        self,
        session: Session,
        checkpoint: Checkpoint | None,
        steps: int | None,
        max_steps: int | None,
        starts_input_over: bool,
        is_over: Callable[[], bool],
    ) -> Training:
        start = 0 if checkpoint is None else checkpoint.step
        return Training(
            self._builder,
            task=session.task,
            config=session.config,
            model_dir=self.model_dir,
            checkpoint=checkpoint,
            last_step=int(start + steps) if steps is not None else None if max_steps is None else int(max_steps),
            max_steps=max_steps,
            starts_input_over=starts_input_over,
            make_runner=make_runner,
            evaluator=self._evaluator,
            is_over=is_over,
        )

    def _run(
        self,
        session: Session,
        training: Training,
        input_fn: InputFn,
        hooks: Sequence[Hook],
        listeners: Sequence[CheckpointSaverListener],
    ) -> TrainingResult:
        with seeded(self._config.random_seed):
            training.build_model(moved=session.moves_module)
            session.begin(training)
            training.open_input(input_fn)
            self._running.training, self._running.session = training, session
            try:
                return training.run(session, hooks, listeners)
            finally:
                self._running.training = self._running.session = None

    @contextmanager
    def _leased(self) -> Iterator[_Lease | None]:
        """Hold the lease of ``model_dir`` in the body, if this process saves checkpoints.

        Yields the lease, or None if this process saves no checkpoints. A lease that the caller's thread holds already
        is used again.
        """
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

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Iterable[Hook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, float]:
        """Evaluate a checkpoint.

        With ``eval_distribute=MultiWorkerMirroredStrategy()``, all processes that train together must call this method.
        Each process evaluates a part of the batches, and all of them return the chief's results.

        Args:
            input_fn: Function that returns the evaluation data; see `train`.
            steps: Number of batches to evaluate, or None for all.
            hooks: Hooks that are called while the evaluation runs.
            checkpoint_path: The checkpoint; None for the newest one, or for the initial weights if there is none.
            name: Name that distinguishes several evaluations; summaries go to ``<model_dir>/eval_<name>``.

        Returns:
            Metric name -> value, with ``loss`` and ``global_step``.
        """
        check_input_fn(input_fn)
        check_positive("steps", steps)
        spec = EvalSpec(input_fn, steps, name, checked_hooks(hooks))
        self._settle()
        path = checkpoint_path or self.latest_checkpoint()
        share = self._call_to_evaluation(spec, path)
        if share is not None:
            try:
                return self._evaluator.evaluate(spec, path, share, is_in_job=True)
            except PeerLost as lost:
                logger.warning("%s; evaluating alone.", lost)
                # Build the model anew, because hooks of the failed evaluation may have changed it.
                self._evaluator.forget_model()
        with (self._config.eval_distribute or Strategy()).share_evaluation(self._config) as share:
            if share is None and not checkpoint_path and path is not None:
                # Name the directory instead of the checkpoint. If training removes that checkpoint in the meantime, a
                # newer one is evaluated. Processes that share an evaluation must all read the same one, so they do not.
                path = self.model_dir
            return self._evaluator.evaluate(spec, path, share)

    @contextmanager
    def _in_job(self, eval_specs: Sequence[EvalSpec]) -> Iterator[None]:
        """For the duration of `train_and_evaluate`, set up the evaluations that the chief shares with other processes.

        All processes that train together know the same `eval_specs`, so the chief only has to send a name.
        """
        self._evaluator.specs = tuple(eval_specs)
        try:
            with busy_with_group():
                yield
        finally:
            self._evaluator.specs = ()

    def _call_to_evaluation(self, spec: EvalSpec, path: str | None) -> EvaluationShare | None:
        """Ask the job's other processes to share an evaluation; return None if this process must evaluate alone."""
        session = self._running.session
        if session is None or not (shares_evaluation(self._config) and self._config.is_chief):
            return None
        request = self._evaluator.request(spec, path)
        return None if request is None else session.call_to_evaluation(request)

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: str | Sequence[Any] | None = None,
        hooks: Iterable[Hook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Yield predictions lazily.

        Args:
            input_fn: Function that returns features, or features and labels; labels are ignored.
            predict_keys: Keys of the predictions to yield (pairs ``(head, key)`` with a `MultiHead`); None for all.
            hooks: Hooks that are called while predicting.
            checkpoint_path: The checkpoint; None for the newest one, or for the weights of ``warm_start_from`` if there
                is no checkpoint.
            yield_single_examples: Whether to yield single examples (arrays without the batch dimension) or batches.

        Raises:
            InvalidValueError: None of ``predict_keys`` is among the predictions.
            CheckpointError: There is no checkpoint.
        """
        check_input_fn(input_fn)
        hooks = checked_hooks(hooks)
        model, checkpoint = self._restored_model(checkpoint_path, "predict with")
        dataset = self._builder.dataset(input_fn, ModeKeys.PREDICT, self._config)
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        return run_prediction(
            model,
            dataset,
            global_step=0 if checkpoint is None else checkpoint.step,
            keys=keys,
            hooks=hooks,
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
        """Write the model with its preprocessing as one ONNX graph into a new ``<export_dir_base>/<unix seconds>``.

        Args:
            export_dir_base: Directory of exports: a path or URL.
            serving_input_receiver_fn: Inputs of the export: one of `torch_estimator.serving_input`, or a function that
                returns one.
            assets_extra: Files to add to the export: name below ``assets.extra`` -> source.
            as_text: Must be False; the argument exists because tf.estimator has it.
            checkpoint_path: The checkpoint; None for the newest one, or for the weights of ``warm_start_from`` if there
                is no checkpoint.

        Returns:
            Path of the export.

        Raises:
            CheckpointError: There is no checkpoint.
            ExportError: The model cannot be exported.
        """
        from torch_estimator.export.writer import write_export

        if as_text:
            raise InvalidValueError("as_text must be False: an ONNX export has no text form; use 'estimator show'.")
        if serving_input_receiver_fn is None:
            raise InvalidValueError(
                "export_saved_model needs a serving_input_receiver_fn, such as te.serving_input.raw_features(columns)."
            )
        model, checkpoint = self._restored_model(checkpoint_path, "export")
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
        """Return another Estimator of the same job that applies ``change`` to each `EstimatorSpec` of this one."""
        builder = self._builder

        def model_fn(mode: str, params: dict[str, Any], config: RunConfig) -> EstimatorSpec:
            return change(builder.spec(mode, params, config))

        extended = Estimator(model_fn, config=self._config, params=builder.params)
        extended._set_up(ModelBuilder(model_fn, builder.params, builder.warm_start, builder.trained))
        extended._running = self._running
        extended._holds_weights = self._holds_weights
        return extended

    def _restored_model(self, checkpoint_path: str | None, purpose: str) -> tuple[Model, Checkpoint | None]:
        """Build the model for prediction and restore a checkpoint into it; `_source` explains the arguments."""
        source = self._source(checkpoint_path, purpose)
        with isolated(self._config.random_seed):
            model = self._build(ModeKeys.PREDICT, restored=source is not None)
        self._settle()
        return model, self._builder.restore(model, source, self.model_dir)

    def _source(self, checkpoint_path: str | None, purpose: str) -> str | None:
        """Return what to restore: a checkpoint, ``model_dir`` for its newest checkpoint, or None for initial weights.

        Args:
            checkpoint_path: The checkpoint that the user has chosen, or None.
            purpose: What the checkpoint is for, such as ``"predict with"``, for the error message.

        Raises:
            CheckpointError: There is no checkpoint, and the initial weights are of no use.
        """
        if checkpoint_path:
            return checkpoint_path
        if self.latest_checkpoint() is not None:
            # Return the directory, not the checkpoint's path: training may remove the checkpoint before it is read, and
            # `load_checkpoint` then reads a newer one.
            return self.model_dir
        if not self._holds_weights and self._builder.warm_start is None:
            raise CheckpointError(f"There is no checkpoint in {self.model_dir} to {purpose}; train first.")
        return None

    def _build(self, mode: ModeKeys, *, restored: bool = False) -> Model:
        return self._builder.build(mode, self._config, restored=restored)

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
        """Evaluate ``weights`` in a separate model and return that model, so that the next call can use it again.

        The model is built if ``model`` is None.
        """
        model, results = self._evaluator.evaluate_live(
            model,
            weights,
            input_fn,
            global_step=global_step,
            steps=steps,
            hooks=hooks,
            eval_dir=events.logdir,
        )
        write_results(events, results)
        events.flush()
        return model

    def _wait_for_checkpoint(self) -> None:
        """Wait until the checkpoint that training is saving, if any, can be read; raise its error if saving failed."""
        if self._running.training is not None:
            self._running.training.wait()

    @property
    def _is_interrupted(self) -> bool:
        """Whether Ctrl-C was pressed during the training that is running now."""
        training = self._running.training
        return training is not None and training.context is not None and training.context.interrupted

    def _settle(self) -> None:
        """Wait for the checkpoint that is being written, so that a hook can evaluate it in the middle of training."""
        if self._running.training is not None:
            self._running.training.settle()

    def _checkpoint(self) -> Checkpoint:
        if self.latest_checkpoint() is None:
            raise CheckpointError(f"There is no checkpoint in {self.model_dir} yet; train first.")
        return load_checkpoint(self.model_dir)


@dataclasses.dataclass(frozen=True, slots=True)
class _Lease:
    """The lease of a model directory.

    Attributes:
        thread: Id of the thread that holds the lease. Another thread that trains at the same time needs its own lease.
        check: Function that raises an error if the lease was lost; None if it cannot be lost.
    """

    thread: int
    check: Check | None


class _LeaseListener(CheckpointSaverListener):
    """Listener that keeps a training from saving after it has lost its lease."""

    reads_checkpoint = False

    def __init__(self, check: Check) -> None:
        self._check = check

    def before_save(self, global_step: int) -> None:
        self._check()


@dataclasses.dataclass(slots=True)
class _Running:
    """The training that is running now, if any; shared by an Estimator and those derived from it by `_extended`."""

    training: Training | None = None
    session: Session | None = None


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
