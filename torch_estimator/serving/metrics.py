"""Metrics of the server in Prometheus' format, added up over the processes of one server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import astuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from torch_estimator.serving.batcher import Executed

_SECS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus_client: the directory in which processes share their metrics.

It has to be set before this module is imported."""


# By the fields of `Executed`, but for the last one.
_SUMS = {
    "te_executions": "Runs of a model without an error.",
    "te_predicted_requests": "Requests that these runs have answered.",
    "te_predicted_instances": "Instances of these requests.",
    "te_queue_seconds": "Seconds that these requests have waited for a run.",
    "te_compute_seconds": "Seconds of these runs; one for several requests counts for each of them.",
}


class Metrics:
    """Counts what the server does.

    The values of all processes with the same `MULTIPROCESS_DIR` are added up when they are read.
    """

    def __init__(self) -> None:
        registry = CollectorRegistry()
        labels = ("model", "version", "method")
        self._registry = registry
        self._requests = Counter(
            "te_requests", "Requests by model, version, method and HTTP status.", (*labels, "code"), registry=registry
        )
        self._seconds = Histogram(
            "te_request_seconds",
            "Seconds from the arrival of a request to its answer.",
            labels,
            buckets=_SECS,
            registry=registry,
        )
        self._batches = Histogram(
            "te_batch_instances",
            "Instances that were run together.",
            ("model", "version"),
            buckets=_ROWS,
            registry=registry,
        )
        self._unknown = Counter(
            "te_unknown_names",
            "Names that were left out of requests because the model does not read them: each of an instance by row, "
            "else each of a request.",
            ("model", "version"),
            registry=registry,
        )
        self._nan = Counter(
            "te_nan_predictions",
            "Requests for which the model predicted NaN, by what was done: refused or answered.",
            ("model", "version", "done"),
            registry=registry,
        )
        self._failed = Counter(
            "te_failed_request_seconds", "Seconds of the requests with a status from 400 on.", labels, registry=registry
        )
        self._sums = [Counter(name, text, ("model", "version"), registry=registry) for name, text in _SUMS.items()]
        self._last = Gauge(
            "te_last_inference_timestamp_seconds",
            "When a model was last run without an error.",
            ("model", "version"),
            registry=registry,
            multiprocess_mode="max",
        )
        self._running = Gauge(
            "te_requests_running", "Requests that are not answered yet.", registry=registry, multiprocess_mode="livesum"
        )
        # Looking up a metric by its labels takes longer than counting, so keep what was looked up.
        self._by_call: dict[tuple[str, int, str, int], tuple[Counter, Histogram]] = {}
        self._by_version: dict[tuple[str, int], Histogram] = {}
        self._count = 0
        # To add to a metric takes longer than to add to these numbers, so they are published now and then.
        self._executed: dict[tuple[str, int], Executed] = {}
        self._published: dict[tuple[str, int], list[float]] = {}
        self._publishing = threading.Lock()

    def begin(self) -> None:
        """Count a request that has arrived."""
        self._count += 1

    def end(self, model: str, version: int, method: str, status: int, secs: float) -> None:
        """Count an answered request; the model is empty, or the version 0, if the request named none that exists."""
        self._count -= 1
        key = (model, version, method, status)
        if key not in self._by_call:
            labels = (model, str(version or ""), method)
            self._by_call[key] = self._requests.labels(*labels, str(status)), self._seconds.labels(*labels)
        requests, seconds = self._by_call[key]
        requests.inc()
        seconds.observe(secs)
        if status >= 400:
            self._failed.labels(model, str(version or ""), method).inc(secs)

    def count_unknown(self, model: str, version: int, names: int) -> None:
        """Count names that were left out of a request."""
        self._unknown.labels(model, str(version)).inc(names)

    def count_nan(self, model: str, version: int, done: str) -> None:
        """Count a request for which the model predicted NaN: ``refused``, or ``answered`` with it."""
        self._nan.labels(model, str(version), done).inc()

    def observe_batch(self, model: str, version: int, rows: int) -> None:
        """Count a batch."""
        if (model, version) not in self._by_version:
            self._by_version[model, version] = self._batches.labels(model, str(version))
        self._by_version[model, version].observe(rows)

    def executed(self, model: str, version: int) -> Executed:
        """Return the numbers to which a version adds what it answers."""
        return self._executed.setdefault((model, version), Executed())

    def publish_running(self) -> int:
        """Return how many requests this process has not answered yet; show that and what was executed in the metrics.

        It is called several times a second, which costs less than to show it with each request.
        """
        self._running.set(self._count)
        with self._publishing:
            for key, executed in list(self._executed.items()):
                *now, last = astuple(executed)
                before = self._published.get(key, [0] * len(_SUMS))
                if now == before:
                    continue
                for counter, value, was in zip(self._sums, now, before, strict=True):
                    counter.labels(key[0], str(key[1])).inc(value - was)
                self._last.labels(key[0], str(key[1])).set(time.time() - time.monotonic() + last)
                self._published[key] = now
        return self._count

    def text(self) -> bytes:
        """Return the metrics of all processes in Prometheus' text format."""
        return generate_latest(self._all())

    def samples(self) -> Iterable[tuple[str, dict[str, str], float]]:
        """Yield name, labels and value of each number, added up over all processes."""
        for metric in self._all().collect():
            for sample in metric.samples:
                yield sample.name, sample.labels, sample.value

    def _all(self) -> CollectorRegistry:
        self.publish_running()
        if MULTIPROCESS_DIR not in os.environ:
            return self._registry
        everything = CollectorRegistry()
        MultiProcessCollector(everything)  # type: ignore[no-untyped-call]
        return everything
