"""Saving of a training: what its session returns, checked and handed to the checkpoint writer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import latest_checkpoint
from torch_estimator.checkpoint.index import checkpoint_step
from torch_estimator.checkpoint.sharded_tensors import part_to_save
from torch_estimator.checkpoint.writer import CheckpointWriter
from torch_estimator.hooks.checkpoint_saver import CheckpointSaverHook
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.nan_tensor import NotFinite, check_finite
from torch_estimator.strategy import CheckpointContent, Session

if TYPE_CHECKING:
    from torch_estimator.train.training import Training

logger = logging.getLogger("torch_estimator")

_HOOKS = "hooks"


class TrainingSaver:
    """Saves checkpoints of one training, for `CheckpointSaverHook`.

    Args:
        training: The training.
        session: Says what a checkpoint of it holds.
        writer: Writes the checkpoints.

    Attributes:
        writer: The same writer.
        hook: The hook that says when to save, once it is made.
    """

    hook: CheckpointSaverHook

    def __init__(self, training: Training, session: Session, writer: CheckpointWriter) -> None:
        self.writer = writer
        self._training = training
        self._session = session

    def prepare(self) -> None:
        """Start to get the memory that a checkpoint is copied to."""
        training = self._training
        self.writer.prepare(_own(training.model.variables()), _own(training.slots()))

    def refresh(self, context: RunContext) -> None:
        """Update what is saved, and the global step; see `Session.refresh`."""
        self._session.refresh(context)

    def save(self, step: int, *, wait: bool) -> None:
        """Save the state between two steps.

        Args:
            step: The global step.
            wait: Whether to return only when the checkpoint can be read.

        Raises:
            CheckpointError: The previous checkpoint could not be written, or this one cannot.
            NotFinite: A trained variable is NaN or infinite.
        """
        check_finite(self._training.trained_variables())
        content = self._session.snapshot(lambda: self.writer.reserve(step))
        self._training.saved_state = {**content.state, _HOOKS: self._training.hook_states()}
        self.writer.save(
            step,
            _own(content.variables),
            _own(content.slots),
            self._training.saved_state,
            shards=content.shards,
        )
        if wait:
            self.writer.wait()

    def amend(self, step: int) -> None:
        """Replace the states of hooks in the checkpoint of the last step, where they have changed since."""
        states = self._training.hook_states()
        if states != self._training.saved_state.get(_HOOKS, {}):
            self._training.saved_state = {**self._training.saved_state, _HOOKS: states}
            self.writer.amend(step, self._training.saved_state)

    def save_content(self, step: int, content: CheckpointContent) -> None:
        """Save what the caller has at a step, unless that step is saved; return once it can be read.

        For a chief that has to end while other processes keep it from taking the next step.
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
