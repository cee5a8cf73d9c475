"""The process of a trial: what it is given, how it pauses at its rung, and that it goes on with the same bits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.line_jobs import assert_same_variables, checkpoint_steps, line
from tests.tuning.studies import LINE, make_study, make_trial, run_forked, run_trial
from torch_estimator.runs.locks import FileLock
from torch_estimator.tuning.directory import End, Trial
from torch_estimator.tuning.metrics import read_metric


def losses(trial: Trial) -> dict[int, float]:
    return read_metric(trial.job_dir, "loss", f"{trial.job_dir}.metrics").values


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_trial_that_pauses_at_every_rung_ends_with_the_bits_of_an_undisturbed_one(
    tmp_path: Path, compile: bool
) -> None:
    directory = make_study(tmp_path, LINE)
    for start, pauses_at in enumerate([1, 15, 30], 1):
        trial = make_trial(directory, 1, pauses_at=pauses_at, starts=start, compile=compile)
        assert run_forked(directory) == 143
        assert max(checkpoint_steps(trial.job_dir)) == max(losses(trial)) == 10 * start
        assert directory.end(1).read() == End(start=start, status=143, paused_at=10 * start)
    make_trial(directory, 1, starts=4, compile=compile)
    assert run_forked(directory) == 0
    # The other one runs in a process that was not forked.
    other = make_trial(directory, 2, compile=compile)
    ran = run_trial(directory, 2)
    assert (ran.returncode, ran.stdout) == (0, f"compile: {compile} threads: 1\n")
    assert_same_variables(line(trial.job_dir), line(other.job_dir))
    assert losses(trial)[40] == losses(other)[40]
    # The key of the compiled step is the same, whichever way the trial was started.
    steps = Path(os.environ["TORCH_ESTIMATOR_CACHE_DIR"]) / "steps"
    assert len(list(steps.glob("[!.]*"))) == compile


def test_a_checkpoint_at_the_rung_that_was_not_evaluated_is_evaluated_first(tmp_path: Path) -> None:
    directory = make_study(tmp_path, LINE)
    trial = make_trial(directory, pauses_at=20)
    assert run_forked(directory) == 143
    for one in (tmp_path / "jobs" / "study" / "trials" / "1" / "eval").iterdir():
        one.unlink()
    assert run_forked(directory) == 143
    assert list(losses(trial)) == [20]
    assert max(checkpoint_steps(trial.job_dir)) == 20


@pytest.mark.parametrize("pauses_at", [40, 1000])
def test_a_rung_beyond_the_last_step_does_not_pause(tmp_path: Path, pauses_at: int) -> None:
    directory = make_study(tmp_path, LINE)
    make_trial(directory, pauses_at=pauses_at)
    assert run_forked(directory) == 0


def test_a_program_gets_what_googles_service_gave_it(tmp_path: Path) -> None:
    program = """
    import json, os, sys
    print(json.dumps([sys.argv[1:], __name__, os.getcwd(), dict(os.environ)]))
    """
    directory = make_study(tmp_path, program, "--steps", "5", metric="auc")
    trial = make_trial(directory, 7, parameters={"rate": "1.50", "kind": "a b"}, began=1.5)
    arguments, name, folder, environ = json.loads(run_trial(directory, 7).stdout)
    assert arguments == ["--steps", "5", "--rate=1.50", "--kind=a b", "--job-dir", trial.job_dir]
    assert (name, folder) == ("__main__", str(tmp_path))
    assert json.loads(environ["TF_CONFIG"])["task"]["trial"] == "7"
    assert environ["CLOUD_ML_TRIAL_ID"] == "7"
    assert environ["CLOUD_ML_HP_METRIC_TAG"] == "auc"
    assert environ["CLOUD_ML_JOB_ID"] == "study"


@pytest.mark.parametrize(
    ("code", "status"),
    [("import sys; sys.exit(3)", 3), ("raise SystemExit", 0), ("raise SystemExit('no')", 1), ("1 / 0", 1), ("", 0)],
)
def test_how_a_program_ends_is_on_disk(tmp_path: Path, code: str, status: int) -> None:
    directory = make_study(tmp_path, code)
    make_trial(directory, 1, starts=2)
    assert run_trial(directory).returncode == status
    assert directory.end(1).read() == End(start=2, status=status)


def test_a_trial_runs_once(tmp_path: Path) -> None:
    directory = make_study(tmp_path, "open('ran', 'x')")
    make_trial(directory)
    with FileLock(directory.path(1, ".lock")):
        ran = run_trial(directory)
    assert (ran.returncode, (tmp_path / "ran").exists(), directory.end(1).read()) == (1, False, None)
    assert ran.stderr.startswith("trial 1 runs already")
