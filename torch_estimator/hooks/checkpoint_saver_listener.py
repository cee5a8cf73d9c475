"""Something told whenever a checkpoint is saved."""

from __future__ import annotations


class CheckpointSaverListener:
    """Told before and after each checkpoint; override what you need."""

    def begin(self) -> None:
        """Called once, before the first step."""

    def before_save(self, global_step: int) -> None:
        """Called before the checkpoint of ``global_step`` is written."""

    def after_save(self, global_step: int) -> bool | None:
        """Called once the checkpoint of ``global_step`` can be read; returning True ends training."""
        return None

    def end(self, global_step: int) -> None:
        """Called once after the last checkpoint."""
