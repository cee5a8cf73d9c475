"""The work behind an Estimator's methods: how one model is trained, evaluated and restored in one model directory."""

from __future__ import annotations

import dataclasses
import logging
import os
import sysconfig
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from torch_estimator import activity
from torch_estimator.checkpoint.checkpoint import Checkpoint, check_some_named, latest_checkpoint, load_checkpoint
from torch_estimator.cluster.environment import check_trains_alone
from torch_estimator.cluster.task import check_trains
from torch_estimator.compile.runner_choice import make_runner
from torch_estimator.distributed.errors import PeerLost
from torch_estimator.errors import CheckpointError, DataError
from torch_estimator.feature_column.table import Table
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, checked_hooks, checked_listeners
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.run_config import RunConfig
from torch_estimator.runs.lease import leased
from torch_estimator.runs.locks import Check
from torch_estimator.specs import EvalSpec, InputFn, check_input_fn, check_positive
from torch_estimator.strategies.data_parallel import busy_with_group, shares_evaluation
from torch_estimator.strategies.default import strategy_of
from torch_estimator.strategy import EvaluationShare, Session, Strategy
from torch_estimator.summary.event_writer import EventWriter
from torch_estimator.train.evaluation import write_results
from torch_estimator.train.evaluator import CheckpointEvaluator
from torch_estimator.train.loop import StopReason, TrainingResult
from torch_estimator.train.model import Model
from torch_estimator.train.model_builder import ModelBuilder
from torch_estimator.train.preemption import Preempted
from torch_estimator.train.random_state import isolated, seeded
from torch_estimator.train.training import Training, log_end

logger = logging.getLogger("torch_estimator")


