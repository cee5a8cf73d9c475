"""Asynchronous successive halving: which trial goes on, compared with the paper's algorithm on recorded curves."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.trials import tried
from torch_estimator.errors import InvalidValueError
from torch_estimator.tuning.asha import Move, Standing, next_move, rungs

CURVES = Path(__file__).with_name("census_curves.json")


class Paper:
    """Algorithm 2 of Li et al., 2018, word for word: rungs of losses, and who was promoted from each.

    Only that it starts no more trials than a study has.
    """

    def __init__(self, rung_count: int, eta: int, trial_count: int) -> None:
        self.eta = eta
        self.rungs: list[dict[int, float]] = [{} for _ in range(rung_count)]
        self.promoted: list[set[int]] = [set() for _ in range(rung_count)]
        self.trial_count = trial_count
        self.started = 0

    def get_job(self) -> tuple[int, int] | None:
        for k in range(len(self.rungs) - 2, -1, -1):
            by_loss = sorted((loss, trial) for trial, loss in self.rungs[k].items())
            candidates = [trial for _, trial in by_loss[: int(len(by_loss) / self.eta)]]
            promotable = [trial for trial in candidates if trial not in self.promoted[k]]
            if promotable:
                self.promoted[k].add(promotable[0])
                return promotable[0], k + 1
        if self.started == self.trial_count:
            return None
        self.started += 1
        return self.started - 1, 0


Losses = Callable[[int, int], float | None]
"""Function that returns the loss of a trial at a rung; None if the trial fails on its way there."""


def assert_decides_like(paper: Paper, losses: Losses, chance: random.Random, *, workers: int, maximize: bool) -> None:
    """Compare each decision of a study with the paper's, where running trials end in a random order."""
    trials: dict[int, Standing] = {}
    running: list[tuple[int, int]] = []
    while True:
        while len(running) < workers:
            can_start = len(trials) < paper.trial_count
            move = next_move(trials, len(paper.rungs), maximize=maximize, can_start=can_start, factor=paper.eta)
            if move is None:
                assert paper.get_job() is None
                break
            trial = len(trials) if move.trial is None else move.trial
            assert (trial, move.rung) == paper.get_job()
            trials[trial] = dataclasses.replace(trials.get(trial, Standing([])), sent_to=move.rung)
            running.append((trial, move.rung))
        if not running:
            break
        trial, rung = running.pop(chance.randrange(len(running)))
        loss = losses(trial, rung)
        if loss is not None:
            paper.rungs[rung][trial] = math.inf if math.isnan(loss) else loss
            trials[trial] = Standing([*trials[trial].values, -loss if maximize else loss], sent_to=rung)
    assert len(trials) == paper.trial_count


@tried(200)
@given(st.integers(0, 1 << 30), st.integers(2, 4), st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_decisions_are_the_papers_also_with_equal_losses_nan_and_failures(
    seed: int, eta: int, rung_count: int, workers: int, maximize: bool
) -> None:
    chance = random.Random(seed)

    def losses(trial: int, rung: int) -> float | None:
        if chance.random() < 0.1:
            return None
        # Few different values, so that some are equal.
        return chance.choice([chance.randrange(4) / 4, math.nan])

    assert_decides_like(Paper(rung_count, eta, 40), losses, chance, workers=workers, maximize=maximize)


@tried(100)
@given(st.integers(0, 1 << 30), st.integers(2, 4), st.integers(1, 5))
def test_decisions_are_the_papers_on_recorded_curves(seed: int, eta: int, workers: int) -> None:
    """The curves are AUCs of the census model, recorded by ``benchmarks.peers.ours_study --curves``."""
    chance = random.Random(seed)
    recorded = json.loads(CURVES.read_text())
    at = [recorded["steps"].index(step) for step in rungs(125, 2000, eta)]
    curves = chance.sample(recorded["auc"], k=30)
    paper = Paper(len(at), eta, len(curves))
    assert_decides_like(paper, lambda trial, rung: -curves[trial][at[rung]], chance, workers=workers, maximize=True)
    # The best 1 / eta of each rung went on, and with several workers also some that were among them for a while.
    for reached, promoted in zip(paper.rungs, paper.promoted[:-1], strict=False):
        best = sorted(reached, key=lambda trial: (reached[trial], trial))[: len(reached) // eta]
        assert promoted.issuperset(best)


def test_nan_is_worse_than_infinity() -> None:
    trials = {0: Standing([math.nan]), 1: Standing([math.inf])}
    assert next_move(trials, 2, maximize=False, factor=2) == Move(1, 1)


def test_without_new_trials_a_worker_promotes_or_waits() -> None:
    trials = {number: Standing([float(number)]) for number in range(4)}
    assert next_move(trials, 2, maximize=True, can_start=False) == Move(3, 1)
    trials[3] = Standing([3.0], sent_to=1)
    assert next_move(trials, 2, maximize=True, can_start=False) is None
    # What waits is promoted as soon as the rung has grown, however long ago it paused.
    trials |= {number: Standing([0.0]) for number in range(4, 8)}
    assert next_move(trials, 2, maximize=True, can_start=False) == Move(2, 1)


def test_the_highest_rung_comes_first() -> None:
    reached = {number: Standing([1.0, float(number)], sent_to=1) for number in range(2)}
    waiting = {number: Standing([9.0]) for number in range(2, 8)}
    assert next_move({**reached, **waiting}, 3, maximize=True, factor=2) == Move(1, 2)


@tried(100)
@given(st.integers(1, 1000), st.integers(1, 100_000), st.integers(2, 5))
def test_rungs_grow_by_the_factor_up_to_the_maximum(least: int, most: int, factor: int) -> None:
    steps = rungs(least, most, factor)
    assert steps[-1] == most
    assert steps[:-1] == [least * factor**index for index in range(len(steps) - 1)]
    assert least >= most or most <= least * factor ** (len(steps) - 1)


@pytest.mark.parametrize("bad", [(0, 10, 4), (1, 0, 4), (1, 10, 1)])
def test_rungs_that_do_not_grow_are_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidValueError, match="rungs need at least 1 step and a factor of 2 or more, but got "):
        rungs(*bad)
