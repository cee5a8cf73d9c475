"""Simulated synchronous workers, where what they do can be told by a formula."""

from __future__ import annotations

import pytest

from benchmarks.simulation import Machine, Network, Worker, replicas

NETWORK = Network(latency=50e-6, bytes_per_s=1e9)
SIZE = 100_000


@pytest.mark.parametrize("workers", [1, 2, 8, 100])
def test_a_gathering_ring_hands_on_every_message_of_the_others(workers: int) -> None:
    ends = replicas.all_gather([0.0] * workers, SIZE, NETWORK, call=10e-6)

    assert ends == pytest.approx([(workers - 1) * (50e-6 + 10e-6 + SIZE / 1e9)] * workers)


@pytest.mark.parametrize("workers", [1, 2, 8, 100])
def test_a_reducing_ring_goes_round_twice_in_pieces(workers: int) -> None:
    ends = replicas.all_reduce([0.0] * workers, SIZE, NETWORK)

    assert ends == pytest.approx([2 * (workers - 1) * (50e-6 + SIZE / workers / 1e9)] * workers)


def test_a_ring_waits_for_the_last_one() -> None:
    ends = replicas.all_gather([0.0, 0.0, 1.0, 0.0], SIZE, NETWORK)

    assert min(ends) > 1.0


def test_a_step_is_computing_exchanging_and_updating() -> None:
    steps = replicas.train(Worker(compute=[300e-6]), SIZE, NETWORK, workers=8, call=0.0, update=80e-6)

    assert steps == pytest.approx(1 / (300e-6 + 7 * (50e-6 + SIZE / 1e9) + 80e-6))


def test_all_wait_for_the_slowest_batch() -> None:
    worker = Worker(compute=[100e-6] * 9 + [1e-3])

    steps = replicas.train(worker, 0, Network(), workers=200, call=0.0, update=0.0)

    assert steps == pytest.approx(1 / 1e-3)


def test_on_one_machine_all_share_its_cores() -> None:
    worker = Worker(compute=[300e-6], beside=100e-6)

    steps = replicas.train(
        worker, 0, Network(), workers=4, call=0.0, update=200e-6, machine=Machine(cores=2), steps=500
    )

    # One is idle now and then while somebody waits for the other.
    assert 0.9 < steps / (1 / (2 * 600e-6)) <= 1.0 + 1e-9
