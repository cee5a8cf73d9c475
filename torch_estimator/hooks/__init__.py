"""Hooks and listeners that are called while training, evaluation or prediction runs."""

from torch_estimator.hooks.early_stopping import (
    make_early_stopping_hook,
    read_eval_metrics,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from torch_estimator.hooks.final_ops import FinalOpsHook
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, RunContext
from torch_estimator.hooks.in_memory_evaluator import InMemoryEvaluatorHook
from torch_estimator.hooks.logging_tensor import LoggingTensorHook
from torch_estimator.hooks.nan_tensor import NanTensorHook
from torch_estimator.hooks.profiler import ProfilerHook
from torch_estimator.hooks.schedule import SecondOrStepTimer
from torch_estimator.hooks.step_counter import StepCounterHook
from torch_estimator.hooks.stop_at_step import StopAtStepHook, make_stop_at_checkpoint_step_hook
from torch_estimator.hooks.summary_saver import SummarySaverHook
from torch_estimator.hooks.trackers import MLflowTracker, WandbTracker
from torch_estimator.hooks.tracking import TrackedPoint, TrackedRun, Tracker, TrackingHook

__all__ = [
    "CheckpointSaverListener",
    "FinalOpsHook",
    "Hook",
    "InMemoryEvaluatorHook",
    "LoggingTensorHook",
    "MLflowTracker",
    "NanTensorHook",
    "ProfilerHook",
    "RunContext",
    "SecondOrStepTimer",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "TrackedPoint",
    "TrackedRun",
    "Tracker",
    "TrackingHook",
    "WandbTracker",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "read_eval_metrics",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
