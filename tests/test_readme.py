"""The README is true: its program runs, and what it names is there."""

import os
import re
from pathlib import Path

import pytest

import torch_estimator as te
from examples.census import sample

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_census_program_trains_evaluates_and_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    best = sample.write("runs/census-sample")

    names: dict[str, object] = {}
    exec(compile(program, "README.md", "exec"), names)

    metrics, (export,) = names["metrics"], names["exports"]  # type: ignore[misc]
    assert metrics["global_step"] == 5000
    assert best.best_accuracy - 0.05 < metrics["accuracy"] <= best.best_accuracy + 0.01
    assert te.ExportedModel.load(export).signatures
    assert "accuracy 0." in capsys.readouterr().out


def test_every_script_and_file_it_names_is_there() -> None:
    for script in set(re.findall(r"scripts/[a-z-]+", README)):
        assert os.access(ROOT / script, os.X_OK), script
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link
