"""Jobs on this machine: submitted, watched, ended, killed, and started again."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.storms.submitting import is_running, wait_until
from tests.jobs.conftest import Jobs
from torch_estimator.errors import RESTART_ME
from torch_estimator.jobs import launcher
from torch_estimator.jobs.kinds import KINDS
from torch_estimator.jobs.request import Request, spec_of
from torch_estimator.jobs.submission import submit
from torch_estimator.jobs.table import Table

TABLE = """
secret_arguments = ["--token"]
[tiers.STANDARD_1]
worker_count = 2
parameter_server_count = 1
evaluator = true
"""


def test_the_command_of_googles_article_runs_as_it_is(jobs: Jobs) -> None:
    (jobs.folder / "estimator.toml").write_text(TABLE)
    jobs.program("print(me, sys.argv[1:])")
    line = (
        "submit training census_1 --scale-tier SCALE_TIER_STANDARD_1 --runtime-version 1.4 --job-dir out "
        "--module-name trainer.task --package-path trainer/ --region us-central1 -- --train-steps 5000"
    )
    status, out, err = jobs.run(*line.split())
    assert (status, err) == (0, "--region, --runtime-version do nothing here.\n")
    assert out.startswith("Job [census_1] submitted successfully.")
    assert jobs.wait("census_1") == "SUCCEEDED"
    for role in ("chief-0", "worker-0", "worker-1", "evaluator-0"):
        assert f"{role} ['--train-steps', '5000', '--job-dir', 'out']" in jobs.log("census_1", role)
    assert "An evaluator was added" in jobs.log("census_1", "launcher")


def test_arguments_arrive_as_they_were_given(jobs: Jobs) -> None:
    jobs.program("(here / 'given').write_text(json.dumps(sys.argv[1:]))")
    given = ["it's", 'a "quote"', "$HOME", "two\nlines", "😀", "", "--", "-x", "*"]
    jobs.submit("odd", "--", *given)
    assert jobs.wait("odd") == "SUCCEEDED"
    assert json.loads((jobs.folder / "given").read_text()) == given


def test_a_job_of_one_process_has_no_cluster(jobs: Jobs) -> None:
    jobs.program("print(os.environ['TF_CONFIG']); print('to stderr', file=sys.stderr)")
    jobs.submit("one", "--stream-logs", "--polling-interval", "0.05")
    assert jobs.describe("one")["roles"].keys() == {"chief-0"}
    assert sorted(jobs.log("one", "chief-0").splitlines()) == sorted(['{"cluster": {}, "task": {}}', "to stderr"])


def test_the_log_is_followed_to_the_end(jobs: Jobs) -> None:
    jobs.program("print('first', flush=True); wait_for('go'); print('last')")
    jobs.submit("followed")
    jobs.wait_for_line("followed", "chief-0", "first")
    # It does not wait for a role that will never be there.
    status, _, err = jobs.run("stream-logs", "followed", "--task-name", "worker-7")
    assert (status, err) == (2, "estimator: error: job followed has no role worker-7; it has chief-0, launcher.\n")
    (jobs.folder / "go").touch()
    status, out, err = jobs.run("stream-logs", "followed", "--polling-interval", "0.05")
    assert status == 0
    assert re.fullmatch(r"\S+ \[chief-0\] first\n\S+ \[chief-0\] last\n", out)
    assert err == "Job followed SUCCEEDED.\n"
    assert jobs.run("stream-logs", "followed", "--task-name", "master-replica-0")[1] == out
    status, _, err = jobs.run("stream-logs", "followed", "--task-name", "worker-7")
    assert (status, err) == (2, "estimator: error: job followed has no role worker-7; it has chief-0, launcher.\n")


def test_a_killed_worker_alone_is_started_again_and_no_line_is_lost(jobs: Jobs) -> None:
    (jobs.folder / "estimator.toml").write_text(TABLE)
    jobs.program("""
    for number in range(100):
        print("line", number)
    print("waiting", flush=True)
    wait_for("go")
    """)
    jobs.submit("killed", "--scale-tier", "STANDARD_1")
    for role in ("chief-0", "worker-0", "worker-1", "evaluator-0"):
        jobs.wait_for_line("killed", role, "waiting")
    before = {role: one["pid"] for role, one in jobs.describe("killed")["roles"].items()}
    os.kill(before["worker-1"], signal.SIGKILL)
    wait_until(lambda: jobs.log("killed", "worker-1").count("waiting") == 2)
    after = {role: one["pid"] for role, one in jobs.describe("killed")["roles"].items()}
    assert {role for role in before if before[role] != after[role]} == {"worker-1"}
    assert jobs.describe("killed")["roles"]["worker-1"]["restarts"] == 1
    (jobs.folder / "go").touch()
    assert jobs.wait("killed") == "SUCCEEDED"
    expected = [*(f"line {number}" for number in range(100)), "waiting"]
    assert jobs.log("killed", "worker-1").splitlines() == 2 * expected
    assert jobs.log("killed", "worker-0").splitlines() == expected


def test_a_mistake_of_the_user_ends_the_job_with_its_sentence(jobs: Jobs) -> None:
    (jobs.folder / "estimator.toml").write_text(TABLE)
    jobs.program("""
    if me == "worker-1":
        sys.stderr.write("there is no file data.csv; name another one.\\n")
        sys.exit(2)
    wait_for("never")
    """)
    status, _, err = jobs.run(
        *("submit", "training", "wrong", "--module-name", "trainer.task", "--scale-tier", "STANDARD_1"),
        *("--stream-logs", "--polling-interval", "0.05"),
    )
    assert status == 1
    assert err == (
        "Job wrong FAILED: Worker 1 ended with status 2, an error of the user that a restart would repeat; ending the "
        "job. worker-1 said: there is no file data.csv; name another one.\n"
    )
    assert jobs.describe("wrong")["state"] == "FAILED"
    assert jobs.describe("wrong")["roles"]["worker-1"]["reason"] == "there is no file data.csv; name another one."


def test_a_cancelled_job_lets_its_roles_save(jobs: Jobs) -> None:
    (jobs.folder / "estimator.toml").write_text(TABLE)
    jobs.program("""
    def save(number, frame):
        print("saved")
        sys.exit(143)

    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    wait_for("never")
    """)
    jobs.submit("ended", "--scale-tier", "STANDARD_1")
    for role in ("chief-0", "worker-0", "worker-1", "evaluator-0"):
        jobs.wait_for_line("ended", role, "ready")
    pids = [one["pid"] for one in jobs.describe("ended")["roles"].values()]
    assert jobs.run("cancel", "ended")[:2] == (0, "Cancelled ended.\n")
    assert jobs.wait("ended") == "CANCELLED"
    assert jobs.log("ended", "chief-0").splitlines() == ["ready", "saved"]
    assert not any(map(is_running, pids))
    wait_until(lambda: not is_running(jobs.launcher("ended")))
    status, _, err = jobs.run("cancel", "ended")
    assert (status, err) == (2, "estimator: error: job ended has ended already: it is CANCELLED.\n")


def test_a_job_that_was_cancelled_before_its_launcher_ran_starts_no_role(jobs: Jobs) -> None:
    jobs.program("print('ran')")
    jobs.submit("early")
    assert jobs.wait("early") == "SUCCEEDED"
    jobs.directory("early").add("launched", "QUEUED", place="Slurm job 1")
    jobs.directory("early").add("cancelling", "CANCELLING")
    assert launcher.run(jobs.directory("early"), lambda *_: pytest.fail("a role was started")) == RESTART_ME
    assert jobs.wait("early") == "CANCELLED"
    assert jobs.log("early", "chief-0") == "ran"


def test_a_killed_launcher_leaves_no_role_and_the_job_goes_on_with_its_own_package(jobs: Jobs) -> None:
    jobs.program("print('old'); print('waiting', flush=True); wait_for('go')")
    jobs.submit("resumed")
    jobs.wait_for_line("resumed", "chief-0", "waiting")
    status, _, err = jobs.run("resume", "resumed")
    assert (status, err) == (2, "estimator: error: job resumed is RUNNING; cancel it first, or wait for its end.\n")
    role, launcher = jobs.pid("resumed", "chief-0"), jobs.launcher("resumed")
    os.kill(launcher, signal.SIGKILL)
    wait_until(lambda: not is_running(role) and not is_running(launcher))
    status, out, _ = jobs.run("list")
    assert re.search(r"\nresumed  FAILED ", out)
    assert "was killed; jobs resume resumed goes on." in jobs.describe("resumed")["reason"]
    assert jobs.describe("resumed")["roles"]["chief-0"]["state"] == "ended"
    # What is submitted is what runs, whatever happens to the user's folder later.
    jobs.program("print('new')")
    (jobs.folder / "go").touch()
    assert jobs.run("resume", "resumed")[0] == 0
    assert jobs.wait("resumed") == "SUCCEEDED"
    assert jobs.log("resumed", "chief-0").splitlines() == 2 * ["old", "waiting"]
    status, _, err = jobs.run("resume", "resumed")
    assert (status, err.partition(",")[0]) == (2, "estimator: error: job resumed SUCCEEDED")


def test_secret_arguments_are_written_nowhere(jobs: Jobs) -> None:
    (jobs.folder / "estimator.toml").write_text(TABLE)
    jobs.program("""
    (here / me).write_text(json.dumps(sys.argv[1:]))
    assert "TORCH_ESTIMATOR_SECRET_ARGUMENTS" not in os.environ
    print(sys.argv, file=sys.stderr)
    sys.exit(0 if (here / "go").exists() else 2)
    """)
    jobs.submit("secret", "--", "--token", "hunter2", "--steps", "5")
    assert jobs.wait("secret") == "FAILED"
    written = [path for path in (jobs.folder / "jobs").rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert not written
    status, _, err = jobs.run("resume", "secret")
    assert status == 2
    assert "the values of --token are secret and were not kept" in err
    (jobs.folder / "go").touch()
    assert jobs.run("resume", "secret", "--", "--token", "hunter3", "--steps", "5")[0] == 0
    assert jobs.wait("secret") == "SUCCEEDED"
    assert json.loads((jobs.folder / "chief-0").read_text()) == ["--token", "hunter3", "--steps", "5"]


def test_only_the_user_reads_what_was_asked_for_and_the_logs(jobs: Jobs) -> None:
    jobs.program("")
    jobs.submit("private")
    assert jobs.wait("private") == "SUCCEEDED"
    folder = jobs.folder / "jobs" / "private"
    for path in (folder / "job.json", folder / "logs" / "chief-0.log", folder / "logs" / "launcher.log"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_job_ends_after_its_running_time(jobs: Jobs) -> None:
    jobs.program("wait_for('never')")
    (jobs.folder / "job.yaml").write_text(
        "trainingInput:\n  pythonModule: trainer.task\n  scheduling: {maxRunningTime: 0.3s}\n"
    )
    assert jobs.run("submit", "training", "long", "--config", "job.yaml")[0] == 0
    assert jobs.wait("long") == "FAILED"
    assert "it has run for its scheduling.maxRunningTime of 0.3 s" in jobs.describe("long")["reason"]


def test_parameter_servers_have_a_key_of_their_job(jobs: Jobs) -> None:
    (jobs.folder / "estimator.toml").write_text(TABLE)
    jobs.program("print(os.environ['TORCH_ESTIMATOR_KEY_FILE'])")
    jobs.submit("keyed", "--scale-tier", "STANDARD_1")
    assert jobs.wait("keyed") == "SUCCEEDED"
    key = jobs.folder / "jobs" / "keyed" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert jobs.log("keyed", "worker-0") == str(key)


def test_a_program_may_be_one_file(jobs: Jobs) -> None:
    (jobs.folder / "prog.py").write_text("import sys; print('ran', sys.argv[1:])")
    assert jobs.run("submit", "training", "single", "--module-name", "prog", "--", "x")[0] == 0
    assert jobs.wait("single") == "SUCCEEDED"
    assert jobs.log("single", "chief-0") == "ran ['x']"


def test_a_dry_run_makes_nothing(jobs: Jobs) -> None:
    jobs.program("")
    status, out, _ = jobs.run(
        "submit",
        "training",
        "dry",
        "--module-name",
        "trainer.task",
        "--worker-count",
        "2",
        "--dry-run",
        "--format",
        "json",
    )
    assert status == 0
    content = json.loads(out)
    assert content["trainingInput"]["tier"] == "CUSTOM"
    assert content["trainingInput"]["worker_count"] == 2
    assert "torch_estimator.jobs.launcher" in content["runs"]
    assert not (jobs.folder / "jobs").exists()


def test_a_launcher_that_cannot_start_is_a_failed_job(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.program("")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    jobs.submit("lost")
    assert jobs.wait("lost") == "FAILED"
    said = (
        r"its launcher \(process \d+ on .*\) was killed, after .* in logs/launcher.stderr; jobs resume lost goes on\."
    )
    assert re.fullmatch(said, jobs.describe("lost")["reason"])


def started_elsewhere(jobs: Jobs, name: str, **launched: object) -> Path:
    """Say in the events of a job that its launcher was started elsewhere; return the file."""
    path = max((jobs.folder / "jobs" / name / "events").iterdir())
    number = int(path.stem) + 1
    event = {
        "kind": "launched",
        "time": 1.0,
        "state": "RUNNING",
        "pid": 1,
        "host": "elsewhere",
        "place": "other pid:[1]",
    }
    path = path.with_stem(f"{number:08}")
    path.write_text(json.dumps({**event, **launched}))
    return path


def test_a_cancel_that_is_refused_changes_nothing(jobs: Jobs) -> None:
    jobs.program("wait_for('go')")
    jobs.submit("far")
    wait_until(lambda: jobs.describe("far")["state"] == "RUNNING")
    event = started_elsewhere(jobs, "far")
    status, _, err = jobs.run("cancel", "far")
    assert (status, err) == (2, "estimator: error: job far runs on elsewhere; cancel it there.\n")
    # Nobody here sees whether it runs, or can start it again.
    assert "\nfar     RUNNING on elsewhere  " in jobs.run("list")[1]
    described = jobs.describe("far")
    assert described["state"] == "RUNNING"
    assert described["reason"].endswith(" says so; whether it still runs cannot be seen from here.")
    status, _, err = jobs.run("resume", "far")
    assert status == 2
    assert err.startswith("estimator: error: job far is RUNNING on elsewhere: its event of ")
    subprocess.run(err.partition("say so: ")[2], shell=True, check=True)
    assert jobs.describe("far")["state"] == "FAILED"
    Path(err.rpartition(">")[2].strip()).unlink()
    event.unlink()
    assert jobs.describe("far")["state"] == "RUNNING"
    (jobs.folder / "go").touch()
    assert jobs.wait("far") == "SUCCEEDED"


def test_to_cancel_a_copy_of_a_job_does_not_end_the_job(jobs: Jobs) -> None:
    jobs.program("wait_for('go')")
    jobs.submit("job")
    wait_until(lambda: jobs.describe("job")["state"] == "RUNNING")
    shutil.copytree("jobs", "backup")
    status, _, err = jobs.run("cancel", "job", "--jobs", "backup")
    here = jobs.folder
    said = f"the launcher of {here}/backup/job runs {here}/jobs/job; cancel that job.\n"
    assert (status, err) == (2, f"estimator: error: {said}")
    (here / "link").symlink_to("jobs")
    assert jobs.run("cancel", "job", "--jobs", "link")[0] == 0
    assert jobs.wait("job") == "CANCELLED"


def test_a_job_goes_on_only_with_the_package_that_was_submitted(jobs: Jobs) -> None:
    jobs.program("from trainer import other; sys.exit(0 if (here / 'go').exists() else 2)")
    (jobs.folder / "trainer" / "other.py").touch()
    jobs.submit("edited")
    assert jobs.wait("edited") == "FAILED"
    (jobs.folder / "go").touch()
    copy = jobs.folder / "jobs" / "edited" / "package"
    (copy / "trainer" / "__pycache__").mkdir(exist_ok=True)
    (copy / "trainer" / "__pycache__" / "other.pyc").touch()
    before = (copy / "trainer" / "other.py").read_bytes()
    (copy / "trainer" / "other.py").write_text("0")
    status, _, err = jobs.run("resume", "edited")
    assert (status, err) == (
        2,
        f"estimator: error: {copy} has changed since job edited was submitted; restore it, or submit a new job.\n",
    )
    (copy / "trainer" / "other.py").write_bytes(before)
    assert jobs.run("resume", "edited")[0] == 0
    assert jobs.wait("edited") == "SUCCEEDED"


def test_a_full_disk_ends_a_job_and_its_roles(jobs: Jobs) -> None:
    jobs.program("""
    print("ready", flush=True)
    wait_for("go")
    print("more", flush=True)
    wait_for("never")
    """)
    jobs.submit("full")
    jobs.wait_for_line("full", "chief-0", "ready")
    role, launcher = jobs.pid("full", "chief-0"), jobs.launcher("full")
    # As on a full disk, each write of the launcher fails.
    resource.prlimit(launcher, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    (jobs.folder / "go").touch()
    assert jobs.wait("full") == "FAILED"
    wait_until(lambda: not is_running(role) and not is_running(launcher))
    assert jobs.describe("full")["reason"].endswith(") was killed; jobs resume full goes on.")


def test_a_full_log_is_the_reason_of_a_failed_job(jobs: Jobs) -> None:
    jobs.program("""
    print("ready", flush=True)
    wait_for("go")
    print("x" * 20_000, flush=True)
    wait_for("never")
    """)
    jobs.submit("full")
    jobs.wait_for_line("full", "chief-0", "ready")
    resource.prlimit(jobs.launcher("full"), resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    (jobs.folder / "go").touch()
    assert jobs.wait("full") == "FAILED"
    said = "the job was ended because its output cannot be written: File too large."
    assert jobs.describe("full")["reason"] == said


def test_the_reason_of_a_job_with_a_late_evaluator_is_the_limit(jobs: Jobs) -> None:
    jobs.program("if me == 'evaluator-0': wait_for('never')")
    spec = spec_of(Request(module_name="trainer.task", evaluator_count=1), Table.read(KINDS), "late", "local")
    submit(jobs.directory("late"), dataclasses.replace(spec, finish_secs=0.1), jobs.folder / "trainer", [])
    assert jobs.wait("late") == "FAILED"
    assert jobs.describe("late")["reason"] == "Evaluator 0 did not finish within 0.1 s of the chief; sent SIGTERM."


def test_who_follows_a_job_that_cannot_be_seen_is_told(jobs: Jobs) -> None:
    jobs.program("wait_for('go')")
    jobs.submit("far")
    wait_until(lambda: jobs.describe("far")["state"] == "RUNNING")
    event = started_elsewhere(jobs, "far")
    command = [sys.executable, "-m", "torch_estimator.cli", "jobs", "stream-logs", "far", "--polling-interval", "0.05"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert said.startswith("Job far is RUNNING on elsewhere: its event of ")
    assert said.endswith(" whether it still runs cannot be seen from here. Ctrl-C ends this command.\n")
    event.unlink()
    (jobs.folder / "go").touch()
    assert jobs.wait("far") == "SUCCEEDED"
