"""Whatever is wrong with the environment of an example is one sentence and status 2, by which launchers tell it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "examples").rglob("task.py")
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_cluster_that_cannot_be_ends_a_program_with_status_2(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(SystemExit) as raised:
        importlib.import_module(program).main(["--job-dir", str(tmp_path)])
    assert raised.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: TF_CONFIG is not JSON (")


def test_all_examples_are_there() -> None:
    assert len(PROGRAMS) == 6
