"""What is asked of settings before a job begins."""

from __future__ import annotations

from torch_estimator.errors import InvalidValueError
from torch_estimator.run_config import RunConfig


def check_saves_checkpoints(config: RunConfig) -> None:
    """Raises where there would be nothing to evaluate.

    Raises:
        InvalidValueError: Saving checkpoints is switched off.
    """
    if not (config.save_checkpoints_steps or config.save_checkpoints_secs):
        raise InvalidValueError(
            "train_and_evaluate evaluates checkpoints, so there should be some: set save_checkpoints_steps or "
            f"save_checkpoints_secs of RunConfig, which are {config.save_checkpoints_steps} and "
            f"{config.save_checkpoints_secs}."
        )
