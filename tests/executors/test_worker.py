"""Workers with parameter servers start one after the other."""

from __future__ import annotations

import json
from typing import Any

import pytest

import torch_estimator as te
from torch_estimator.executors.worker import worker_delay_secs


@pytest.mark.parametrize(
    ("index", "settings", "secs"),
    [
        (0, {}, 5),
        (3, {}, 20),
        (19, {}, 60),
        (3, {"experimental_max_worker_delay_secs": 7}, 7),
        (0, {"experimental_max_worker_delay_secs": 7}, 5),
        (3, {"experimental_max_worker_delay_secs": 0}, 0),
    ],
)
def test_each_starts_five_seconds_after_the_one_before_and_none_after_a_minute(
    index: int, settings: dict[str, Any], secs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {
        "chief": ["localhost:2000"],
        "worker": [f"localhost:{2001 + number}" for number in range(20)],
        "ps": ["localhost:3000"],
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}))

    assert worker_delay_secs(te.RunConfig(**settings)) == secs
