"""Jobs on a real Slurm of four nodes, which scripts/slurm-cluster starts on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.slurm_cluster import main as slurm_command
from scripts.storms.common import ROOT, StormError
from scripts.storms.places import slurm_cluster
from scripts.storms.submitting import pythons, wait_until
from tests.jobs.conftest import WORKER_HANGS, Jobs
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import FINAL, JobDirectory, JobEvent, JobSpec, Machine, names
from torch_estimator.jobs.kinds import status_of
from torch_estimator.jobs.slurm import Slurm, _counts

SCRIPT = ROOT / "scripts" / "slurm-cluster"
FOUR_ROLES = ("--scale-tier", "CUSTOM", "--worker-count", "1", "--parameter-server-count", "1", "--on", "cluster")
ROLES = ("chief-0", "worker-0", "ps-0", "evaluator-0")
TABLE = """
[targets.cluster]
kind = "slurm"
nodes = 4
"""
# The steps that were done are in a file, which a SIGTERM writes.
TRAINING = """
done = int((here / "done").read_text()) if (here / "done").exists() else 0
is_asked = False
def ask(*_):
    global is_asked
    is_asked = True
signal.signal(signal.SIGTERM, ask)
print("starts at", done, flush=True)
while not is_asked and not (here / "enough").exists():
    done += 1
    time.sleep(0.01)
if me == "chief-0":
    # The others may read it now.
    (here / "new").write_text(str(done))
    (here / "new").replace(here / "done")
    print("saved", done, flush=True)
sys.exit(143 if is_asked else 0)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Slurm of four nodes; the folder with its commands."""
    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster"))
        except StormError as error:
            pytest.skip(str(error))
        yield started


@pytest.fixture
def on_slurm(cluster: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Jobs whose target `cluster` is that Slurm. Nothing may be left of them."""
    monkeypatch.setenv("PATH", f"{cluster}/bin", prepend=os.pathsep)
    (jobs.folder / "estimator.toml").write_text(TABLE)
    yield jobs
    for name in names(str(jobs.folder / "jobs")):
        if status_of(jobs.directory(name)).state not in FINAL:
            jobs.run("cancel", name)
            jobs.wait(name)
    wait_until(lambda: not slurm("squeue", "--noheader"))
    assert not processes()


def slurm(*command: str) -> str:
    return subprocess.check_output(command, text=True).strip()


def number(jobs: Jobs, name: str) -> str:
    return str(jobs.launched(name).place).removeprefix("Slurm job ")


def processes() -> dict[str, int]:
    """The processes of all roles, by the name of the step and the number of the job. All nodes are this machine.

    Tests beside this one may have a cluster of their own.
    """
    conf = str(Path(os.environ["PATH"].partition(os.pathsep)[0]).parent / "slurm.conf")
    return {
        f"{environ['SLURM_JOB_NAME']} of {environ['SLURM_JOB_ID']}": pid
        for pid, command, environ in pythons()
        if {"trainer.task", "torch_estimator.parameter_server"} & {*command}
        and "SLURM_STEP_ID" in environ
        and environ.get("SLURM_CONF") == conf
    }


def wait_for_roles(jobs: Jobs, name: str) -> None:
    for role in ROLES:
        jobs.wait_for_line(name, role, "listens on" if role == "ps-0" else "starts at")


def test_each_role_is_a_step_on_a_node_of_its_own(on_slurm: Jobs) -> None:
    on_slurm.program("""
    print(os.environ["SLURMD_NODENAME"], json.loads(os.environ["TF_CONFIG"])["cluster"], flush=True)
    (here / me).write_text(json.dumps(sys.argv[1:]))
    """)
    given = ["it's", 'a "quote"', "$HOME", "two\nlines", "😀", "", "*"]
    on_slurm.submit("four", *FOUR_ROLES, "--", *given)
    assert on_slurm.wait("four") == "SUCCEEDED"
    first = 12_000 + int(number(on_slurm, "four")) % 200 * 100
    cluster = {"chief": [f"n1:{first}"], "worker": [f"n2:{first + 1}"], "ps": [f"n3:{first + 2}"]}
    for node, role in (("n1", "chief-0"), ("n2", "worker-0"), ("n4", "evaluator-0")):
        assert f"{node} {cluster}" in on_slurm.log("four", role)
        assert json.loads((on_slurm.folder / role).read_text()) == given
    described = on_slurm.describe("four")
    assert described["roles"].keys() == set(ROLES)
    assert (on_slurm.folder / "jobs/four/logs/launcher.stderr").stat().st_mode & 0o777 == 0o600


