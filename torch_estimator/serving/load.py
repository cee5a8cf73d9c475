"""The load of a server: requests and latencies of each second, for the plots of the page.

The numbers come from the metrics, which add up all processes of one server, so that any process can answer for all.
They are read only while somebody looks at the page: reading them takes a few milliseconds once a second.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_estimator.serving.metrics import Metrics

Samples = Iterable[tuple[str, dict[str, str], float]]
"""Name, labels and value of each number, as `Metrics.samples` yields them."""

SECONDS = 300
"""Number of seconds that are kept."""

# Go on for a while after the last look, so that a person who comes back finds no gap.
_WATCHED_SECS = 600.0

# A timer may fire a little early, which must not give one second two points.
_AFTER_SECS = 0.02

_FIRST_ERROR = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts since the server started, at `secs` since the epoch.

    `requests` counts requests for models, by model; an empty name stands for requests that name no known model.
    `failed` of them were answered with an error. `buckets` has the number of requests that took at most so many
    seconds, by these seconds.
    """

    secs: float
    requests: Mapping[str, float] = field(default_factory=dict)
    failed: float = 0.0
    buckets: Mapping[float, float] = field(default_factory=dict)

    @classmethod
    def read(cls, samples: Samples, secs: float) -> Totals:
        """Return the totals that metrics say; samples without a method belong to the page itself and do not count."""
        requests: dict[str, float] = {}
        buckets: dict[float, float] = {}
        failed = 0.0
        for name, labels, value in samples:
            if not labels.get("method"):
                continue
            if name == "te_requests_total":
                requests[labels["model"]] = requests.get(labels["model"], 0.0) + value
                if int(labels["code"]) >= _FIRST_ERROR:
                    failed += value
            elif name == "te_request_seconds_bucket":
                bound = float(labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + value
        return cls(secs=secs, requests=requests, failed=failed, buckets=buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What happened in about one second; `second` counts from the epoch.

    `answered` (without an error), `failed` and `by_model` are requests a second. `p50` and `p99` are the median and the
    99th percentile of the time from the arrival of a request to its answer, in seconds; None without requests.
    """

    second: int
    answered: float
    failed: float
    p50: float | None
    p99: float | None
    by_model: Mapping[str, float]

    @classmethod
    def between(cls, before: Totals, after: Totals) -> Point:
        """Return what happened between two reads."""
        secs = max(after.secs - before.secs, 1e-3)
        # A count can only go down if the metrics of an ended process are removed.
        by_model = {
            name: max(0.0, count - before.requests.get(name, 0.0)) / secs for name, count in after.requests.items()
        }
        failed = max(0.0, after.failed - before.failed) / secs
        buckets = {
            bound: max(0.0, count - before.buckets.get(bound, 0.0)) for bound, count in sorted(after.buckets.items())
        }
        return cls(
            second=int(after.secs),
            answered=max(0.0, sum(by_model.values()) - failed),
            failed=failed,
            p50=quantile(buckets, 0.5),
            p99=quantile(buckets, 0.99),
            by_model={name: rate for name, rate in by_model.items() if name},
        )


def quantile(buckets: Mapping[float, float], part: float) -> float | None:
    """Return the value below which a part (0 to 1) of a histogram's observations lie; None if it has none.

    Buckets are cumulative, by ascending bound, and the last bound is infinite. Within a bucket the observations count
    as spread evenly, as Prometheus' ``histogram_quantile`` has it.

    >>> quantile({1.0: 5.0, 2.0: 10.0, math.inf: 10.0}, 0.75)
    1.5
    """
    total = max(buckets.values(), default=0.0)
    if not total:
        return None
    wanted = total * part
    low, below = 0.0, 0.0
    for bound, count in buckets.items():
        if count >= wanted and count > below:
            return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


class LoadHistory:
    """The load of the last `SECONDS` seconds."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._points: deque[Point] = deque(maxlen=SECONDS)
        self._watched_until = 0.0
        self._sampling: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Read the metrics once a second from now on, until nobody has called this for ten minutes."""
        self._watched_until = time.monotonic() + _WATCHED_SECS
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.create_task(self._sample())

    async def _sample(self) -> None:
        before: Totals | None = None
        while time.monotonic() < self._watched_until:
            # Read just after each full second, so that the points of several processes fit together.
            await asyncio.sleep(1.0 - time.time() % 1.0 + _AFTER_SECS)
            try:
                # In a thread, because with many processes this reads many files.
                after = await asyncio.to_thread(lambda: Totals.read(self._metrics.samples(), time.time()))
            except OSError:
                # A process has just ended and its file is gone. Read again in a second.
                continue
            if before is not None:
                self._points.append(Point.between(before, after))
            before = after
        self._points.clear()

    def latest(self) -> Point | None:
        """Return the last second, or None if nobody has looked before."""
        return self._points[-1] if self._points else None

    def since(self, second: int) -> dict[str, Any]:
        """Return the seconds after `second` as lists of numbers, and the requests a second of each model by now."""
        points = [point for point in self._points if point.second > second]
        latest = self.latest()
        return {
            "second": [point.second for point in points],
            "answered": [round(point.answered, 2) for point in points],
            "failed": [round(point.failed, 2) for point in points],
            "p50": [_milliseconds(point.p50) for point in points],
            "p99": [_milliseconds(point.p99) for point in points],
            "models": {} if latest is None else {name: round(rate, 1) for name, rate in latest.by_model.items()},
        }


def _milliseconds(secs: float | None) -> float | None:
    return None if secs is None else round(secs * 1000, 3)
