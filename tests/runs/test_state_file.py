"""A state file gives back what was written, and names what is wrong with it otherwise."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from torch_estimator import files
from torch_estimator.errors import RegistryError
from torch_estimator.runs.state_file import StateFile


@dataclass(kw_only=True)
class Part:
    name: str
    size: int = 0


@dataclass(kw_only=True)
class State:
    step: int | None
    secs: float = 0.0
    ended: bool = False
    pair: tuple[str, float | None] | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)
    names: list[str | None] = field(default_factory=list)
    any: Any = None


FULL = State(
    step=3,
    secs=1.5,
    ended=True,
    pair=("a", None),
    parts={"x": Part(name="x", size=2)},
    names=["é", None, os.fsdecode(b"\xff")],
    any=[{"loss": 0.5}],
)


@pytest.mark.parametrize("state", [State(step=None), FULL])
@pytest.mark.parametrize("directory", ["local", "memory"])
def test_what_was_written_is_read(directory: str, state: State, tmp_path: Path) -> None:
    file = StateFile(f"{tmp_path}/job/state.json" if directory == "local" else "memory://state_file/s", State)
    assert file.read() is None
    for written in (State(step=1), state):
        file.write(written)
        assert file.read() == written
    file.remove()
    assert file.read() is None
    file.remove()


def test_versions_read_each_others_files(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path / "state.json"), State)
    Path(file.path).write_text('{"step": 4, "of a later version": 1, "parts": {"x": {"name": "x", "more": []}}}')
    assert file.read() == State(step=4, parts={"x": Part(name="x")})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"step": "\xff"}', "'utf-8' codec can't decode"),
        (b"[]", "its content: expected dict, but got []"),
        (b"{}", "its content has no 'step'"),
        (b'{"step": "1"}', "'step': expected int, but got '1'"),
        (b'{"step": true}', "'step': expected int, but got True"),
        (b'{"step": 1, "ended": 0}', "'ended': expected bool, but got 0"),
        (b'{"step": 1, "pair": ["a"]}', "'pair': expected 2 values, but got ['a']"),
        (b'{"step": 1, "parts": []}', "'parts': expected dict, but got []"),
        (b'{"step": 1, "parts": {"x": {}}}', "'x' has no 'name'"),
        (b'{"step": 1, "names": [1]}', "'names': expected str, but got 1"),
    ],
)
def test_a_damaged_file_is_named(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    file = StateFile(str(path), State, error=RegistryError, cure="restore it")
    with pytest.raises(RegistryError) as raised:
        file.read()
    assert str(raised.value).startswith(f"{path} is damaged: {problem}")
    assert str(raised.value).endswith("; restore it.")


def test_other_values_than_dataclasses_are_kept_too(tmp_path: Path) -> None:
    file: StateFile[dict[str, Any]] = StateFile(files.join(tmp_path, "best.json"), dict[str, Any])
    file.write({"loss": 0.5})
    assert json.loads(Path(file.path).read_text()) == {"loss": 0.5} == file.read()


def test_a_named_pipe_is_damaged_and_nobody_waits_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state.json")
    with pytest.raises(RegistryError, match=r"state\.json is damaged: it is a named pipe"):
        StateFile(str(tmp_path / "state.json"), dict, error=RegistryError).read()
