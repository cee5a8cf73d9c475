"""What a caller can have told while training or evaluation runs."""

from torch_estimator.hooks.checkpoint_saver_listener import CheckpointSaverListener
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.stop_at_step import StopAtStepHook

__all__ = ["CheckpointSaverListener", "Hook", "RunContext", "StopAtStepHook"]
