"""Saving of checkpoints in training: collect the state, check that it is finite, and pass it to the writer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torch_estimator import activity, files
from torch_estimator.checkpoint.checkpoint import latest_checkpoint
from torch_estimator.checkpoint.index import checkpoint_step
from torch_estimator.checkpoint.sharded_tensors import part_to_save
from torch_estimator.checkpoint.writer import CheckpointWriter
from torch_estimator.errors import CompiledStepError
from torch_estimator.hooks.checkpoint_saver import CheckpointSaverHook
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.nan_tensor import NotFinite, check_finite
from torch_estimator.strategy import CheckpointContent, Session
from torch_estimator.train.runner import Comparison

if TYPE_CHECKING:
    from torch_estimator.train.training import Training

logger = logging.getLogger("torch_estimator")

_HOOKS = "hooks"


class TrainingSaver:
    """Saver of the checkpoints of one training. `CheckpointSaverHook`, which the caller sets, decides when to save.

    The session returns the content of checkpoints, which depends on the strategy.
    """

    hook: CheckpointSaverHook

    def __init__(self, training: Training, session: Session, writer: CheckpointWriter) -> None:
        self.writer = writer
        self._training = training
        self._session = session
        writer.trusted = writer.latest

    def prepare(self) -> None:
        """Start to allocate the memory that checkpoints are copied to, in the background."""
        training = self._training
        self.writer.prepare(_own(training.model.variables()), _own(training.slots()))

    def refresh(self, context: RunContext) -> None:
        """Fetch the model, the optimizer state and the global step, if other processes hold them."""
        # From now on, parameter servers keep the rows of this moment, so those of the last checkpoint must be written.
        self.writer.wait()
        self._session.refresh(context)

    @activity.doing("saving")
    def save(self, step: int, *, wait: bool, is_last: bool = False) -> None:
        """Save the current state as the checkpoint of a global step; with `wait`, return only when it can be read.

        Raise `NotFinite` if a trained variable is NaN or infinite, and `CompiledStepError` if a compiled step computes
        something else than Python.
        """
        check_finite(self._training.trained_variables())
        always = is_last or self.writer.trusted is None
        compared = self._compare(f"Global step {step} is not saved, because the", always=always)
        content = self._session.snapshot(lambda: self.writer.reserve(step))
        self._training.saved_state = {**content.state, _HOOKS: self._training.hook_states()}
        path = self.writer.save(
            step,
            _own(content.variables),
            _own(content.slots),
            self._training.saved_state,
            shards=content.shards,
            row_files=content.row_files,
        )
        if compared.complete:
            self.writer.trusted = files.basename(path)
        if wait:
            self.writer.wait()

    def has_saved(self, step: int) -> bool:
        """Wait until no checkpoint is being written; return whether the latest one is of this step.

        It is not if another process was lost while it wrote its part; see `NotWhole`.
        """
        self.writer.wait()
        latest = self.writer.latest
        return latest is not None and checkpoint_step(latest) == step

    def gone_back(self, error: CompiledStepError) -> CompiledStepError:
        """Make the last checkpoint before which compiled steps were compared the latest; return the error with it."""
        saved = self.writer.go_back()
        place = f"from {saved}" if saved is not None else "from the beginning"
        return CompiledStepError(f"{error} Start again to go on in Python {place}.")

    def _compare(self, begin: str, *, always: bool) -> Comparison:
        compared = self._training.compare_compiled_steps(always=always)
        if compared.difference is not None:
            raise CompiledStepError(
                f"{begin} compiled training step does not compute what Python computes (any more): "
                f"{compared.difference}."
            )
        return compared

    def amend(self, step: int) -> None:
        """After the last step, which is saved already, update the hooks' states in its checkpoint if they changed.

        Raise `CompiledStepError` as `save` does.
        """
        self._compare("The", always=True)
        self.writer.wait()
        states = self._training.hook_states()
        if states != self._training.saved_state.get(_HOOKS, {}):
            self._training.saved_state = {**self._training.saved_state, _HOOKS: states}
            self.writer.amend(step, self._training.saved_state)

    def save_content(self, step: int, content: CheckpointContent) -> None:
        """Save ``content`` as the checkpoint of ``step``, unless the step is saved already; return when it is complete.

        The chief calls this if it must end while it is waiting for other processes in the middle of a step. The content
        is then a copy of the state before that step.
        """
        self.writer.wait()
        latest = latest_checkpoint(self._training.model_dir)
        if latest is not None and checkpoint_step(files.basename(latest)) == step:
            return
        try:
            check_finite({name: content.variables[name] for name in self._training.trained_variables()})
        except NotFinite as found:
            logger.error("Global step %d is not saved: %r is not finite.", step, found.name)
            return
        logger.info("Saving checkpoints for %d into %s.", step, self._training.model_dir)
        self.writer.save(step, content.variables, content.slots, content.state)
        self.writer.wait()


def _own(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return part_to_save(tensors, is_chief=True)
