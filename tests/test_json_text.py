"""The JSON parser has one depth limit for all texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.checkpoint.writer import CheckpointWriter
from torch_estimator.cli.predict import _json_lines, _request
from torch_estimator.cluster.tf_config import task_from_tf_config
from torch_estimator.compile.compiled_step import CompiledStep, StepMismatch
from torch_estimator.errors import UserError
from torch_estimator.executors.evaluation_record import EvaluationRecord
from torch_estimator.export.exported_model import read_manifest
from torch_estimator.exporters.best import _read_best
from torch_estimator.json_text import MOST_DEPTH, parse_json, too_deep_at
from torch_estimator.runs.training_status import read_status


def nested(depth: int, kind: str = "list") -> str:
    return "[" * depth + "]" * depth if kind == "list" else '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("kind", ["list", "object"])
def test_lists_and_objects_nest_up_to_the_limit(kind: str) -> None:
    assert parse_json(nested(MOST_DEPTH, kind)) == json.loads(nested(MOST_DEPTH, kind))
    with pytest.raises(json.JSONDecodeError, match="Nested deeper than 100 levels: line 3 column "):
        parse_json("\n\n" + nested(MOST_DEPTH + 1, kind))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([[1]] * 1000),
        json.dumps("[" * 1000),
        json.dumps(['["\\{[' * 1000, {"[" * 1000: 1}]),
        '"' + "[" * 1000,
        '"\\' * 1000,
        "]" * 1000 + "[" * 100,
    ],
)
def test_brackets_count_where_they_nest_only(text: str) -> None:
    assert too_deep_at(text) is None


READERS: list[tuple[str, Callable[[Path], object]]] = [
    ("checkpoint", load_checkpoint),
    ("training.json", lambda folder: read_status(str(folder))),
    ("evaluator.json", lambda folder: EvaluationRecord(str(folder))),
    ("best_eval_result.json", lambda folder: _read_best(str(folder))),
    ("signatures.json", lambda folder: read_manifest(str(folder))),
    ("instances.json", lambda folder: list(_json_lines(str(folder / "instances.json")))),
    ("request.json", lambda folder: _request(str(folder / "request.json"))),
]


@pytest.mark.parametrize(("name", "read"), READERS, ids=[name for name, _ in READERS])
@pytest.mark.parametrize("kind", ["list", "object"])
def test_files_that_nest_too_deep_are_named(
    name: str, read: Callable[[Path], object], kind: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(nested(100_000, kind))
    with pytest.raises(UserError, match=name):
        read(tmp_path)


def test_a_state_that_nests_too_deep_is_named(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        writer.save(1, {"w": torch.zeros(1)})
    (tmp_path / "model.ckpt-1" / "state.json").write_text(nested(100_000))
    with pytest.raises(UserError, match=r"state\.json is damaged: Nested deeper than 500 levels"):
        load_checkpoint(tmp_path)


def test_the_position_of_a_long_input_is_read_back(tmp_path: Path) -> None:
    position = parse_json(nested(400, "object"), most_depth=400)
    with CheckpointWriter(tmp_path) as writer:
        writer.save(1, {"w": torch.zeros(1)}, state={"input": position})
    assert load_checkpoint(tmp_path).state["input"] == position


def test_a_compiled_step_that_nests_too_deep_is_none(tmp_path: Path) -> None:
    (tmp_path / "step.json").write_text(nested(100_000))
    with pytest.raises(StepMismatch):
        CompiledStep(tmp_path, [], 0, [])


def test_a_variable_of_the_environment_that_nests_too_deep_is_named() -> None:
    with pytest.raises(UserError, match=r"TF_CONFIG is not JSON .Nested deeper than 100 levels: line 1 column 101 "):
        task_from_tf_config(nested(100_000))