class EstimatorJob:
    """Trains, evaluates and restores the model of one Estimator.

    The public methods of `Estimator`, the roles of a cluster (`torch_estimator.executors`) and hooks that evaluate
    while training runs all use this object. `config` has a ``model_dir``; `holds_weights` says whether the model is
    usable without a checkpoint, because it came with weights.
    """

    def __init__(self, builder: ModelBuilder, config: RunConfig, *, holds_weights: bool) -> None:
        assert config.model_dir is not None
        self.builder = builder
        self.config = config
        self.model_dir = str(config.model_dir)
        self.evaluator = CheckpointEvaluator(builder, config, self.model_dir)
        self._holds_weights = holds_weights
        self._lease: _Lease | None = None
        self._running = _Running()

    def with_builder(self, builder: ModelBuilder) -> EstimatorJob:
        """Return a job in the same model directory that builds the model differently.

        Both jobs know of the training that either of them runs. A hook made with the one can therefore evaluate while
        the other trains.
        """
        job = EstimatorJob(builder, self.config, holds_weights=self._holds_weights)
        job._running = self._running
        return job

    def train(
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

        The arguments are those of `Estimator.train`, and two more:

        - `starts_input_over` matters if the input had already ended when the last checkpoint was saved. If True (a new
          call of ``train``), the input starts over. If False (an interrupted call is resumed), no further step is
          taken.
        - `is_over` returns whether the chief has announced the end of the training.
        """
        check_trains(self.config.task)
        if self.config.task.source is None:
            check_trains_alone(os.environ)
        check_input_fn(input_fn)
        check_positive("steps", steps)
        check_positive("max_steps", max_steps)
        hooks, listeners = checked_hooks(hooks), checked_listeners(saving_listeners)
        strategy = strategy_of(self.config)
        with (
            activity.doing("starting"),
            self.leased() as lease,
            activity.recording(self.model_dir, self.config.task),
        ):
            if lease is not None and lease.check is not None:
                listeners = (*listeners, _LeaseListener(lease.check))
            checkpoint = self._last_checkpoint()
            if checkpoint is None and self.config.is_chief:
                check_some_named(self.model_dir)
            if max_steps is not None and checkpoint is not None and max_steps <= checkpoint.step:
                reached = "Skipping training: max_steps=%d is reached by the checkpoint of step %d."
                logger.info(reached, max_steps, checkpoint.step)
                strategy.dismiss(self.config)
                return None
            result = None
            with strategy.join(self.config) as session:
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
            self.builder,
            task=session.task,
            config=session.config,
            model_dir=self.model_dir,
            checkpoint=checkpoint,
            last_step=int(start + steps) if steps is not None else None if max_steps is None else int(max_steps),
            max_steps=max_steps,
            starts_input_over=starts_input_over,
            make_runner=make_runner,
            evaluator=self.evaluator,
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
        with seeded(self.config.random_seed):
            training.build_model(moved=session.moves_module, on_servers=session.has_servers)
            session.begin(training)
            training.open_input(input_fn)
            self._running.training, self._running.session = training, session
            try:
                return training.run(session, hooks, listeners)
            finally:
                self._running.training = self._running.session = None

    @contextmanager
    def leased(self) -> Iterator[_Lease | None]:
        """Hold the lease of ``model_dir`` in the body, if this process saves checkpoints.

        Yields the lease, or None if this process saves no checkpoints. A lease that the caller's thread holds already
        is used again.
        """
        config, thread = self.config, threading.get_ident()
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

    @property
    def is_preempted(self) -> bool:
        """Whether SIGTERM or Ctrl-C came during the training that is running now."""
        training = self._running.training
        return training is not None and training.context is not None and training.context.preempted

    def wait_for_checkpoint(self) -> None:
        """Wait until the checkpoint that training is saving, if any, can be read; raise its error if saving failed."""
        if self._running.training is not None:
            self._running.training.wait()

    def _settle(self) -> None:
        """Wait for the checkpoint that is being written, so that a hook can evaluate it in the middle of training."""
        if self._running.training is not None:
            self._running.training.settle()

    def latest_checkpoint(self) -> str | None:
        """Return the path of the newest checkpoint, or None."""
        self._settle()
        return latest_checkpoint(self.model_dir)

    def checkpoint(self) -> Checkpoint:
        """Return the newest checkpoint; raise a CheckpointError if the model is not trained yet."""
        checkpoint = self._last_checkpoint()
        if checkpoint is None:
            raise CheckpointError(f"There is no checkpoint in {self.model_dir} yet; train first.")
        return checkpoint

    def _last_checkpoint(self) -> Checkpoint | None:
        return load_checkpoint(self.model_dir) if self.latest_checkpoint() is not None else None

    def evaluate(self, spec: EvalSpec, checkpoint_path: str | None) -> dict[str, float]:
        """Evaluate a checkpoint, together with other processes if the job's settings say so; return the metrics.

        Without a path this is the newest checkpoint, or the initial weights if there is none.
        """
        self._settle()
        path = checkpoint_path or self.latest_checkpoint()
        share = self._call_to_evaluation(spec, path)
        if share is not None:
            try:
                return self.evaluator.evaluate(spec, path, share, is_in_job=True)
            except PeerLost as lost:
                logger.warning("%s; evaluating alone.", lost)
                # Build the model anew, because hooks of the failed evaluation may have changed it.
                self.evaluator.forget_model()
        with (self.config.eval_distribute or Strategy()).share_evaluation(self.config) as share:
            if share is None and not checkpoint_path and path is not None:
                # Name the directory instead of the checkpoint. If training removes that checkpoint in the meantime, a
                # newer one is evaluated. Processes that share an evaluation must all read the same one, so they do not.
                path = self.model_dir
            return self.evaluator.evaluate(spec, path, share)

    @contextmanager
    def calls_to_evaluate(self, eval_specs: Sequence[EvalSpec]) -> Iterator[None]:
        """In the body, let the chief share the evaluations `eval_specs` with the processes that train.

        All of these processes know the same `eval_specs`, so the chief only has to send a name.
        """
        self.evaluator.specs = tuple(eval_specs)
        try:
            with busy_with_group():
                yield
        finally:
            self.evaluator.specs = ()

    def _call_to_evaluation(self, spec: EvalSpec, path: str | None) -> EvaluationShare | None:
        """Ask the job's other processes to share an evaluation; return None if this process must evaluate alone."""
        session = self._running.session
        if session is None or not (shares_evaluation(self.config) and self.config.is_chief):
            return None
        request = self.evaluator.request(spec, path)
        return None if request is None else session.call_to_evaluation(request)

    def evaluate_live(
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
        model, results = self.evaluator.evaluate_live(
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

    def restored_model(
        self,
        checkpoint_path: str | None,
        purpose: str,
        device: str | None = None,
        stored: Callable[[nn.Module], Collection[Table]] = lambda module: (),
    ) -> tuple[Model, Checkpoint | None]:
        """Build the model for prediction and restore a checkpoint, by default the newest, into it; return both.

        The checkpoint is None if there is none and the model has the weights it came with; if these are of no use,
        raise a CheckpointError, which says the purpose, such as ``"predict with"``. The device is by default that of
        the job. `stored` returns the tables of a module whose rows nobody reads but from the checkpoint.
        """
        source = self._source(checkpoint_path, purpose)
        with isolated(self.config.random_seed):
            model = self.builder.build(ModeKeys.PREDICT, self.config, device, restored=source is not None)
        self._settle()
        return model, self.builder.restore(model, source, self.model_dir, stored(model.module))

    def _source(self, checkpoint_path: str | None, purpose: str) -> str | None:
        """Return what to restore: a checkpoint, ``model_dir`` for its newest one, or None for the initial weights."""
        if checkpoint_path:
            return checkpoint_path
        if self.latest_checkpoint() is not None:
            # Return the directory, not the checkpoint's path: training may remove the checkpoint before it is read, and
            # `load_checkpoint` then reads a newer one.
            return self.model_dir
        if not self._holds_weights and self.builder.warm_start is None:
            raise CheckpointError(f"There is no checkpoint in {self.model_dir} to {purpose}; train first.")
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Lease:
    """The lease of a model directory; another thread that trains at the same time needs its own lease.

    `check` raises an error if the lease was lost; it is None for a lease that cannot be lost.
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
    """The training that is running now, if any, and its session."""

    training: Training | None = None
    session: Session | None = None


class ShortTraceback:
    """Leaves the frames of this package out of the traceback of a `DataError`, whose message says it all.

    The frames stay if one of the user's code is among them, such as of a function for `Dataset.map`. The debug log of
    ``torch_estimator`` has all of them.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, frames: TracebackType | None) -> None:
        if not isinstance(error, DataError):
            return
        paths = sysconfig.get_paths()
        own = (str(Path(__file__).parent), paths["stdlib"], paths["purelib"], "<")
        if all(frame.filename.startswith(own) for frame in traceback.extract_tb(frames)[1:]):
            logger.debug("The whole traceback:", exc_info=error)
            raise error.with_traceback(None) from None
