"""The tables beside TensorFlow Serving's names: what they say is here is here, and each of its options is in them."""

from __future__ import annotations

import re
from dataclasses import fields

import httpx
import pytest

from tests.docs.pages import ROOT
from tests.serving.models import app_of, ask, write_export
from torch_estimator.cli.main import main
from torch_estimator.serving.metrics import Metrics
from torch_estimator.serving.options import ServedModel, ServingOptions

PAGE = (ROOT / "docs" / "guides" / "serving.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in PAGE.partition("\n## From TensorFlow Serving\n")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ")
]


def ours(pattern: str) -> set[str]:
    """What matches in the last columns, between backquotes."""
    spans = " ".join(span for row in ROWS for span in re.findall("`[^`]+`", row[-1]))
    return set(re.findall(pattern, spans))


def test_the_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    named = ours("--[a-z-]+")
    assert len(named) > 15
    assert named <= known


def test_the_keys_of_the_file_exist() -> None:
    known = {one.name for kind in (ServingOptions, ServedModel) for one in fields(kind)}
    named = ours(r"`([a-z_]+): ")
    assert {"policy", "labels", "poll_secs"} <= named <= known


def test_the_metrics_and_their_labels_exist() -> None:
    metrics = Metrics()
    metrics.end("small", 1, "predict", 200, 0.1)
    metrics.observe_batch("small", 1, 1)
    text = metrics.text().decode()
    named = ours(r"te_\w+")
    assert len(named) > 5
    assert named <= set(re.findall(r"^# TYPE (\w+)", text, flags=re.MULTILINE))
    for name, labels in re.findall(r"`(te_\w+)` \(([^)]+)\)", " ".join(row[-1] for row in ROWS)):
        (line,) = set(re.findall(rf"^{name}(?:_count)?\{{([^}}]*)\}}", text, flags=re.MULTILINE))
        assert set(re.findall(r"(\w+)=", line)) == set(re.findall(r"`(\w+)`", labels))


def test_the_paths_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("small")
    write_export(base / "1")
    with app_of(base) as app:
        answers: dict[str, httpx.Response] = {path: ask(app, path) for path in ours(r"`(/[a-z/]+)`")}
    assert len(answers) == 2
    assert {answer.status_code for answer in answers.values()} == {200}
