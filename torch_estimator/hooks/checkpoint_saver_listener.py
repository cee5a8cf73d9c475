"""Something told whenever a checkpoint is saved."""

from __future__ import annotations


class CheckpointSaverListener:
    """Told before and after each checkpoint; override what you need.

    Attributes:
        reads_checkpoint: Whether training waits until the checkpoint can be read before it calls `after_save`. Set it
            to False where nobody reads it there: it is then written while training goes on.
    """

    reads_checkpoint: bool = True

    def begin(self) -> None:
        """Called once, before the first step."""

    def before_save(self, global_step: int) -> None:
        """Called before the checkpoint of ``global_step`` is written."""

    def after_save(self, global_step: int) -> bool | None:
        """Called after the checkpoint of ``global_step`` is saved; returning True ends training."""
        return None

    def end(self, global_step: int) -> None:
        """Called once after the last checkpoint."""
