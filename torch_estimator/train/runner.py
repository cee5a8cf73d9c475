"""Step runners: they take training steps on batches, in Python or as compiled code.

The training loop and the strategies know only the interface `StepRunner`. `EagerRunner` takes steps in Python;
`torch_estimator.compile` has the runners that compile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from torch_estimator.hooks.hook import RunContext
from torch_estimator.run_config import RunConfig
from torch_estimator.train.batches import Batches, TensorBatch, batch_size, noting_batch
from torch_estimator.train.model import Model
from torch_estimator.train.observation import observed
from torch_estimator.train.step import TrainStep
from torch_estimator.train.threads import sized_threads

# Processes that exchange gradients run each step in two parts, before and after the exchange, with a runner for each.
GRADIENTS = "gradients"
"""The part of a step before the exchange: from a batch to gradients."""

UPDATE = "update"
"""The part of a step after the exchange: from gradients to new parameters."""


class StepRunner:
    """Base class of step runners: a runner takes training steps with one `TrainStep`, in Python or compiled.

    A runner is a context manager. On exit it stops the compilation that it has started, or lets it go on. Set
    `in_python` to take steps in Python even if there is a compiled step.
    """

    in_python: bool = False

    @property
    def steps_per_call(self) -> int:
        """Number of steps to take in one call of `take` for the best speed.

        Many compiled steps are taken per call, so that the call itself costs little. Hooks and signals are handled
        between calls.
        """
        return 1

    def __enter__(self) -> StepRunner:
        return self

    def __exit__(self, *exception: object) -> None:
        """End the use of this runner. This base class does nothing.

        A runner that compiles in the background stops the compilation if the run failed or was preempted. Otherwise the
        compilation goes on, so that a later run finds its result.
        """

    def state(self) -> Any:
        """Return what a resumed run needs to compile the same steps as this run, as values that JSON can represent.

        Then the results of the resumed run are equal bit for bit.
        """

    def take(self, batches: Batches, context: RunContext) -> Sequence[Tensor | float]:
        """Train on batches one after the other and return the loss of each; stop after a loss that is not finite."""
        raise NotImplementedError

    def invalidate(self) -> None:
        """Make the next step check whether the model or the optimizers have changed; called after code of the user."""

    def refresh_settings(self) -> None:
        """Make the next step read the optimizers' settings again; called when a schedule has changed them."""

    def is_ready_for(self, batches: Batches, context: RunContext, fill: Callable[[], object] | None = None) -> bool:
        """Return whether a compiled step is ready for the first of these batches.

        `fill` writes numbers like those of a batch into the batches, with which the compiled step is compared.
        """
        return False

    def check(self, *, always: bool = False) -> Comparison:
        """Compare compiled steps with Python again; without `always`, not if that was done in the last seconds."""
        return Comparison()

    def one_by_one(self, batches: Batches, context: RunContext) -> Callable[[int], float] | None:
        """Return a function that takes the index of a batch in ``batches``, trains on the batch, and returns its loss.

        Return None if `take` has to be used instead.
        """
        return None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What compiled steps compute otherwise than Python, as a text that fits after "because"; None if nothing.

    It is not `complete` if some step was not compared.
    """

    difference: str | None = None
    complete: bool = True


class MakeRunner(Protocol):
    """Type of the function that makes a runner for a training step."""

    def __call__(
        self,
        step: TrainStep,
        model: Model,
        config: RunConfig,
        *,
        before: Mapping[str, Any] | None,
        last_step: int | None,
        part: str = "",
    ) -> StepRunner:
        """Return a runner for ``step``.

        `before` is the runner's `state` in the run before a resume, or None. `part` is `GRADIENTS` or `UPDATE` if the
        step is one of these parts; empty for a whole step.
        """


class EagerRunner(StepRunner):
    """Runner that takes steps in Python, without compiled code."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step

    def invalidate(self) -> None:
        """Warn if parameters were unfrozen, because they are not trained. Other changes need no action."""
        self._step.warn_of_thawed()

    def take(self, batches: Batches, context: RunContext) -> list[Tensor]:
        """Train on batches one after the other; return the loss of each."""
        return [self._take(batch, context) for batch in batches]

    def _take(self, batch: TensorBatch, context: RunContext) -> Tensor:
        module = self._step.module
        with (
            sized_threads(module, batch_size(batch.features), with_input_thread=True),
            noting_batch(module, batch.features, batch.labels),
            observed(context),
        ):
            return self._step(batch.features, batch.labels, batch.weights)
