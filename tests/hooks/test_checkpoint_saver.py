"""CheckpointSaverHook: when it saves, and how it calls listeners."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from tests.train.losses import Losses
from torch_estimator.hooks import CheckpointSaverListener, RunContext
from torch_estimator.hooks.checkpoint_saver import CheckpointMemoryHook, CheckpointSaverHook
from torch_estimator.train.loop import StopReason, TrainingResult, run_training


class Run:
    """Run whose steps take one second each, and which records its saves."""

    def __init__(self, *, start: int = 0, last_step: int, lost: tuple[int, ...] = (), **arguments: Any) -> None:
        # Numbers of saves, counted from 1, whose checkpoints are not whole.
        self._lost = lost
        self._latest = start or None
        self.saved: list[int] = []
        self.waited: list[bool] = []
        self.amended: list[int] = []
        self.now = 100.0
        # A listener that evaluates takes 10 seconds.
        evaluating = [one for one in arguments.get("listeners", ()) if isinstance(one, Evaluating)]
        arguments = {"every_n_steps": None, "every_secs": None, "saved_step": start or None, **arguments}
        hook = CheckpointSaverHook(
            self, "runs/x", clock=lambda: self.now + 10 * sum(one.evaluations for one in evaluating), **arguments
        )
        self.result: TrainingResult = run_training(
            self, context=RunContext(global_step=start), last_step=last_step, hooks=[hook]
        )

    def save(self, step: int, *, wait: bool, is_last: bool = False) -> None:
        self.saved.append(step)
        self.waited.append(wait)
        self._latest = self._latest if len(self.saved) in self._lost else step

    def has_saved(self, step: int) -> bool:
        return self._latest == step

    def amend(self, step: int) -> None:
        self.amended.append(step)

    def refresh(self, context: RunContext) -> None:
        """Do nothing: no other process holds the state."""

    steps_per_call = 1

    def stops(self, context: RunContext) -> bool:
        return context.stop_requested

    def take(self, steps: int) -> list[torch.Tensor]:
        self.now += steps
        return [torch.tensor(1.0)] * steps

    def invalidate(self) -> None:
        """Do nothing."""


class Listener(CheckpointSaverListener):
    """Listener that records its calls and asks to stop after one of the saves."""

    def __init__(self, *, stop_after: int | None = None) -> None:
        self.entries: list[Any] = []
        self._stop_after = stop_after

    def begin(self) -> None:
        self.entries.append("begin")

    def before_save(self, global_step: int) -> None:
        self.entries.append(("before", global_step))

    def after_save(self, global_step: int) -> bool:
        self.entries.append(("after", global_step))
        return global_step == self._stop_after

    def end(self, global_step: int) -> None:
        self.entries.append(("end", global_step))


class Evaluating(CheckpointSaverListener):
    """Listener that counts its calls."""

    def __init__(self) -> None:
        self.evaluations = 0

    def after_save(self, global_step: int) -> None:
        self.evaluations += 1


@pytest.mark.parametrize(
    ("last_step", "saved"), [(10, [0, 4, 8, 10]), (8, [0, 4, 8]), (3, [0, 3]), (0, [0]), (1, [0, 1])]
)
def test_by_steps_at_the_start_every_so_many_and_at_the_end(last_step: int, saved: list[int]) -> None:
    assert Run(last_step=last_step, every_n_steps=4).saved == saved


def test_a_resumed_run_counts_from_its_start_and_does_not_save_that_again() -> None:
    assert Run(start=5, last_step=14, every_n_steps=4).saved == [9, 13, 14]


def test_by_seconds_since_the_last_save() -> None:
    assert Run(last_step=10, every_secs=3).saved == [0, 3, 6, 9, 10]
    assert Run(last_step=10, every_secs=2.5).saved == [0, 3, 6, 9, 10]
    assert Run(last_step=10, every_secs=600).saved == [0, 10]


def test_the_seconds_of_an_evaluation_do_not_count() -> None:
    assert Run(last_step=10, every_secs=3, listeners=[Evaluating()]).saved == [0, 3, 6, 9, 10]


def test_listeners_are_called_around_each_save_and_for_the_restored_checkpoint() -> None:
    listener = Listener()
    run = Run(start=5, last_step=8, every_n_steps=2, listeners=[listener])
    assert run.saved == [7, 8]
    saves = [(when, step) for step in (5, 7, 8) for when in ("before", "after")]
    assert listener.entries == ["begin", *saves, ("end", 8)]


def test_a_save_is_waited_for_only_with_listeners() -> None:
    assert set(Run(last_step=3, every_n_steps=1).waited) == {False}
    assert set(Run(last_step=3, every_n_steps=1, listeners=[Listener()]).waited) == {True}


def test_listeners_that_do_not_read_the_checkpoint_are_not_waited_for() -> None:
    blind = Listener()
    blind.reads_checkpoint = False
    assert set(Run(last_step=3, every_n_steps=1, listeners=[blind]).waited) == {False}
    assert blind.entries[1:3] == [("before", 0), ("after", 0)]
    assert set(Run(last_step=3, every_n_steps=1, listeners=[blind, Listener()]).waited) == {True}


@pytest.mark.parametrize("start", [0, 7])
def test_memory_is_allocated_once_after_the_first_step(start: int) -> None:
    calls: list[int] = []
    context = RunContext(global_step=start)
    hook = CheckpointMemoryHook(lambda: calls.append(context.global_step))
    run_training(Losses([1.0] * 9), context=context, last_step=start + 9, hooks=[hook])
    assert calls == [start + 1]


def test_a_listener_can_end_the_run() -> None:
    listeners = [Listener(stop_after=4), Listener()]
    run = Run(last_step=10, every_n_steps=2, listeners=listeners)
    assert (run.saved, run.result.reason) == ([0, 2, 4], StopReason.HOOK)
    assert ("after", 4) in listeners[1].entries


def test_a_listener_can_end_the_run_before_its_first_step() -> None:
    assert Run(last_step=10, every_n_steps=2, listeners=[Listener(stop_after=0)]).saved == [0]


def test_the_log_says_what_is_saved_where(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    Run(last_step=4, every_n_steps=4)
    assert caplog.messages == [f"Saving checkpoints for {step} into runs/x." for step in (0, 4)]


def test_states_changed_after_the_last_save_are_amended_at_the_end() -> None:
    run = Run(last_step=8, every_n_steps=4)
    assert run.saved == [0, 4, 8]
    assert run.amended == [8]
    assert Run(last_step=9, every_n_steps=4).amended == []


@pytest.mark.parametrize(("every", "lost", "saved"), [(10, (3,), [0, 10, 20, 20]), (100, (2, 3), [0, 20, 20, 20])])
def test_a_last_checkpoint_that_is_not_whole_is_saved_again(
    every: int, lost: tuple[int, ...], saved: list[int]
) -> None:
    job = Run(last_step=20, every_n_steps=every, lost=lost)
    assert job.saved == saved
    assert job.amended == []
