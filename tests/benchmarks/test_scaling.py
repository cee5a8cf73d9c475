"""The scaling benchmark measures what a step costs, and makes of it what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaling
from benchmarks.engine.cpu_clock import StageClock
from benchmarks.engine.echo import round_trips
from benchmarks.engine.gathering import line_through
from benchmarks.protocol import Measured
from benchmarks.simulation import Machine
from benchmarks.simulation.comparison import Here, compare
from benchmarks.simulation.measured import WAYS, Plan, exchanges_of, run_timed, side_of, steps_of, worker_of

HERE = Here(machine=Machine(cores=4, wake=10e-6), call=300e-6)


def report(servers: int) -> dict[str, Any]:
    """As `run_timed` gives one: 590 us of work, and 5 times that a core wakes."""
    one = {"handle": 100e-6 / servers, "handles": [100e-6 / servers], "up": 160_000 / servers, "down": 80_000 / servers}
    return {
        "stages": {"compute": 300e-6, "look up": 20e-6, "pack": 40e-6, "unpack": 10e-6},
        "computes": [300e-6] * 10,
        "around": 20e-6,
        "beside": 80e-6,
        "io": 50e-6,
        "wall": 640e-6,
        "farm": {"servers": [one] * servers, "io": 50e-6},
    }


def together() -> dict[str, Any]:
    """As a synchronous worker gives one."""
    return {
        **report(1),
        "stages": {"compute": 300e-6, "exchange": 20e-6, "gather": 90e-6, "update": 60e-6},
        "message": {"bytes": 160_000, "each": 5e-6},
        "wall": 500e-6,
    }


def measured() -> Measured:
    results: dict[str, list[Any]] = {}
    for way in WAYS:
        results[side_of(way, 1)] = [report(1)]
        results[side_of(way, 2)] = [{**report(1), "wall": 2 * 640e-6}]
    results[side_of("synchronous", 2)] = [together()]
    return Measured(results)


@pytest.mark.slow
def test_a_timed_run_tells_what_every_step_costs(shared_data: Path) -> None:
    plan = Plan(data=shared_data / "census", batch=40, rounds=1, servers=(2,), quick=True)
    given = steps_of(plan, "unbound", 1)

    found = run_timed(given, servers=2, skipped=int(str(given[-1])))

    assert found["steps"] == 200 * 9 // 10 - 50
    assert min(found["stages"].values()) > 0
    assert sum(found["stages"].values()) + found["around"] < found["wall"]
    exchanges = exchanges_of(found)
    assert all(min(one.handle) > 0 and one.server_io > 0 and one.up > one.down > 0 for one in exchanges)
    assert sum(worker_of(found).compute) / len(worker_of(found).compute) == pytest.approx(
        found["stages"]["compute"] + found["stages"]["look up"] + found["around"], rel=0.2
    )


@pytest.mark.slow
def test_messages_of_each_size_are_timed() -> None:
    small, large = round_trips([64, 1_000_000], count=20)

    assert (small.size, large.size) == (64, 1_000_000)
    assert min(small.secs, large.secs) > 0
    assert 0 < small.cpu_secs < large.cpu_secs


def test_a_line_goes_through_what_was_measured() -> None:
    assert line_through({0: 3e-4, 1000: 4e-4, 10_000: 13e-4}) == pytest.approx((3e-4, 1e-7))


def test_a_stage_within_another_counts_for_itself() -> None:
    class Work:
        def outer(self) -> int:
            return self.inner() + sum(range(1000))

        def inner(self) -> int:
            return sum(range(300_000))

    stages = StageClock()
    with stages.timing(Work, {"outer": "outer", "inner": "inner"}):
        Work().outer()

    assert stages.cpu["outer"][0] < stages.cpu["inner"][0]
    assert stages.wall["outer"] > stages.wall["inner"]
    assert Work.outer.__name__ == "outer" and not hasattr(Work.outer, "__wrapped__")


def test_what_is_simulated_stands_beside_what_was_measured() -> None:
    compared = compare(measured(), HERE)

    assert [(one.way, one.workers) for one in compared] == [
        *((way, workers) for way in WAYS for workers in (1, 2)),
        ("synchronous", 2),
    ]
    assert compared[0].error == pytest.approx(0.0, abs=1e-3)
    assert compared[-1].error == pytest.approx(0.0, abs=1e-3)
    assert [one.holds for one in scaling.verdicts_of(compared)] == [True, False, False, False, False, False, True]
    assert "unbound" in scaling.comparison_table(compared)


def test_clusters_are_predicted_and_drawn(shared_data: Path) -> None:
    args = scaling.parse(["--data", str(shared_data / "census"), "--most", "50"])
    servers = Measured({str(count): [report(count)] for count in (1, 4)})

    predicted = scaling.predict(args, HERE, measured(), servers)

    one, four = predicted["Nothing but training"].values()
    assert one.rates[50] == pytest.approx(1 / 128e-6, rel=0.03)
    assert one.bottleneck == "server's network"
    assert four.rates[50] > 2 * one.rates[50]
    waiting = predicted["10 ms of waiting for each batch"]["1 server"]
    assert scaling.said_of("1 server", waiting) == "1 server: linear to 50 workers, within a tenth."
    assert scaling.prediction_table(predicted["Synchronous"]).splitlines()[-1].startswith("50 ")
    assert scaling.drawing(predicted).count("<polyline") == 2 * 3 + 3
