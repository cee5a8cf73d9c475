"""Simulated parameter servers, where what they do can be told by a formula."""

from __future__ import annotations

import pytest

from benchmarks.simulation import Exchange, Machine, Network, Worker, served

EXCHANGE = Exchange(
    pack=20e-6, unpack=10e-6, worker_io=40e-6, handle=[100e-6], server_io=60e-6, up=160_000, down=80_000
)
NETWORK = Network(latency=50e-6, bytes_per_s=1e9)
WORKER = Worker(compute=[300e-6])


def test_one_worker_takes_the_sum_of_all_costs() -> None:
    message = 30e-6 + 40e-6 + 100e-6 + 60e-6 + 2 * 50e-6 + 240_000 / 1e9

    outcome = served.train(WORKER, [EXCHANGE], NETWORK, workers=1)

    assert outcome.steps_per_s == pytest.approx(1 / (300e-6 + message))
    assert outcome.busy["server's thread"] == pytest.approx(100e-6 * outcome.steps_per_s)
    assert outcome.busy["server's network"] == pytest.approx(160_000 / 1e9 * outcome.steps_per_s)


def test_a_pause_comes_on_top() -> None:
    fast, slow = (
        served.train(Worker(compute=[300e-6], pause=pause), [EXCHANGE], NETWORK, workers=1) for pause in (0, 10e-3)
    )

    assert 1 / slow.steps_per_s - 1 / fast.steps_per_s == pytest.approx(10e-3)


def test_a_pipelined_worker_waits_for_the_message_before_the_last_one() -> None:
    wait = 40e-6 + 100e-6 + 60e-6 + 2 * 50e-6 + 240_000 / 1e9
    for compute in (100e-6, 900e-6):
        outcome = served.train(Worker(compute=[compute]), [EXCHANGE], NETWORK, workers=1, pipeline=True)
        own = compute + 30e-6
        assert outcome.steps_per_s == pytest.approx(1 / max(own, (own + wait) / 2))


def test_many_workers_get_what_the_server_can_handle() -> None:
    busy = served.train(WORKER, [Exchange(handle=[100e-6])], Network(), workers=50)

    assert busy.steps_per_s == pytest.approx(1 / 100e-6, rel=0.01)
    assert busy.busy["server's thread"] == pytest.approx(1.0, rel=0.01)


def test_or_what_its_network_can_carry() -> None:
    outcome = served.train(WORKER, [Exchange(up=1e6, down=5e5)], NETWORK, workers=50)

    assert outcome.steps_per_s == pytest.approx(1000, rel=0.02)
    assert max(outcome.busy, key=lambda kind: outcome.busy[kind]) == "server's network"


def test_servers_share_the_messages() -> None:
    half = Exchange(handle=[50e-6])

    assert served.train(WORKER, [half, half], Network(), workers=50).steps_per_s == pytest.approx(20_000, rel=0.01)


def test_the_slowest_server_holds_all_workers_up() -> None:
    exchanges = [Exchange(handle=[50e-6]), Exchange(handle=[200e-6])]

    assert served.train(WORKER, exchanges, Network(), workers=50).steps_per_s == pytest.approx(5_000, rel=0.01)


def test_few_workers_do_not_notice_each_other() -> None:
    one, ten = (
        served.train(Worker(compute=[10e-3]), [EXCHANGE], NETWORK, workers=workers).steps_per_s for workers in (1, 10)
    )

    assert ten == pytest.approx(10 * one, rel=0.05)


def test_on_one_machine_all_share_its_cores() -> None:
    work = 300e-6 + 50e-6 + 30e-6 + 40e-6 + 100e-6 + 60e-6
    worker = Worker(compute=[300e-6], beside=50e-6)

    outcome = served.train(worker, [EXCHANGE], Network(), workers=8, machine=Machine(cores=2), rounds=200)

    # One is idle now and then while somebody waits for the other.
    assert 0.97 < outcome.steps_per_s / (2 / work) <= 1.0 + 1e-9


def test_costs_of_steps_are_drawn() -> None:
    worker = Worker(compute=[100e-6, 500e-6])

    outcome = served.train(worker, [Exchange()], Network(), workers=1, rounds=4000)

    assert outcome.steps_per_s == pytest.approx(1 / 300e-6, rel=0.03)
