"""Samplers: what they propose, that a killed controller gets the same proposals, and Optuna's journal."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from torch_estimator.errors import InvalidValueError
from torch_estimator.tuning.samplers import Grid, Optuna, Random, Sampler, sampler_of
from torch_estimator.tuning.space import Categorical, Child, Discrete, Double, Integer, Space
from torch_estimator.tuning.study import Study

needs_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="Optuna is an extra: pip install -c constraints.txt -e '.[tune]'"
)

STUDY = Study(
    space=Space(
        (
            Double("rate", 1e-5, 0.1, scale="LOG"),
            Double("keep", 0.5, 0.999, scale="REVERSE_LOG"),
            Integer("units", 4, 64, scale="REVERSE_LOG"),
            Discrete("batch", ("8", "16.0", "1e2")),
            Categorical("kind", ("Adam", "SGD"), children=(Child(Double("momentum", 0, 1), ("SGD",)),)),
        )
    ),
    max_trials=100,
    seed=3,
)
EARLIER = {"rate": "0.002", "keep": "0.75", "units": "5", "batch": "16", "kind": "SGD", "momentum": "0.1"}
GRID = Study(space=Space((Discrete("rate", ("0.10", "1.50")), Integer("layers", 1, 3))), max_trials=9, algorithm="GRID")


def metric(texts: dict[str, str]) -> float:
    """A metric that is best at a rate of 0.001, with most kept, few units, batches of 8, and Adam."""
    values: dict[str, Any] = STUDY.space.values(texts)
    worse = abs(math.log10(values["rate"]) + 3) + 5 * (1 - values["keep"]) + values["units"] / 64
    return -worse - values["batch"] / 100 - (values["kind"] == "SGD")


def schedule() -> list[tuple[Any, ...]]:
    """What a controller does that runs two trials at a time, some of which pause, are promoted, fail or give NaN."""
    calls: list[tuple[Any, ...]] = [("add",)]
    for first in range(0, 30, 2):
        calls += [("ask",), ("ask",), ("tell", first, 100 if first % 3 == 0 else None), ("tell", first + 1, None)]
        if first % 3 == 0:
            calls.append(("tell", first, 400 if first % 12 else None))
        if first == 8:
            calls.append(("add",))
    return calls


SCHEDULE = schedule()


class Controller:
    """Goes through the schedule, first with what is on record, and records what it did."""

    def __init__(self, sampler: Sampler, record: list[dict[str, str] | None]) -> None:
        self.sampler = sampler
        self.proposals: list[dict[str, str]] = []
        self.record: list[dict[str, str] | None] = []
        for known in record:
            self._go_on(known)

    def run(self, calls: int) -> Controller:
        while len(self.record) < calls:
            self._go_on(None)
        return self

    def _go_on(self, known: dict[str, str] | None) -> None:
        kind, *details = SCHEDULE[len(self.record)]
        asked = None
        if kind == "ask":
            asked = self.sampler.ask(known)
            assert asked is not None
            self.proposals.append(asked)
        elif kind == "add":
            self.sampler.add(EARLIER, -1.5)
        else:
            number, step = details
            value = metric(self.proposals[number]) - 10 / (step or 1000)
            self.sampler.tell(number, {7: None, 8: math.nan}.get(number % 9, value), step)
        self.record.append(asked)


def samplers(journal: Path | None = None) -> list[Any]:
    def optuna() -> Sampler:
        return Optuna(STUDY, None if journal is None else str(journal))

    return [pytest.param(lambda: Random(STUDY), id="random"), pytest.param(optuna, id="optuna", marks=needs_optuna)]


@pytest.mark.parametrize("make", samplers())
def test_a_proposal_depends_on_the_record_and_not_on_the_process(make: Any) -> None:
    whole = Controller(make(), []).run(len(SCHEDULE))
    for killed in (2, 31, 64):
        assert Controller(make(), whole.record[:killed]).run(len(SCHEDULE)).proposals == whole.proposals
    assert len({repr(one) for one in whole.proposals}) == len(whole.proposals)
    for texts in whole.proposals:
        assert STUDY.space.values(texts).keys() == texts.keys()
        assert ("momentum" in texts) is (texts["kind"] == "SGD")
        assert texts["batch"] in ("8", "16.0", "1e2")


@pytest.mark.parametrize("make", samplers())
def test_another_seed_gives_other_proposals(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make().ask()
    monkeypatch.setattr(sys.modules[__name__], "STUDY", dataclasses.replace(STUDY, seed=4))
    assert make().ask() != first


@pytest.mark.parametrize("make", samplers())
def test_an_earlier_trial_must_be_of_this_space(make: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"parameter 'rate' must be from 1e-05 to 0\.1, but got 2"):
        make().add({**EARLIER, "rate": "2"}, 1.0)
    with pytest.raises(InvalidValueError, match="parameter 'momentum' has no value"):
        make().add({name: text for name, text in EARLIER.items() if name != "momentum"}, 1.0)


@pytest.mark.parametrize("make", samplers())
def test_a_study_that_goes_on_with_the_same_seed_tries_other_points(make: Any) -> None:
    def proposals(earlier: list[dict[str, str]]) -> list[dict[str, str]]:
        sampler = make()
        for texts in earlier:
            sampler.add(texts, metric(texts))
        return [sampler.ask() for _ in range(5)]

    first = proposals([])
    second = proposals(first)
    third = proposals(second)
    assert len({repr(one) for one in first + second + third}) == 15
    assert proposals(first) == second


def test_random_values_spread_over_their_scales() -> None:
    sampler = Random(STUDY)
    values = [STUDY.space.values(sampler.ask() or {}) for _ in range(2000)]
    for name, middle in (("rate", 1e-3), ("keep", 0.792), ("momentum", 0.5)):
        there = [float(one[name]) for one in values if name in one]
        assert sum(one < middle for one in there) / len(there) == pytest.approx(0.5, abs=0.05)
    for name, text in (("batch", 16.0), ("kind", "SGD")):
        share = sum(one[name] == text for one in values) / len(values)
        assert share == pytest.approx(1 / 3 if name == "batch" else 1 / 2, abs=0.05)


def test_a_grid_is_tried_point_by_point_and_ends() -> None:
    sampler = Grid(GRID)
    assert sampler.ask() == {"rate": "0.10", "layers": "1"}
    sampler = Grid(GRID)
    sampler.ask({"rate": "0.10", "layers": "1"})
    sampler.tell(0, None)
    rest = [sampler.ask() for _ in range(7)]
    points = [{"rate": rate, "layers": layers} for rate in ("0.10", "1.50") for layers in "123"]
    assert rest == [*points[1:], None, None]


def test_a_grid_skips_the_points_of_an_earlier_job() -> None:
    sampler = Grid(GRID)
    for layers in ("1", "3", "3"):
        sampler.add({"rate": "0.1", "layers": layers}, 1.0)
    assert sampler.size == 4
    rest = [sampler.ask() for _ in range(5)]
    assert rest == [{"rate": "0.10", "layers": "2"}, *({"rate": "1.50", "layers": layers} for layers in "123"), None]


def test_the_algorithm_says_who_proposes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    assert isinstance(sampler_of(GRID), Grid)
    assert isinstance(sampler_of(dataclasses.replace(STUDY, algorithm="RANDOM")), Random)
    assert not caplog.messages
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert isinstance(sampler_of(STUDY), Random)
    assert caplog.messages == [
        "Proposing random values; pip install 'torch-estimator[tune]' for Optuna, which learns from trials."
    ]


@needs_optuna
def test_optuna_learns_from_trials() -> None:
    assert isinstance(sampler_of(STUDY), Optuna)
    best = {}
    for sampler in (Random(STUDY), Optuna(STUDY)):
        for number in range(60):
            texts = sampler.ask()
            assert texts is not None
            sampler.tell(number, metric(texts))
            best[type(sampler)] = max(best.get(type(sampler), -math.inf), metric(texts))
    assert best[Optuna] > best[Random] / 2


@needs_optuna
def test_optuna_learns_from_paused_and_earlier_trials() -> None:
    def proposal(*values: float, step: int | None = None, earlier: bool = False) -> dict[str, str] | None:
        sampler, random = Optuna(STUDY), Random(STUDY)
        for number, value in enumerate(values):
            texts = random.ask()
            assert texts is not None
            if earlier:
                sampler.add(texts, value)
            else:
                sampler.ask(texts)
                sampler.tell(number, value, step)
        return sampler.ask()

    rising = [float(number) for number in range(20)]
    assert proposal(*rising, step=100) != proposal(*reversed(rising), step=100)
    # Trial 20 after 20 trials, and trial 0 after 20 earlier ones, have seeds of their own.
    assert proposal(*rising, earlier=True) != proposal(*reversed(rising), earlier=True)


@needs_optuna
def test_optuna_takes_an_earlier_trial_that_was_stopped_as_pruned(tmp_path: Path) -> None:
    sampler = Optuna(STUDY, str(tmp_path / "journal"))
    sampler.add(EARLIER, 0.5, 100)
    (earlier,) = journaled(tmp_path / "journal")
    assert (earlier.state.name, earlier.intermediate_values) == ("PRUNED", {100: 0.5})


def journaled(path: Path) -> list[Any]:
    """The trials of the journal, as Optuna reads it."""
    import optuna

    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return list(optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend)).trials)


def summaries(path: Path) -> list[str]:
    return [
        f"{one.state.name} {one.value} {one.params} {one.user_attrs} {one.intermediate_values}"
        for one in journaled(path)
    ]


@needs_optuna
def test_the_journal_is_a_study_that_optuna_opens(tmp_path: Path) -> None:
    controller = Controller(Optuna(STUDY, str(tmp_path / "journal")), []).run(44)
    earlier, *trials = journaled(tmp_path / "journal")
    assert earlier.user_attrs == EARLIER
    assert earlier.params == {
        "rate": 0.002, "keep": 1.499 - 0.75, "units": 63, "batch": 1, "kind": "SGD", "kind.0.momentum": 0.1
    }  # fmt: skip
    del trials[10]  # That was added later.
    assert [one.user_attrs for one in trials] == controller.proposals
    assert trials[1].value == metric(controller.proposals[1]) - 0.01
    assert trials[6].intermediate_values.keys() == {100, 400}
    states = [one.state.name for one in trials]
    assert (states[0], states[1], states[6], states[7], states[8]) == (
        "COMPLETE", "COMPLETE", "RUNNING", "FAIL", "PRUNED"
    )  # fmt: skip
    controller.sampler.close()
    # Trials that had paused stay so; whoever ran has failed.
    _, *trials = journaled(tmp_path / "journal")
    assert trials[6].state.name == "PRUNED"
    assert trials[6].value == trials[6].intermediate_values[400]
    assert not [one for one in trials if not one.state.is_finished()]


@needs_optuna
def test_the_journal_is_settled_after_a_kill_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    end = 28
    whole, sizes = Controller(Optuna(STUDY, str(path)), []), []
    for calls in range(1, end + 1):
        whole.run(calls)
        sizes.append(path.stat().st_size)
    content, undisturbed = path.read_bytes(), summaries(path)
    for calls in range(2, end, 5):
        # Killed before the controller had recorded the last call; before the journal had it; and in its last line.
        for known, size in ((calls - 1, sizes[calls - 1]), (calls, sizes[calls - 2]), (calls, sizes[calls - 1] - 5)):
            path.write_bytes(content[:size])
            again = Controller(Optuna(STUDY, str(path)), whole.record[:known]).run(end)
            assert again.proposals == whole.proposals
            assert summaries(path) == undisturbed