def test_a_killed_role_alone_is_started_again(on_slurm: Jobs) -> None:
    on_slurm.program(TRAINING)
    on_slurm.submit("killed", *FOUR_ROLES)
    wait_for_roles(on_slurm, "killed")
    before = processes()
    for role in ROLES[1:]:
        (step,) = [step for step in processes() if step.startswith(role)]
        os.kill(processes()[step], signal.SIGKILL)
        text = "listens on" if role == "ps-0" else "starts at"
        wait_until(lambda role=role, text=text: on_slurm.log("killed", role).count(text) == 2)  # type: ignore[misc]
    after = processes()
    assert {step: pid for step, pid in after.items() if before.get(step) == pid}.keys() == {
        step for step in before if step.startswith("chief-0")
    }
    assert len(after) == 4
    (on_slurm.folder / "enough").touch()
    assert on_slurm.wait("killed") == "SUCCEEDED"
    roles = on_slurm.describe("killed")["roles"]
    assert {role: roles[role]["restarts"] for role in ROLES} == {role: int(role != "chief-0") for role in ROLES}
    assert [event.status for event in on_slurm.directory("killed").events() if event.kind == "exited"][:3] == [-9] * 3


def test_a_role_that_hangs_is_started_again_alone(on_slurm: Jobs) -> None:
    on_slurm.program(WORKER_HANGS)
    on_slurm.submit("hung", *FOUR_ROLES, "--hang-secs", "4")
    wait_until(lambda: on_slurm.describe("hung")["roles"].get("worker-0", {}).get("restarts") == 1)
    (on_slurm.folder / "go").touch()
    assert on_slurm.wait("hung") == "SUCCEEDED"
    roles = on_slurm.describe("hung")["roles"]
    assert {role: roles[role]["restarts"] for role in ROLES} == {role: int(role == "worker-0") for role in ROLES}
    said = [event.reason for event in on_slurm.directory("hung").events() if event.reason.endswith("it was ended.")]
    assert len(said) == 1


@pytest.mark.parametrize("how", ["jobs cancel", "scancel"])
def test_a_cancelled_job_saves_and_leaves_nothing(on_slurm: Jobs, how: str) -> None:
    on_slurm.program(TRAINING)
    on_slurm.submit("ended", *FOUR_ROLES)
    wait_for_roles(on_slurm, "ended")
    if how == "scancel":
        slurm("scancel", number(on_slurm, "ended"))
    else:
        assert on_slurm.run("cancel", "ended")[:2] == (0, "Cancelled ended.\n")
    assert on_slurm.wait("ended") == "CANCELLED"
    assert "saved" in on_slurm.log("ended", "chief-0")
    roles = on_slurm.describe("ended")["roles"]
    assert [roles[role]["restarts"] for role in ROLES] == [0] * 4
    assert [roles[role]["status"] for role in ROLES] == [143] * 4


def test_no_line_of_a_killed_role_is_lost(on_slurm: Jobs) -> None:
    on_slurm.program("""
    first = not (here / "died").exists()
    for number in range(5000):
        print("line", number, "x" * 90)
    if me == "worker-0" and first:
        (here / "died").touch()
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    elif me == "worker-0":
        (here / "again").touch()
    wait_for("again")
    """)
    on_slurm.submit("loud", *FOUR_ROLES)
    assert on_slurm.wait("loud") == "SUCCEEDED"
    expected = [f"line {number} {'x' * 90}" for number in range(5000)]
    for role, times in (("worker-0", 2), ("chief-0", 1)):
        assert [line for line in on_slurm.log("loud", role).splitlines() if "srun" not in line] == expected * times


def test_a_job_that_waits_can_be_cancelled(on_slurm: Jobs) -> None:
    on_slurm.program("print(me)")
    with (on_slurm.folder / "estimator.toml").open("a") as table:
        table.write('options = ["--begin=now+1hour"]\n')
    on_slurm.submit("waits", *FOUR_ROLES)
    assert on_slurm.describe("waits")["state"] == "QUEUED"
    on_slurm.run("cancel", "waits")
    wait_until(lambda: on_slurm.describe("waits")["state"] == "CANCELLED")


def test_an_error_of_the_user_ends_the_job_with_its_sentence(on_slurm: Jobs) -> None:
    on_slurm.program("""
    if me == "worker-0":
        sys.exit(print("error: --rate must be positive.", file=sys.stderr) or 2)
    wait_for("never")
    """)
    on_slurm.submit("wrong", *FOUR_ROLES)
    assert on_slurm.wait("wrong") == "FAILED"
    reason = on_slurm.describe("wrong")["reason"]
    assert "Worker 0 ended with status 2" in reason and "worker-0 said: error: --rate must be positive." in reason


