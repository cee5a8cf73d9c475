"""How many requests the versions of a model get, by the metrics of the server that ``--server`` names."""

from __future__ import annotations

import http.client
import re
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from torch_estimator import files

_TIMEOUT_SECS = 1.0
_FRESH_SECS = 2.0
_MOST_BYTES = 2**24
_SAMPLE = re.compile(r"^te_requests_total\{(.*)\} ([0-9.e+-]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Counts = dict[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of each model and version: since the server has started, and a second; a sentence if it does not say."""

    total: Counts = field(default_factory=dict)
    a_second: Counts = field(default_factory=dict)
    problem: str = ""


class Traffic:
    """Asks a server for its metrics, at most every two seconds, however many pages are open."""

    def __init__(self, server: str | None) -> None:
        self.server = server
        self._lock = threading.Lock()
        self._load = Load()
        self._at = 0.0

    def load(self) -> Load:
        """Return what the server answers; nothing if there is none."""
        if self.server is None:
            return self._load
        with self._lock:
            now = time.monotonic()
            if now - self._at >= _FRESH_SECS:
                before, passed = self._load, now - self._at
                try:
                    total = counts_in(self._ask())
                except (OSError, ValueError, http.client.HTTPException) as error:
                    self._load = Load(problem=self._problem(error))
                else:
                    rates = {key: max(0.0, count - before.total.get(key, 0.0)) / passed for key, count in total.items()}
                    self._load = Load(total, rates if before.total and passed < 60 else {})
                self._at = time.monotonic()
            return self._load

    def _ask(self) -> str:
        with urllib.request.urlopen(f"{self.server}/metrics", timeout=_TIMEOUT_SECS) as answer:
            return str(answer.read(_MOST_BYTES).decode(errors="replace"))

    def _problem(self, error: Exception) -> str:
        if isinstance(error, urllib.error.HTTPError):
            why = "it wants a token" if error.code == 401 else f"it answered with status {error.code}"
        else:
            reason = getattr(error, "reason", error)
            why = files.reason(reason) if isinstance(reason, BaseException) else str(reason)
        return f"{self.server} does not say which requests it gets: {why}."


def counts_in(text: str) -> Counts:
    """Return the requests by model and version in metrics of Prometheus' format.

    >>> counts_in('te_requests_total{model="a",version="1",method="predict",code="200"} 3.0')
    {('a', '1'): 3.0}
    """
    counts: Counts = {}
    for labels, number in _SAMPLE.findall(text):
        found = dict(_LABEL.findall(labels))
        key = found.get("model", ""), found.get("version", "")
        counts[key] = counts.get(key, 0.0) + float(number)
    return counts
