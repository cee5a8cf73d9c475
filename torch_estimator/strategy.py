"""Interfaces `Strategy` and `Session`, through which a training is spread over devices and processes.

A user chooses a `Strategy` with ``RunConfig(train_distribute=...)``. `Strategy.join` yields a `Session`, which is this
process's part of one training. `Estimator.train` calls the session in this order:

    with strategy.join(config) as session:
        with session.attempt():
            training = Training(build_model(...), ...)
            session.begin(training)                # optimizers; agree with the others on where to start; restore
            training.open_input(input_fn)
            with session.steps(training, context) as steps:
                result = run_training(steps, ...)  # the loop; hooks save what `session.snapshot` returns
                session.end(result)

The training loop, the checkpoints and the configuration depend on these two classes only, not on their subclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch_estimator.cluster.task import Task

if TYPE_CHECKING:
    from torch import Tensor

    from torch_estimator.checkpoint.row_file import RowFileName
    from torch_estimator.data.dataset import Dataset
    from torch_estimator.hooks.hook import RunContext
    from torch_estimator.hooks.schedule import HookSchedule
    from torch_estimator.run_config import RunConfig
    from torch_estimator.train.loop import Steps, TrainingResult
    from torch_estimator.train.model import Model
    from torch_estimator.train.scores import Scores
    from torch_estimator.train.training import Training


class Strategy:
    """Base class of strategies, which spread a training over devices and processes.

    Its methods are called by the package, and are not part of the interface.

    >>> isinstance(te.distribute.MirroredStrategy(["cpu:0"]), te.distribute.Strategy)
    True
    """

    def check(self, task: Task) -> None:
        """Raise an InvalidValueError if the strategy cannot use the processes of the cluster, or needs others."""

    def join(self, config: RunConfig) -> AbstractContextManager[Session]:
        """Connect to the other processes of the training; yield this process's `Session`, and disconnect at the end.

        If the others have ended the training, the context manager may end the body early without an error. Raise a
        ClusterError if they cannot be reached, and Preempted if this process has to be started again to go on.
        """
        raise NotImplementedError

    def dismiss(self, config: RunConfig, *, is_over: bool = False) -> None:
        """End processes that only serve a training, such as parameter servers. Called when nothing is left to train.

        Only the chief ends other processes. `is_over` says whether the last training in the model directory is known to
        be over.
        """

    def share_evaluation(self, config: RunConfig) -> AbstractContextManager[EvaluationShare | None]:
        """Connect to the processes that share one evaluation; yield an `EvaluationShare`, or None if there are none.

        Called if the strategy is the ``eval_distribute`` of `RunConfig`. If the context manager yields None, this
        process evaluates alone, with the same results.
        """
        return nullcontext()

    @property
    def evaluates(self) -> bool:
        """Whether this strategy can be used as ``eval_distribute``."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContent:
    """Content of a checkpoint that is about to be written: parameters and buffers, optimizer state, and other state.

    JSON can represent the values of `state`. If several processes (`shards`) each write a part of the tensors,
    `variables` and `slots` are the chief's part. `row_files` waits for files with rows of large tables, which others
    write into the directory of the checkpoint, and returns what they are.
    """

    variables: Mapping[str, Tensor]
    slots: Mapping[str, Tensor]
    state: Mapping[str, Any]
    shards: int = 1
    row_files: Callable[[], Sequence[RowFileName]] | None = None


class Session:
    """Base class of sessions. A session is one process's part of one training.

    `config` may differ from the program's settings if the strategy has forked this process. `moves_module` says whether
    the module is moved to its device as soon as it is built; it is False if the session shards it. `has_servers` says
    whether parameter servers hold large tables.
    """

    moves_module = True
    has_servers = False

    def __init__(self, config: RunConfig, task: Task) -> None:
        self.config = config
        self.task = task

    def attempt(self) -> AbstractContextManager[None]:
        """Run the body. If another process is lost before the first step, suppress the error and await a replacement.

        The caller repeats the body until it completes without such an error.
        """
        return nullcontext()

    def begin(self, training: Training) -> None:
        """Make the optimizers, agree with the other processes on the state to start from, and load that state.

        Raise a ClusterError if the program or the settings of a process differ from the chief's.
        """
        raise NotImplementedError

    def steps(self, training: Training, context: RunContext) -> AbstractContextManager[Steps]:
        """Restore the position in the input, and yield the object that takes the training steps.

        If the body fails, the other processes are notified.
        """
        raise NotImplementedError

    def refresh(self, context: RunContext) -> None:
        """Fetch the model, optimizer state and global step from parameter servers, if any, before they are saved."""

    def snapshot(self, reserve: Callable[[], str]) -> CheckpointContent:
        """Return what a checkpoint written now must contain. The chief calls this between two training steps.

        `reserve` returns the directory of the unfinished checkpoint, for sessions in which other processes write a part
        of it. Raise a CheckpointError if one could not write its part, and NotFinite if a variable trained there is NaN
        or infinite.
        """
        raise NotImplementedError

    def call_to_evaluation(self, request: str) -> EvaluationShare | None:
        """Ask the other processes to share an evaluation between two steps; return None if the chief evaluates alone.

        The other processes pass `request`, which describes the evaluation, to `SharedEvaluator.evaluate_with_chief`.
        """
        return None

    def end(self, result: TrainingResult) -> TrainingResult:
        """Leave the other processes after the last step; return the result that holds for all processes."""
        return result


class EvaluationShare:
    """One process's part of an evaluation that several processes share."""

    is_first = True
    """Whether this process runs the hooks and adds up the scores."""

    def working(self) -> AbstractContextManager[None]:
        """Run this process's part of the evaluation in the body; if the body fails, notify the other processes."""
        return nullcontext()

    def agree_on_source(self, path: str | None, seed: int) -> tuple[str | None, int]:
        """Return the checkpoint and the random seed for all processes: the values of the first process.

        The path is relative to the model directory if the checkpoint is inside it, and None for the initial weights.
        """
        return path, seed

    def check_model(self, model: Model, settings: Mapping[str, Any], *, broadcast: bool) -> None:
        """Raise an error if the processes have different models or different settings of the evaluation.

        The model has its weights, and JSON can represent the settings. If there is no checkpoint, `broadcast` is set:
        then the first process's weights are copied to all processes.
        """

    def evaluate(
        self,
        model: Model,
        dataset: Dataset,
        scores: Scores,
        steps: int | None,
        context: RunContext,
        schedule: HookSchedule,
    ) -> None:
        """Run the model on this process's batches.

        The first process also adds the batches of all, in order, to its scores.

        The Dataset has all batches, the same in every process, of which `steps` are evaluated (None: all). The schedule
        says when hooks are called with the context.
        """
        raise NotImplementedError

    def results(self, results: dict[str, float], batches: int) -> tuple[dict[str, float], int]:
        """Return, in every process, the results and the number of batches that the first process passes."""
        return results, batches


class SharedEvaluator(Protocol):
    """Object that runs this process's part of each evaluation that the chief calls for."""

    def evaluate_with_chief(self, share: EvaluationShare, request: str) -> None:
        """Run this process's part of the evaluation that the chief describes in `request`."""