def test_a_job_told_of_its_time_limit_is_queued_again_and_goes_on(on_slurm: Jobs) -> None:
    on_slurm.program(TRAINING)
    on_slurm.submit("limited", *FOUR_ROLES)
    saved = 0
    for _ in range(2):
        jobs_number = number(on_slurm, "limited")
        on_slurm.wait_for_line("limited", "chief-0", f"starts at {saved}")
        wait_until(lambda: len(processes()) == 4)
        # What --signal=B:TERM@90 does.
        slurm("scancel", "--batch", "--signal=TERM", jobs_number)
        wait_until(lambda before=jobs_number: number(on_slurm, "limited") != before)  # type: ignore[misc]
        saved = int((on_slurm.folder / "done").read_text())
    on_slurm.wait_for_line("limited", "chief-0", f"starts at {saved}")
    (on_slurm.folder / "enough").touch()
    assert on_slurm.wait("limited") == "SUCCEEDED"
    assert [event.kind for event in on_slurm.directory("limited").events()].count("requeued") == 2


@pytest.mark.slow
def test_a_job_at_its_time_limit_is_queued_again_and_goes_on(on_slurm: Jobs) -> None:
    on_slurm.program(TRAINING)
    with (on_slurm.folder / "estimator.toml").open("a") as table:
        table.write('time = "1"\noptions = ["--signal=B:TERM@20"]\n')
    on_slurm.submit("limited", *FOUR_ROLES)
    wait_until(lambda: "requeued" in [event.kind for event in on_slurm.directory("limited").events()])
    saved = int((on_slurm.folder / "done").read_text())
    on_slurm.wait_for_line("limited", "chief-0", f"starts at {saved}")
    (on_slurm.folder / "enough").touch()
    assert on_slurm.wait("limited") == "SUCCEEDED"


def test_a_job_whose_launcher_was_killed_has_failed_and_can_be_resumed(on_slurm: Jobs) -> None:
    on_slurm.program(TRAINING)
    on_slurm.submit("lost", *FOUR_ROLES)
    wait_for_roles(on_slurm, "lost")
    slurm("scancel", "--batch", "--signal=KILL", number(on_slurm, "lost"))
    assert on_slurm.wait("lost") == "FAILED"
    reason = on_slurm.describe("lost")["reason"]
    assert reason.startswith(
        f"Slurm job {number(on_slurm, 'lost')} has ended as FAILED, but its launcher has not said so"
    )
    assert reason.endswith("jobs resume lost goes on.")
    (on_slurm.folder / "enough").touch()
    assert on_slurm.run("resume", "lost")[0] == 0
    assert on_slurm.wait("lost") == "SUCCEEDED"


def test_a_directory_that_the_nodes_do_not_see_is_named(on_slurm: Jobs, cluster: Path) -> None:
    on_slurm.program("print(me)")
    # Each node has its own folder here.
    where = str(cluster / "unshared" / "jobs")
    on_slurm.submit("unseen", "--jobs", where, *FOUR_ROLES)
    described: Callable[[], dict[str, str]] = lambda: json.loads(  # noqa: E731
        on_slurm.run("describe", "unseen", "--jobs", where, "--format", "json")[1]
    )
    wait_until(lambda: described()["state"] == "FAILED")
    assert "the node did not see the directory of the job" in described()["reason"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('partition = "nope"', "Slurm's sbatch says: invalid partition specified: nope; "),
        ('options = ["--cpus-per-task=9"]', "allocation failure: Requested node configuration is not available."),
        ('options = ["--frobnicate"]', "sbatch: unrecognized option '--frobnicate'"),
        ("options = 4", "target cluster: 'options': expected list, but got 4; mend estimator.toml."),
    ],
)
def test_what_slurm_would_never_run_is_refused(on_slurm: Jobs, line: str, said: str) -> None:
    on_slurm.program("print(me)")
    (on_slurm.folder / "estimator.toml").write_text(f"{TABLE}{line}\n")
    status, _, err = on_slurm.run("submit", "training", "bad", "--module-name", "trainer.task", *FOUR_ROLES)
    assert (status, err.count("\n")) == (2, 1)
    assert said in err
    assert names(str(on_slurm.folder / "jobs")) == []


