"""The command ``estimator status``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torch_estimator.activity.recorder import TimelineFile
from torch_estimator.activity.timeline import Change
from torch_estimator.cli import main


def write(model_dir: Path, role: str, *changes: Change, began: float, **spent: float) -> None:
    file = TimelineFile(str(model_dir / "activity" / f"{role}.{began * 1000:.0f}-7.jsonl"))
    last_step = spent.pop("last_step", began)
    head = {"pid": 7, "host": "here", "began": began, "last_step": last_step, "spent": {"time": began, **spent}}
    file.write(changes, head)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """The directory of a training whose worker waits, after a restart, and whose server was killed an hour ago."""
    now = time.time()
    waits = Change(time=now - 4, state="waiting", waits_for=("ps-0",), step=41)
    write(tmp_path, "worker-0", began=now - 90)
    write(tmp_path, "worker-0", waits, began=now, step=41, computing=60.0, servers=30.0, input=10.0)
    write(tmp_path, "ps-0", Change(time=now - 4000, state="serving"), began=now - 3600, step=39)
    return tmp_path


def test_a_table_says_what_each_role_does(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(model_dir)]) == 4
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    found = [[cell.strip() for cell in line if cell] for line in lines]
    assert found[0] == ["ROLE", "STATE", "STEP", "STEP AGE", "WAITS FOR", "RESTARTS", "SEEN", "TIME"]
    assert found[1] == ["ps-0", "gone (serving)", "39", "60 min", "0", "60 min ago"]
    assert found[2][:3] + found[2][4:6] == ["worker-0", "waiting", "41", "ps-0", "1"]
    assert found[2][7] == "60 % computing, 30 % servers"


def test_programs_get_json(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(model_dir), "--stale-secs", "7200", "--format", "json"]) == 0
    server, worker = json.loads(capsys.readouterr().out)
    assert (server["role"], server["health"], server["state"]) == ("ps-0", "well", "serving")
    assert (worker["waitsFor"], worker["restarts"], worker["step"]) == (["ps-0"], 1, 41)
    assert worker["spent"]["servers"] == 30


@pytest.mark.parametrize(
    ("change", "status", "shown"),
    [
        (Change(time=0, state="training"), 3, "stalled (training)"),
        (Change(time=0, state="ended", reason="the last step was reached"), 0, "ended: the last step was reached"),
        (Change(time=0, state="ended", reason="ValueError: \x1b[31mno", failed=True), 5, r"ValueError: \x1b[31mno"),
    ],
)
def test_the_exit_status_is_for_probes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, status: int, shown: str
) -> None:
    write(tmp_path, "chief-0", change, began=time.time(), step=3, last_step=time.time() - 500)
    assert main(["status", str(tmp_path)]) == status
    assert shown in capsys.readouterr().out


def test_a_directory_without_records_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").touch()
    for name, said in (
        ("no", "no does not exist; name the model_dir of a training."),
        ("file", "file is a file; name the model_dir of a training."),
        ("job", "job is the directory of a job; name the model_dir that its program trains in."),
        ("", " has no record of a training; name the model_dir of one that runs with this version or later."),
    ):
        place = tmp_path / name if name else tmp_path
        assert main(["status", str(place)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"estimator: error: {tmp_path}")
        assert err.endswith(f"{said}\n")
    assert main(["status", "s3x://bucket"]) == 2
    assert capsys.readouterr().err.endswith("s3x://bucket/activity cannot be used: Protocol not known: s3x.\n")
    assert main(["status", str(tmp_path), "--stale-secs", "0"]) == 2
    assert capsys.readouterr().err == "estimator: error: --stale-secs must be positive, but got 0.\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read_is_one_sentence(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model_dir / "activity").chmod(0)
    assert main(["status", str(model_dir)]) == 2
    assert capsys.readouterr().err == f"estimator: error: {model_dir} cannot be read: Permission denied.\n"


def test_it_imports_no_torch(model_dir: Path) -> None:
    code = (
        "import sys; from torch_estimator.cli import main\n"
        f"main(['status', {str(model_dir)!r}])\n"
        "assert not {'torch', 'onnx', 'pyarrow'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
