"""`scripts/storm soak` in a version of 20 seconds, and what it would find."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts.storms import soak
from scripts.storms.soak import Period, Soak
from tests.export.models import model_of
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.export.writer import write_export


def test_no_request_is_lost_while_versions_and_processes_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = model_of([fc.categorical_column_with_hash_bucket("word", 10), fc.numeric_column("x")], [])
    receiver = serving_input.raw_features(built.transform)
    export = write_export(
        tmp_path / "export", module=built.module, transform=built.transform, head=built.head, receiver=receiver
    )
    instances = tmp_path / "instances.json"
    instances.write_text("".join(json.dumps({"word": word, "x": 0.5}) + "\n" for word in "abcde"))
    settings = {"--secs": 20, "--export": export, "--instances": instances, "--work-dir": tmp_path / "soak"}

    status = soak.main([str(word) for setting in settings.items() for word in setting])

    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "3 processes were killed" in printed
    over_grpc, answered = map(int, re.findall(r"^(\d+) of (\d+) answers came over gRPC", printed, re.MULTILINE)[0])
    assert 0 < over_grpc < answered
    assert "A quick run, too short to judge by:\ngrowth of the memory after the first minute" in printed


def test_memory_is_compared_with_that_of_the_second_period(tmp_path: Path) -> None:
    one = Soak(tmp_path, [], tmp_path, 600.0)
    assert one.memory_growth() is None
    one.periods = [Period(nodes_mb=values) for values in ([90.0], [100.0, 100.0, 500.0], [99.0], [], [108.0])]
    assert one.memory_growth() == pytest.approx(0.08)
