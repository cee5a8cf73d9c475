"""The check of an export in a process of its own."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_estimator import files
from torch_estimator.errors import ExportError
from torch_estimator.registry import Registry
from torch_estimator.registry.check import BATCHES, check_export


def changed_warmup(export: Path, target: Path, change: Callable[[str], str]) -> str:
    """Copy an export with another text in its warm-up file."""
    shutil.copytree(export, target)
    path = target / "assets.extra" / "warmup.jsonl"
    path.write_text(change(path.read_text()))
    return str(target)


def test_a_good_export_is_measured(export: Path) -> None:
    report = check_export(str(export))
    assert report.directory == str(export)
    assert report.bytes == sum(path.stat().st_size for path in export.rglob("*") if path.is_file())
    assert 0 < report.load_secs < report.start_secs
    assert (report.instances, report.signature, report.has_manifest) == (2, "predict", False)
    assert tuple(report.latency) == BATCHES
    assert all(0 < one.median_ms <= one.p99_ms for one in report.latency.values())


def test_without_latency_nothing_is_measured(export: Path) -> None:
    assert check_export(str(export), latency=False).latency == {}


def test_an_export_without_instances_is_loaded_only(export: Path, tmp_path: Path) -> None:
    shutil.copytree(export, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "assets.extra")
    report = check_export(str(tmp_path / "bare"))
    assert (report.instances, report.signature, report.latency) == (0, None, {})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda text: re.sub('"logits": .[^]]*', '"logits": [9.5', text),
            "instance 1 of the signature 'predict': the output",
        ),
        (lambda text: text.replace('"classes"', '"kinds"'), "the output 'classes' is new."),
        (lambda text: text.replace('"logits": ', '"more": [1], "logits": '), "the output 'more' is missing."),
        (lambda text: text.replace('"predict"', '"other"'), "the signature 'other' is not in the export, which has"),
        (lambda text: text.replace('"word"', '"words"'), "does not take its own warmup.jsonl: Unexpected tensor name"),
        (lambda text: text.replace('"x": [0.0]', '"x": ["a"]'), "does not take its own warmup.jsonl: Input x takes"),
        (lambda text: "{", "warmup.jsonl, line 1 is not a warm-up instance"),
    ],
)
def test_an_export_that_does_not_reproduce_its_predictions_is_refused(
    export: Path, tmp_path: Path, change: Callable[[str], str], problem: str
) -> None:
    path = changed_warmup(export, tmp_path / "changed", change)
    with pytest.raises(ExportError) as raised:
        check_export(path, latency=False)
    assert problem in str(raised.value)
    assert str(raised.value).startswith(path) and str(raised.value).endswith(".")
    registry = Registry(tmp_path / "registry")
    registry.create_model("census")
    with pytest.raises(ExportError):
        registry.create_version("census", 1, path)
    assert registry.versions("census") == []


def test_a_difference_within_the_tolerance_is_none(export: Path, tmp_path: Path) -> None:
    def shift(text: str) -> str:
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            line["predictions"]["logits"] = [value + 5e-6 for value in line["predictions"]["logits"]]
        return "".join(json.dumps(line) + "\n" for line in lines)

    assert check_export(changed_warmup(export, tmp_path / "changed", shift), latency=False).instances == 2


def test_an_export_in_an_object_store(export: Path) -> None:
    url = "memory://test-check/census/1"
    for name in files.all_files(export):
        files.write_file(files.join(url, name), files.read_chunks(export / name))
    try:
        report = check_export(url, latency=False)
        assert (report.directory, report.instances) == (url, 2)
        files.write_atomic(files.join(url, "model.onnx"), b"")
        with pytest.raises(ExportError, match=r"^memory://test-check/census/1/model\.onnx cannot be loaded"):
            check_export(url)
    finally:
        files.remove_tree("memory://test-check")


def test_a_crash_of_onnxruntime_is_one_sentence(export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime.py").write_text(
        "import os, sys; print('bad graph', file=sys.stderr, flush=True); os._exit(7)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ExportError) as raised:
        check_export(str(export))
    assert str(raised.value) == (
        f"{export} cannot be used: the process that loaded it ended with status 7 (bad graph)."
    )


def test_an_export_is_checked_without_torch(export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert check_export(str(export), latency=False).instances == 2
