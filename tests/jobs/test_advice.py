"""Advice against doing it, in a simulation of steps that knows nothing of the formulas."""

from __future__ import annotations

import heapq
import json
import random
import re
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import torch_estimator as te
from torch_estimator.activity import recorder
from torch_estimator.activity.timeline import Run, Spent, read_runs
from torch_estimator.cli.main import main
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.advice import Gain, advise
from torch_estimator.jobs.directory import JobDirectory, JobSpec

_STEPS = 4_000
_SAMPLES = 16
_AHEAD = 2


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training to simulate; times are milliseconds of one step.

    `slowest` is by how much the last worker computes longer. `exchange` is for each message in step, `network` for a
    message to the servers and back, and `service` the work of all servers together for one message. `irregular` is the
    coefficient of variation of all times.
    """

    workers: int = 1
    servers: int = 0
    computing: float = 10.0
    slowest: float = 0.0
    reading: float = 1.0
    reads_ahead: bool = True
    exchange: float = 0.0
    network: float = 0.0
    service: float = 0.0
    saving: float = 0.0
    irregular: float = 0.2

    def run(self, seed: int = 1) -> Simulation:
        simulation = Simulation(self, seed)
        if self.servers:
            simulation.with_servers()
        else:
            simulation.in_step()
        return simulation


class Simulation:
    """Steps of a training, one event after the other; it records what the processes of a training record."""

    def __init__(self, training: Training, seed: int) -> None:
        self.training = training
        self.random = random.Random(seed)
        self.spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.samples: dict[str, list[Spent]] = defaultdict(list)
        self.roles = ["chief-0", *(f"worker-{number}" for number in range(training.workers - 1))]
        # When each process takes its last batches, and when its reader has read the last one.
        self.taken = {role: deque([0.0] * _AHEAD, maxlen=_AHEAD) for role in self.roles}
        self.read = dict.fromkeys(self.roles, 0.0)
        self.batches_per_sec = 0.0

    def draw(self, mean: float) -> float:
        """Seconds around a mean of milliseconds."""
        shape = 1 / self.training.irregular**2
        return self.random.gammavariate(shape, mean / 1000 / shape) if mean else 0.0

    def next_batch(self, role: str, now: float) -> float:
        """Return when the next batch is there."""
        there = now + self.draw(self.training.reading)
        if self.training.reads_ahead:
            begins = max(self.read[role], self.taken[role][0])
            self.spent[role]["reading"] += there - now
            self.read[role] = begins + there - now
            there = max(now, self.read[role])
            self.taken[role].append(there)
        self.spent[role]["input"] += there - now
        return there

    def compute(self, role: str, now: float) -> float:
        """Return when a step is computed."""
        is_slowest = self.training.workers > 1 and role == self.roles[-1]
        secs = self.draw(self.training.computing) + self.draw(self.training.slowest * is_slowest)
        self.spent[role]["computing"] += secs
        return now + secs

    def sample(self, role: str, now: float, step: int) -> None:
        """Record how the time was spent; each role has a clock of its own."""
        self.samples[role].append(Spent(time=now + 1000 * len(role), step=step, **self.spent[role]))

    def in_step(self) -> None:
        training, now = self.training, 0.0
        for step in range(1, _STEPS + 1):
            done = {role: self.compute(role, self.next_batch(role, now)) for role in self.roles}
            if training.saving and step % 10 == 0:
                secs = self.draw(10 * training.saving)
                self.spent["chief-0"]["saving"] += secs
                done["chief-0"] += secs
            now = max(done.values()) + sum(self.draw(training.exchange) for _ in self.roles[1:])
            for role in self.roles:
                self.spent[role]["others"] += now - done[role]
                if step % (_STEPS // _SAMPLES) == 0:
                    self.sample(role, now, step)
        self.batches_per_sec = training.workers * _STEPS / now

    def with_servers(self) -> None:
        training = self.training
        free = [0.0] * training.servers
        half = training.network / 2
        events = [(self.compute(role, self.next_batch(role, 0.0)) + self.draw(half), role) for role in self.roles]
        heapq.heapify(events)
        now, due = 0.0, dict.fromkeys(self.roles, 0)
        for step in range(1, _STEPS + 1):
            now, role = heapq.heappop(events)
            for server, before in enumerate(free):
                secs = self.draw(training.service / training.servers)
                free[server] = max(before, now) + secs
                self.spent[f"ps-{server}"]["computing"] += secs
                if step % (_STEPS // _SAMPLES) == 0:
                    self.sample(f"ps-{server}", free[server], step)
            done = max(free) + self.draw(half)
            self.spent[role]["servers"] += done - now
            if step >= due[role]:
                self.sample(role, done, step)
                due[role] += _STEPS // _SAMPLES
            there = self.compute(role, self.next_batch(role, done))
            sent = self.draw(half)
            self.spent[role]["servers"] += sent
            heapq.heappush(events, (there + sent, role))
        self.batches_per_sec = _STEPS / now

    def runs(self) -> list[Run]:
        return [
            Run(role=role, pid=1, host="here", began=samples[0].time, spent=samples, last_seen=samples[-1].time)
            for role, samples in self.samples.items()
        ]


def more(training: Training, of: str) -> Training:
    match of:
        case "worker":
            return replace(training, workers=training.workers + 1)
        case "server":
            return replace(training, servers=training.servers + 1)
        case _:
            return replace(training, reading=training.reading / 2)


_SCENARIOS = {
    "alone and bound by its input": (Training(reading=25), "input", "reader"),
    "alone and bound by an input that is not read ahead": (
        Training(computing=5, reading=20, reads_ahead=False),
        "input",
        "reader",
    ),
    "alone and computing": (Training(reading=4), "computing", "reader"),
    "in step and computing": (Training(workers=2, exchange=1), "computing", "worker"),
    "in step with a slow network": (Training(workers=3, computing=5, exchange=4), "network", "worker"),
    "in step with a slow process": (Training(workers=4, slowest=20), "others", "worker"),
    "in step and bound by its input": (Training(workers=2, reading=30, exchange=1), "input", "reader"),
    "in step and saving": (Training(workers=2, computing=5, saving=12), "saving", "worker"),
    "with servers and computing": (Training(workers=2, servers=1, computing=20, service=3), "computing", "worker"),
    "with servers and bound by its input": (
        Training(workers=2, servers=1, reading=30, service=3, network=1),
        "input",
        "worker",
    ),
    "with a busy server": (Training(workers=3, servers=1, computing=10, service=9), "servers", "server"),
    "with two busy servers": (Training(workers=6, servers=2, computing=10, service=12, network=1), "servers", "server"),
    "with a saturated server": (Training(workers=6, servers=1, service=6), "servers", "worker"),
    "with a slow network to the servers": (
        Training(workers=2, servers=1, computing=4, service=1, network=15),
        "network",
        "worker",
    ),
}


@pytest.mark.parametrize("irregular", [0.1, 1.0])
@pytest.mark.parametrize("name", _SCENARIOS)
def test_advice_is_right_by_what_doing_it_brings(name: str, irregular: float) -> None:
    training, bound, of = _SCENARIOS[name]
    training = replace(training, irregular=irregular)
    now, then = training.run(), more(training, of).run(seed=2)

    advice = advise(now.runs())

    (gain,) = [gain for gain in advice.gains if gain.of == of]
    times = then.batches_per_sec / now.batches_per_sec
    assert advice.bound == bound
    assert (1 + gain.gain) / times == pytest.approx(1, abs=0.2)
    assert advice.steps_per_sec == pytest.approx(now.batches_per_sec, rel=0.1)
    assert sum(advice.shares.values()) == pytest.approx(1, abs=0.01)
    if irregular < 1:
        assert gain.low - 0.05 <= times - 1 <= gain.high + 0.05


def test_the_sentence_says_what_bounds_the_training_and_what_helps() -> None:
    busy = advise(_SCENARIOS["with a saturated server"][0].run().runs())
    slow = advise(_SCENARIOS["in step with a slow process"][0].run().runs())
    alone = advise(Training().run().runs())
    assert re.match(
        r"The parameter servers bound this training: the busiest one works for \d+% of the time. "
        r"One more server would raise the examples per second by \d+% \(\d+% to \d+%\)\.$",
        busy.sentence,
    )
    assert slow.sentence.startswith("The slowest process, worker-2, bounds this training: processes wait for it for ")
    assert alone.sentence.startswith("Computing bounds this training: 100% of the time goes into it. One more worker")
    assert alone.sentence.endswith("by 100% at most, less what the exchange of gradients costs.")


@pytest.mark.parametrize(
    ("gain", "low", "high", "text"),
    [
        (0.63, 0.2, 0.96, "63% (20% to 96%)"),
        (0.5, 0.499, 0.501, "50% (error below 1%)"),
        (0.08, -0.03, 0.19, "8% (19% at most, perhaps nothing)"),
        (-0.05, -0.08, -0.01, "-5% (-8% to -1%)"),
        (0.001, -0.001, 0.002, "0% (error below 1%)"),
    ],
)
def test_the_error_of_a_gain_is_a_range_only_where_it_is_one(gain: float, low: float, high: float, text: str) -> None:
    assert str(Gain(of="worker", gain=gain, low=low, high=high)) == text


def test_a_worker_that_the_training_was_not_started_again_with_does_not_count() -> None:
    training = Training(workers=2, exchange=1)
    runs = training.run().runs()
    gone = replace(runs[1], role="worker-1", spent=runs[1].spent[:1])
    assert advise([*runs, gone]).steps_per_sec == advise(runs).steps_per_sec


def test_only_what_came_after_a_restore_and_of_the_last_process_counts() -> None:
    (run,) = Training().run().runs()
    slow = [replace(one, time=one.time * 9 - 1e6) for one in run.spent]
    restored = replace(run, spent=[*slow, *run.spent])
    again = replace(run, began=run.began - 1e6, spent=slow)
    assert advise([restored]) == advise([run, again]) == advise([run])


def test_idle_servers_after_the_end_change_nothing() -> None:
    runs = Training(workers=2, servers=1, service=6).run().runs()
    (server,) = [run for run in runs if run.role == "ps-0"]
    idle = replace(server, spent=[*server.spent, replace(server.spent[-1], time=server.spent[-1].time + 3600)])
    assert advise([*(run for run in runs if run is not server), idle]) == advise(runs)


def test_a_process_whose_companions_record_nothing_gets_no_advice_about_more_of_them() -> None:
    (run, _) = Training(workers=2, exchange=5).run().runs()
    advice = advise([run])
    assert [gain.of for gain in advice.gains] == ["reader"]
    assert advice.sentence.endswith(" One more reader would raise the examples per second by less than 5%.")


@pytest.mark.parametrize("workers", [1, 2])
def test_clocks_that_stand_still_or_go_back_are_no_error(workers: int) -> None:
    runs = Training(workers=workers, servers=workers - 1, service=1).run().runs()
    for times in ([0.0] * 100, [float(-number) for number in range(100)]):
        clocks = [
            replace(run, spent=[replace(one, time=time) for one, time in zip(run.spent, times, strict=False)])
            for run in runs
        ]
        assert advise(clocks).sentence


def test_one_span_of_time_says_nothing_of_its_error_and_is_refused() -> None:
    (run,) = Training().run().runs()
    with pytest.raises(InvalidValueError, match="there is no advice yet: "):
        advise([replace(run, spent=[run.spent[0], run.spent[-1]])])
    assert advise([replace(run, spent=[run.spent[0], *run.spent[-2:]])]).gains


@pytest.mark.parametrize("samples", [0, 1, 2])
def test_too_few_records_are_refused(samples: int) -> None:
    runs = [replace(run, spent=run.spent[:samples]) for run in Training(workers=2).run().runs()]
    with pytest.raises(InvalidValueError, match=r"there is no advice yet: .* fewer than 20 steps"):
        advise([replace(run, spent=[replace(one, step=one.step // 100) for one in run.spent]) for run in runs])


def submitted(folder: Path, **more: Any) -> JobDirectory:
    job = JobDirectory(str(folder / "jobs"), "prices")
    job.create()
    job.write(JobSpec(name="prices", created=1.0, target="local", module_name="t", folder=str(folder), **more))
    return job


def test_the_command_advises_a_job_by_what_its_training_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Times spent are recorded every five seconds, and this training takes three.
    monkeypatch.setattr(recorder, "_SPENT_EVERY_SECS", (0.0, 0.0))
    submitted(tmp_path, job_dir="runs/prices")

    def slow_input() -> Iterator[tuple[dict[str, list[float]], list[float]]]:
        for number in range(50):
            time.sleep(0.06)
            yield {"size": [number / 50]}, [1.0]

    estimator = te.LinearRegressor([te.feature_column.numeric_column("size")], tmp_path / "runs" / "prices")
    estimator.train(lambda: te.data.Dataset.from_iterable(slow_input).prefetch(2))
    capsys.readouterr()

    command = ["jobs", "advise", "prices", "--jobs", str(tmp_path / "jobs")]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert main([*command, "--format", "json"]) == 0
    advice = json.loads(capsys.readouterr().out)

    (run,) = read_runs(tmp_path / "runs" / "prices")
    assert run.spent[-1].reading > 0
    assert advice["bound"] == "input"
    assert max(advice["shares"], key=advice["shares"].get) == "input"
    assert [gain["of"] for gain in advice["gains"]] == ["worker", "reader"]
    assert text.startswith("The input bounds this training: ")
    assert re.search(r"\none more reader  \d+% \(", text)
    assert main(["jobs", "advise", "other", "--model-dir", str(tmp_path / "runs" / "prices")]) == 0


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({}, "job prices was submitted without --job-dir"),
        ({"job_dir": "runs/x"}, "has no records of a training"),
        ({"job_dir": "runs/x", "study": {"max_trials": 3}}, "job prices is a study of several trainings"),
    ],
)
def test_the_command_says_why_it_cannot_advise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any], sentence: str
) -> None:
    submitted(tmp_path, **more)
    assert main(["jobs", "advise", "prices", "--jobs", str(tmp_path / "jobs")]) == 2
    assert sentence in capsys.readouterr().err
