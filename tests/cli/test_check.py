from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from torch_estimator.cli import main


def test_what_was_found_out_is_printed(exports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = exports / "csv" / "1700000000"
    assert main(["check", str(directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{directory}: [0-9.]+ kB, onnxruntime [0-9.]+ on \w+", lines[0])
    assert re.match(r"Ready [0-9.]+ s after the start of a process", lines[1])
    assert lines[2] == "All 4 recorded predictions are reproduced (numbers within 1e-05)."
    assert lines[3] == "Latency of the signature 'predict', one thread:"
    assert [line.split()[0] for line in lines[4:]] == ["BATCH", "1", "16", "256"]


def test_for_programs(exports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model-dir", str(exports / "raw"), "--format", "json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["instances"] == 2
    assert list(report["latency"]) == ["1", "16", "256"]
    assert "the newest of 1 in" in captured.err


def test_an_export_without_instances_is_said_to_be_loaded_only(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(exports / "raw" / "1700000000", tmp_path / "1")
    shutil.rmtree(tmp_path / "1" / "assets.extra")
    assert main(["check", str(tmp_path / "1")]) == 0
    assert capsys.readouterr().out.endswith(
        "It has no recorded instances, so that it was loaded only: nothing was compared or measured.\n"
    )


def test_what_does_not_hold_is_one_sentence_and_status_2(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(exports / "raw" / "1700000000", tmp_path / "1")
    warmup = tmp_path / "1" / "assets.extra" / "warmup.jsonl"
    warmup.write_text(re.sub(r'"logistic": \[[^]]*\]', '"logistic": [0.123]', warmup.read_text()))
    assert main(["check", str(tmp_path / "1")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"estimator: error: {tmp_path}/1, instance 1 of the signature 'predict': the output")
    assert "but [0.123] was recorded" in captured.err
    assert captured.err.count("\n") == 1
    assert main(["check", str(tmp_path / "nothing")]) == 2
