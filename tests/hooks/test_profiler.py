"""ProfilerHook writes traces for TensorBoard and Perfetto."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

import torch_estimator as te
from tests.line_jobs import assert_same_variables, line, points
from torch_estimator import files


def test_it_traces_single_steps_and_changes_nothing(tmp_path: Path) -> None:
    hook = te.ProfilerHook(save_steps=3, show_memory=True, record_shapes=True)
    profiled = line(tmp_path / "profiled").train(points, steps=7, hooks=[hook])
    assert sorted(path.name for path in tmp_path.glob("profiled/*.json")) == ["3.pt.trace.json", "6.pt.trace.json"]
    trace = json.loads((tmp_path / "profiled" / "3.pt.trace.json").read_text())
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    assert all({"ts", "dur", "pid", "tid", "name"} <= set(event) for event in events)
    assert [event["name"] for event in events].count("aten::addmm") == 1
    assert_same_variables(profiled, line(tmp_path / "alone").train(points, steps=7))


def test_traces_may_go_to_a_url_and_come_by_seconds_not_at_the_first_step(tmp_path: Path) -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    line(tmp_path).train(points, steps=3, hooks=[te.ProfilerHook(save_secs=1e9, output_dir=folder)])
    assert files.listdir(folder) == ["2.pt.trace.json"]
    files.remove_tree(folder)


def test_a_profile_that_the_end_of_the_input_cut_off_leaves_nothing(tmp_path: Path) -> None:
    line(tmp_path).train(lambda: points(rows=8), hooks=[te.ProfilerHook(save_steps=3)])
    assert list(tmp_path.glob("*.json")) == []


@pytest.mark.parametrize("arguments", [{}, {"save_steps": 1, "save_secs": 1}])
def test_exactly_one_of_steps_and_seconds_must_be_given(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^ProfilerHook takes exactly one of save_steps and save_secs, but got"):
        te.ProfilerHook(**arguments)  # type: ignore[arg-type]


def test_a_directory_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    hook = te.ProfilerHook(save_steps=2, output_dir=str(tmp_path / "file"))
    with pytest.raises(te.UserError, match=r"^traces cannot be written into .*file: File exists; make room or permit"):
        line(tmp_path / "job").train(points, steps=2, hooks=[hook])
