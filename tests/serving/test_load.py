"""Requests and latencies of each second, from the metrics of all processes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_estimator.serving.load import Point, Totals, quantile
from torch_estimator.serving.metrics import Metrics


def count(metrics: Metrics, requests: int, *, model: str = "m", status: int = 200, secs: float = 0.002) -> None:
    for _ in range(requests):
        metrics.begin()
        metrics.end(model, 1, "predict", status, secs)


def test_a_point_is_the_difference_of_two_reads() -> None:
    metrics = Metrics()
    count(metrics, 5)
    before = Totals.read(metrics.samples(), 100.0)
    count(metrics, 20)
    count(metrics, 4, model="other", secs=0.08)
    count(metrics, 2, model="", status=404)
    point = Point.between(before, Totals.read(metrics.samples(), 102.0))
    assert (point.second, point.answered, point.failed) == (102, 12.0, 1.0)
    assert dict(point.by_model) == {"m": 10.0, "other": 2.0}
    assert point.p50 is not None and 0.001 < point.p50 <= 0.0025
    assert point.p99 is not None and 0.05 < point.p99 <= 0.1


def test_requests_to_the_page_do_not_count() -> None:
    metrics = Metrics()
    metrics.begin()
    metrics.end("", 0, "", 200, 0.01)
    assert not any(Totals.read(metrics.samples(), 1.0).requests.values())


def test_a_second_without_requests_has_no_latency() -> None:
    totals = Totals.read(Metrics().samples(), 1.0)
    point = Point.between(totals, Totals.read(Metrics().samples(), 2.0))
    assert (point.answered, point.p50, point.p99) == (0.0, None, None)


def test_rates_are_not_negative_when_the_counts_of_an_ended_process_go() -> None:
    before = Totals(secs=1.0, requests={"m": 10.0}, failed=3.0, buckets={0.1: 5.0, math.inf: 10.0})
    point = Point.between(before, Totals(secs=2.0, requests={"m": 4.0}, failed=1.0, buckets={0.1: 1.0, math.inf: 4.0}))
    assert (point.answered, point.failed, point.p50) == (0.0, 0.0, None)


@pytest.mark.parametrize(
    ("part", "value"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.75, 1.5), (0.99, 1.98), (1.0, 2.0)]
)
def test_quantiles_are_interpolated(part: float, value: float) -> None:
    assert quantile({1.0: 50.0, 2.0: 100.0, math.inf: 100.0}, part) == pytest.approx(value)


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    assert quantile({1.0: 1.0, math.inf: 100.0}, 0.99) == 1.0


def test_the_numbers_are_those_of_all_processes(tmp_path: Path) -> None:
    program = """
import os
from torch_estimator.serving.load import Totals
from torch_estimator.serving.metrics import Metrics

metrics = Metrics()
requests = 4 if (child := os.fork()) else 3
for _ in range(requests):
    metrics.begin()
    metrics.end("m", 1, "predict", 200, 0.002)
if child:
    os.waitpid(child, 0)
    totals = Totals.read(metrics.samples(), 1.0)
    print(totals.requests, totals.buckets[0.0025], totals.buckets[0.001])
else:
    os._exit(0)
"""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[0] == "{'m': 7.0} 7.0 0.0"