def test_without_slurm_the_target_is_refused(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.program("print(me)")
    monkeypatch.setenv("PATH", str(jobs.folder))
    status, _, err = jobs.run("submit", "training", "bad", "--module-name", "trainer.task", "--on", "slurm")
    assert status == 2
    assert err == (
        "estimator: error: there is no Slurm here: sbatch was not found; use a machine that has Slurm's commands.\n"
    )
    status, _, err = jobs.run(
        *("submit", "training", "bad", "--module-name", "trainer.task", "--on", "slurm", "--jobs", "memory://jobs")
    )
    assert err == (
        "estimator: error: on Slurm, --jobs must be a path that all nodes see, but got 'memory://jobs/bad'.\n"
    )


def test_machines_of_the_roles_become_options_of_sbatch() -> None:
    spec = JobSpec(
        name="sized",
        created=0.0,
        target="cluster",
        module_name="trainer.task",
        folder="/home/me",
        is_cluster=True,
        worker_count=2,
        machines={"chief": Machine(cpus=4, memory="14Gi"), "worker": Machine(cpus=3, gpus=2)},
        interpreter="/usr/bin/python3",
        settings={"kind": "slurm", "account": "us", "nodes": 2, "options": ["--exclusive"]},
    )
    plan = Slurm().plan(spec, "/home/me/jobs/sized", Path("trainer"))
    begins = "sbatch --job-name=sized --ntasks=3 --cpus-per-task=4 --gpus-per-task=2 --mem-per-cpu=3584M "
    assert plan.startswith(begins)
    assert plan.endswith(
        "--account=us --nodes=2 --exclusive /dev/stdin "
        "/usr/bin/python3 -P -m torch_estimator.jobs.launcher /home/me/jobs/sized"
    )
    assert list(_counts("2(x3),1")) == [2, 2, 2, 1]


def batch_script(folder: Path, *options: str, arguments: tuple[str, ...]) -> Callable[[], str]:
    """Submit the example batch script from the repository's root; return what reads its log."""
    log = folder / "slurm.log"
    script = (str(ROOT / "examples" / "cluster" / "slurm.sbatch"), "--job-dir", str(folder / "run"), *arguments)
    slurm("sbatch", f"--chdir={ROOT}", f"--output={log}", *options, *script)
    return lambda: log.read_text() if log.exists() else ""


@pytest.mark.slow
def test_the_example_batch_script_goes_on_after_its_time_limit(on_slurm: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    log = batch_script(on_slurm.folder, arguments=("--num-epochs", "2"))
    wait_until(lambda: "Saving checkpoints for 0" in log())
    (batch,) = slurm("squeue", "--noheader", "--format=%i").split()
    slurm("scancel", "--batch", "--signal=TERM", batch)
    wait_until(lambda: slurm("squeue", "--noheader", "--format=%T") == "PENDING")
    # Slurm would start it after two minutes. At once, the nodes would refuse it as a job that has just ended.
    slurm("scontrol", "update", f"JobId={batch}", "StartTime=now+3")
    wait_until(lambda: not slurm("squeue", "--noheader"))
    (step,) = re.findall(r"chief 0 .*Training ended at global step (\d+): SIGTERM asked for it", log())
    assert re.findall(r"Restoring parameters from .*run/model.ckpt-(\d+)", log())[0] == step
    assert "JobState=COMPLETED" in slurm("scontrol", "show", "job", batch)
    assert list((on_slurm.folder / "run" / "export" / "digits").iterdir())


@pytest.mark.slow
def test_the_example_batch_script_trains_with_a_server_and_an_evaluator(
    on_slurm: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    options = ("--export=ALL,PS=1,EVALUATOR=1", "--nodes=4")
    log = batch_script(on_slurm.folder, *options, arguments=("--num-epochs", "2"))
    wait_until(lambda: "evaluator 0" in log() and not slurm("squeue", "--noheader"))
    assert re.search("evaluator 0 .*Exported to", log())
    assert "srun: error" not in log()
    assert list((on_slurm.folder / "run" / "export" / "digits").iterdir())


def test_a_killed_cluster_leaves_no_process(cluster: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cluster"
    started = subprocess.Popen([SCRIPT, "--nodes", "1", "--folder", folder], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline().startswith("1 nodes are idle")
    assert slurm_command(["--folder", str(folder)]) == 1
    assert "there is a cluster in" in capfd.readouterr().err
    started.kill()
    started.wait()
    started.stdout.close()
    wait_until(lambda: not any(str(folder).encode() in command for command in commands()))
    # A new one takes the place of what is left.
    with subprocess.Popen([SCRIPT, "--nodes", "1", "--folder", folder], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("1 nodes are idle")
        process.terminate()
    assert not folder.exists()


def commands() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found


def test_only_the_job_that_slurm_runs_is_cancelled_and_no_copy_of_it(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Slurm 22.05 prints, shortened.
    said = "JobId=7 JobName=job\n   JobState=RUNNING Reason=None\n   StdIn=/dev/null\n   StdOut={}\n   Power=\n"
    job = jobs.directory("job")
    (jobs.folder / "scontrol").write_text(f"#!/bin/sh\necho '{said.format(f'{job.logs}/launcher.stderr')}'\n")
    (jobs.folder / "scontrol").chmod(0o700)
    monkeypatch.setenv("PATH", str(jobs.folder), prepend=os.pathsep)
    launched = JobEvent(kind="launched", time=1.0, place="Slurm job 7")
    Slurm().check_cancel(job, launched)
    with pytest.raises(InvalidValueError, match=r"the launcher of /copies/job runs .*/jobs/job; cancel that job"):
        Slurm().check_cancel(JobDirectory("/copies", "job"), launched)
