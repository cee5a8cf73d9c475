"""The seam between a training and the processes that it is spread over.

A `Strategy` is what a user gives as ``RunConfig(train_distribute=...)``. Joining it gives a `Session`: the part that
this process has in one training. `Estimator.train` calls the session in this order:

    with strategy.join(config) as session:
        with session.attempt():
            training = Training(...)               # the model, just built
            session.begin(training)                # optimizers; agree with the others on where to start; restore
            training.open_input(dataset)
            with session.steps(training, context) as steps:
                result = run_training(steps, ...)  # the loop; hooks save what `session.snapshot` returns
                session.end(result)

The training loop, checkpoints and configuration know these two classes and none of their implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch_estimator.cluster.task import Task

if TYPE_CHECKING:
    from torch import Tensor

    from torch_estimator.data.dataset import Dataset
    from torch_estimator.hooks.hook import RunContext
    from torch_estimator.hooks.schedule import HookSchedule
    from torch_estimator.run_config import RunConfig
    from torch_estimator.train.loop import Steps, TrainingResult
    from torch_estimator.train.model import Model
    from torch_estimator.train.scores import Scores
    from torch_estimator.train.training import Training


class Strategy:
    """How a training is spread over devices and processes. The defaults are those of one process."""

    def check(self, task: Task) -> None:
        """Raise where the strategy does not fit the cluster.

        Args:
            task: The place of this process in it.

        Raises:
            InvalidValueError: The cluster has other processes than the strategy needs.
        """

    def join(self, config: RunConfig) -> AbstractContextManager[Session]:
        """Find the other processes of the training, and leave them at the end.

        The context manager may end the body early without an error, where the others have ended the training.

        Raises:
            ClusterError: They cannot be reached.
            Preempted: This process has to be started again to go on.
        """
        raise NotImplementedError

    def dismiss(self, config: RunConfig, *, is_over: bool = False) -> None:
        """End what the cluster keeps for a training, where this process finds that there is nothing left to train.

        Args:
            config: The chief's.
            is_over: Whether the last training in the model directory is known to be over.
        """

    def share_evaluation(self, config: RunConfig) -> AbstractContextManager[EvaluationShare | None]:
        """Find the processes that share one evaluation with this one, as ``RunConfig(eval_distribute=...)``.

        None has this process evaluate alone, with the same results.
        """
        return nullcontext()

    @property
    def evaluates(self) -> bool:
        """Whether ``eval_distribute`` takes this strategy."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContent:
    """What one checkpoint holds.

    Attributes:
        variables: Parameters and buffers, by name.
        slots: The optimizers' state, by name.
        state: What is not a tensor, as JSON.
        shards: How many processes have written a part of the tensors; the chief's part is here.
    """

    variables: Mapping[str, Tensor]
    slots: Mapping[str, Tensor]
    state: Mapping[str, Any]
    shards: int = 1


class Session:
    """The part that this process has in one training.

    Args:
        config: Settings of this process, which may differ from the program's where the strategy has forked it.
        task: Its place among the processes that train.

    Attributes:
        moves_module: Whether the module goes to its device as soon as it is built; False where the session spreads it.
    """

    moves_module = True

    def __init__(self, config: RunConfig, task: Task) -> None:
        self.config = config
        self.task = task

    def attempt(self) -> AbstractContextManager[None]:
        """Catch the loss of another process before the first step, find its replacement, and have the body run again.

        The caller repeats the body until it comes to its end.
        """
        return nullcontext()

    def begin(self, training: Training) -> None:
        """Prepare a training whose model is just built.

        Makes the optimizers, agrees with the other processes on where to start, and restores that state.

        Raises:
            ClusterError: This process is about to do something else than the chief.
        """
        raise NotImplementedError

    def steps(self, training: Training, context: RunContext) -> AbstractContextManager[Steps]:
        """Restore the position of the input, and give what takes the steps.

        Where the body fails, the other processes are notified.
        """
        raise NotImplementedError

    def refresh(self, context: RunContext) -> None:
        """Update the model, the optimizers and the global step, where another process holds them."""

    def snapshot(self, reserve: Callable[[], str]) -> CheckpointContent:
        """Return what the chief saves between two steps.

        Args:
            reserve: Returns the directory of the unfinished checkpoint, for sessions of which other processes write a
                part.

        Raises:
            CheckpointError: Another process could not write its part.
            NotFinite: A trained variable of another process is NaN or infinite.
        """
        raise NotImplementedError

    def call_to_evaluation(self, request: str) -> EvaluationShare | None:
        """Have the other processes share an evaluation between two steps; None where they cannot.

        Args:
            request: What `SharedEvaluator.evaluate_with_chief` takes there.
        """
        return None

    def end(self, result: TrainingResult) -> TrainingResult:
        """Leave the other processes after the last step; return the result that holds for all of them."""
        return result


class EvaluationShare:
    """The processes that share one evaluation. The defaults are those of processes forked for it."""

    is_first = True
    """Whether this process runs the hooks and adds up the scores."""

    def working(self) -> AbstractContextManager[None]:
        """Notify the others where the body fails."""
        return nullcontext()

    def agree_on_source(self, path: str | None, seed: int) -> tuple[str | None, int]:
        """Return the first process's checkpoint, and the seed of the random numbers that the input may draw.

        Args:
            path: The checkpoint to evaluate as this process sees it, relative to the model directory where it is in
                there; None for the initial weights.
            seed: The seed of this process.
        """
        return path, seed

    def check_model(self, model: Model, settings: Mapping[str, Any], *, broadcast: bool) -> None:
        """Raise where the others evaluate another model, or otherwise.

        Args:
            model: The model, its weights in place.
            settings: The settings of the evaluation, as JSON.
            broadcast: Whether to take over the first process's weights, since there is no checkpoint.
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
        """Run the batches of this process, and take those of the others into the first process's scores.

        Args:
            model: The model, its weights in place.
            dataset: All batches; every process gives the same.
            scores: Of the first process: takes all batches in, in their order.
            steps: Number of batches to evaluate, or None for all.
            context: The evaluation's.
            schedule: When its hooks are called.
        """
        raise NotImplementedError

    def results(self, results: dict[str, float], batches: int) -> tuple[dict[str, float], int]:
        """Return the first process's results and number of batches, in all processes."""
        return results, batches


class SharedEvaluator(Protocol):
    """Evaluates in this process what the chief has called for."""

    def evaluate_with_chief(self, share: EvaluationShare, request: str) -> None:
        """Run this process's part of an evaluation."""
