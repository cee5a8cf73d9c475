"""What is said of a curve is what it shows."""

from __future__ import annotations

import pytest

from benchmarks.simulation import Exchange, Network, Worker
from benchmarks.simulation.prediction import Curve, replicas_curve, served_curve

WORKERS = (1, 2, 5, 10, 20)


def test_a_curve_is_linear_up_to_where_it_falls_behind() -> None:
    assert Curve({1: 10, 2: 20, 5: 46, 10: 80, 20: 200}, {}).linear_to == 5
    assert Curve({1: 10, 2: 20}, {}).linear_to == 2


@pytest.mark.parametrize(
    ("exchange", "bottleneck", "linear_to"),
    [
        (Exchange(handle=[1e-3]), "server's thread", 10),
        (Exchange(up=1e6), "server's network", 10),
        (Exchange(), None, 20),
    ],
)
def test_the_bottleneck_is_what_is_always_busy(exchange: Exchange, bottleneck: str | None, linear_to: int) -> None:
    curve = served_curve(Worker(compute=[11e-3]), [exchange], Network(bytes_per_s=1e9), WORKERS)

    assert curve.bottleneck == bottleneck
    assert curve.linear_to == linear_to


def test_workers_that_gather_get_no_further_than_the_network() -> None:
    curve = replicas_curve(
        Worker(compute=[1e-3]),
        1e6,
        Network(bytes_per_s=1e9),
        (1, 10, 200),
        call=0.0,
        update=lambda _: 0.0,
        reduces=False,
    )

    assert curve.rates[200] == pytest.approx(1e9 / 1e6, rel=0.02)
    assert curve.linear_to == 1
