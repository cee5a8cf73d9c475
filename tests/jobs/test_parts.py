"""Packages, logs, GPUs and directories of jobs, each by itself."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import uuid
from pathlib import Path

import pytest

from torch_estimator import files
from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import JobDirectory, JobEvent, JobSpec, is_gone
from torch_estimator.jobs.gpus import Gpus, gpus_here
from torch_estimator.jobs.logs import LogReader, RoleLogs
from torch_estimator.jobs.package import copy_package, package_digest, package_files
from torch_estimator.log import time_text
from torch_estimator.runs.locks import Holder

WORKER = Task(type="worker", id=0, cluster={"chief": ("a:1",), "worker": ("b:1",)})
CHIEF = Task(type="chief", id=0, cluster=WORKER.cluster)


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A local directory, and one on a store that cannot append."""
    return str(tmp_path / "jobs") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


def make(place: str, name: str = "job") -> JobDirectory:
    job = JobDirectory(place, name)
    job.create()
    job.write(JobSpec(name=name, created=1.0, target="local", module_name="trainer.task", folder="/"))
    return job


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_package_is_copied_without_what_git_ignores(tmp_path: Path, place: str) -> None:
    trainer = tmp_path / "project" / "trainer"
    for name in ("task.py", "data/big.csv", "data/keep.csv", "notes.tmp", "sub/build/x.py", "sub/y.py", "top.cfg"):
        write(trainer / name, name)
    write(tmp_path / "project" / ".gitignore", "*.tmp\n/trainer/top.cfg\n")
    write(trainer / ".gitignore", "data/*\n!data/keep.csv\n")
    write(trainer / "sub" / ".gitignore", "build/\n")
    write(trainer / "__pycache__" / "task.pyc")
    subprocess.run(["git", "init", "-q", tmp_path / "project"], check=True)
    subprocess.run(["git", "init", "-q", trainer / "sub" / "nested"], check=True)
    expected = [".gitignore", "data/keep.csv", "sub/.gitignore", "sub/y.py", "task.py"]
    assert [path.relative_to(trainer).as_posix() for path in package_files(trainer)] == expected
    job = make(place)
    digest = copy_package(trainer, job)
    assert sorted(files.all_files(job.package)) == [f"trainer/{name}" for name in expected]
    assert files.read_text(files.join(job.package, "trainer", "task.py")) == "task.py"
    # The digest is that of names and contents.
    assert copy_package(trainer, make(place, "again")) == digest
    write(trainer / "task.py", "changed")
    assert copy_package(trainer, make(place, "other")) != digest


@pytest.mark.parametrize("rule", ["build/", "/build/trainer"])
def test_a_package_in_a_folder_that_git_ignores_is_copied(tmp_path: Path, rule: str) -> None:
    write(tmp_path / ".gitignore", f"{rule}\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    trainer = tmp_path / "build" / "trainer"
    write(trainer / "task.py")
    write(trainer / "data.csv")
    write(trainer / ".gitignore", "*.csv\n")
    assert package_files(trainer) == [trainer / ".gitignore", trainer / "task.py"]


def test_logs_are_read_on_from_where_they_were(place: str) -> None:
    job = make(place)
    logs = RoleLogs(job.logs, [CHIEF, WORKER])
    reader, of_worker = LogReader(job.logs), LogReader(job.logs, "worker-0")
    logs.write(CHIEF, b"first", False)
    logs.write(WORKER, "zwei\r€".encode(), True)
    logs.write(None, b"", True)
    if not files.is_local(place):
        logs.close()
        logs = RoleLogs(job.logs, [CHIEF, WORKER])
    found = reader.read()
    assert {(line.role, line.text) for line in found} == {
        ("chief-0", "first"),
        ("worker-0", "zwei\r€"),
        ("launcher", ""),
    }
    logs.write(WORKER, b"three", False)
    logs.close()
    assert [(line.role, line.text) for line in reader.read()] == [("worker-0", "three")]
    assert [line.text for line in of_worker.read()] == ["zwei\r€", "three"]
    assert reader.read() == []


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log, reader = tmp_path / "chief-0.log", LogReader(str(tmp_path))
    log.write_text("1 one\n2 tw")
    assert [line.text for line in reader.read()] == ["one"]
    with log.open("a") as file:
        file.write("o\n3 three\n")
    assert [line.text for line in reader.read()] == ["two", "three"]


def test_lines_of_a_raw_log_without_a_time_have_that_of_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "own.raw.log").write_text("2 rows\n2026-11-28T00:00:00.000+0000 INFO: begun\n")
    os.utime(tmp_path / "own.raw.log", (1e9, 1e9))
    first, second = LogReader(str(tmp_path)).read()
    assert first == (time_text(1e9), "own", "2 rows")
    assert second == ("2026-11-28T00:00:00.000+0000", "own", "INFO: begun")


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    logs = RoleLogs(str(tmp_path), [CHIEF])
    text = b"x" * 5000

    def write_some() -> None:
        for _ in range(50):
            logs.write(CHIEF, text, False)

    threads = [threading.Thread(target=write_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logs.close()
    lines = LogReader(str(tmp_path)).read()
    assert len(lines) == 200
    assert {line.text for line in lines} == {text.decode()}


def test_events_of_several_writers_are_all_kept(place: str) -> None:
    job = make(place)

    def add() -> None:
        for _ in range(20):
            job.add("exited", role=threading.current_thread().name, status=0)

    threads = [threading.Thread(target=add, name=f"worker-{number}") for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = job.events()
    assert len(events) == 60
    assert [event.role for event in events].count("worker-1") == 20


def test_a_state_is_that_of_the_last_event_with_one(place: str) -> None:
    job = make(place)
    assert job.status().state == "QUEUED"
    job.add("submitted", "QUEUED")
    job.add("started", "RUNNING", role="chief-0", pid=1)
    job.add("exited", role="chief-0", status=1, reason="no")
    assert job.status().state == "RUNNING"
    job.add("ended", "FAILED", reason="it broke.")
    assert (job.status().state, job.status().reason) == ("FAILED", "it broke.")


def test_a_launcher_of_another_machine_is_not_called_dead() -> None:
    here = Holder.this_process()
    launched = JobEvent(kind="launched", time=1.0, pid=2**22 + 1, host=here.host, place=here.place)
    assert is_gone(launched)
    assert not is_gone(JobEvent(kind="launched", time=1.0, pid=2**22 + 1, host="elsewhere", place=here.place))
    # The machine was started again.
    assert is_gone(JobEvent(kind="launched", time=1.0, pid=1, host=here.host, place="other-kernel pid:[1]"))
    # In another container, the same pid is another process.
    kernel = str(here.place).partition(" ")[0]
    assert not is_gone(JobEvent(kind="launched", time=1.0, pid=2**22 + 1, host=here.host, place=f"{kernel} pid:[1]"))


def test_a_damaged_job_is_named(tmp_path: Path) -> None:
    job = make(str(tmp_path))
    (tmp_path / "job" / "job.json").write_text('{"name": 3}')
    with pytest.raises(InvalidValueError, match=r"job/job\.json is damaged: .*; restore it from a copy\."):
        job.spec()


def test_unknown_keys_of_later_versions_are_ignored(tmp_path: Path) -> None:
    job = make(str(tmp_path))
    path = tmp_path / "job" / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert job.spec().name == "job"


def test_gpus_are_given_to_one_job_at_a_time(tmp_path: Path) -> None:
    first, second = (Gpus(["0", "1", "2"], str(tmp_path / "gpus")) for _ in range(2))
    assert first.take(2) == ["0", "1"]
    assert second.take(1) == ["2"]
    second.release()
    # It takes none as long as it cannot have all that it needs.
    assert second.try_to_take(2) == []
    first.release()
    assert second.take(3) == ["0", "1", "2"]
    with pytest.raises(InvalidValueError, match="asks for 4 GPUs, and this machine has 3"):
        second.take(4)
    second.release()


def test_the_gpus_of_this_machine_are_those_of_its_devices(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpus_here({}, str(tmp_path)) == ["2", "10"]
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "3, GPU-8a"}, str(tmp_path)) == ["3", "GPU-8a"]
    assert gpus_here({"CUDA_VISIBLE_DEVICES": ""}, str(tmp_path)) == []


def test_a_thousand_jobs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from torch_estimator.cli.main import main

    for number in range(1000):
        folder = tmp_path / f"job_{number}"
        (folder / "events").mkdir(parents=True)
        spec = {"name": folder.name, "created": time.time(), "target": "local", "module_name": "m", "folder": "/"}
        (folder / "job.json").write_text(json.dumps(spec))
        event = {"kind": "ended", "time": 1.0, "state": "SUCCEEDED"}
        (folder / "events" / "00000001.json").write_text(json.dumps(event))
    assert main(["jobs", "list", "--jobs", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1001


def test_a_job_that_ended_before_it_could_be_cancelled_has_ended_so(place: str) -> None:
    job = make(place)
    job.add("launched", "PREPARING", pid=1)
    job.add("ended", "SUCCEEDED")
    job.add("cancelling", "CANCELLING", reason="it was cancelled.")
    assert job.status().state == "SUCCEEDED"


def test_links_in_a_package_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "shared" / "deep" / "common.py", "shared")
    write(tmp_path / "trainer" / "task.py")
    (tmp_path / "trainer" / "shared").symlink_to("../shared")
    (tmp_path / "trainer" / "alias.py").symlink_to("task.py")
    job = make(str(tmp_path / "jobs"))
    digest = copy_package(tmp_path / "trainer", job)
    copied = ["trainer/alias.py", "trainer/shared/deep/common.py", "trainer/task.py"]
    assert list(files.all_files(job.package)) == copied
    assert not any(path.is_symlink() for path in Path(job.package).rglob("*"))
    assert package_digest(job) == digest
    (tmp_path / "shared" / "deep" / "back").symlink_to(tmp_path)
    with pytest.raises(InvalidValueError, match=r"trainer/shared/deep/back is a link to a folder that it is in; "):
        package_files(tmp_path / "trainer")


def test_a_large_package_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "trainer" / "task.py")
    write(tmp_path / "trainer" / "data.csv", "x" * 3_000_000)
    copy_package(tmp_path / "trainer", make(str(tmp_path / "jobs")))
    assert not caplog.messages
    monkeypatch.setattr("torch_estimator.jobs.package._LARGE_BYTES", 2_000_000)
    copy_package(tmp_path / "trainer", make(str(tmp_path / "jobs"), "again"))
    assert caplog.messages == [
        f"package {tmp_path}/trainer has 3 MB, 3 of them in {tmp_path}/trainer/data.csv; name what the program does "
        "not need in .gitignore."
    ]


def test_secrets_are_not_logged(place: str) -> None:
    job = make(place)
    logs = RoleLogs(job.logs, [CHIEF], ["hunter2", "", "two\nlines", "hunter2-long"])
    for line in (b"token=hunter2-long, hunter2", b"two", b"and lines"):
        logs.write(CHIEF, line, True)
    assert logs.last_error == {"chief-0": "and ***"}
    logs.close()
    assert [line.text for line in LogReader(job.logs).read()] == ["token=***, ***", "***", "and ***"]


def test_a_job_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from torch_estimator.cli.main import main

    make(str(tmp_path), "good")
    (tmp_path / "bad" / "job.json").mkdir(parents=True)
    (tmp_path / "file").touch()
    assert main(["jobs", "list", "--jobs", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "\ngood " in out
    assert f"estimator: {tmp_path}/bad: Is a directory.\n" in err
    assert main(["jobs", "describe", "bad", "--jobs", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"estimator: error: {tmp_path}/bad/job.json cannot be used: Is a directory.\n"
    assert main(["jobs", "list", "--jobs", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"estimator: error: {tmp_path}/file cannot be used: Not a directory.\n"
    assert main(["jobs", "list", "--jobs", "http://127.0.0.1:9/x"]) == 2
    assert capsys.readouterr().err.startswith("estimator: error: ")


def test_the_last_words_of_a_role_are_no_information(tmp_path: Path) -> None:
    logs = RoleLogs(str(tmp_path), [CHIEF, WORKER])
    logs.write(CHIEF, b"ValueError: no such column", True)
    logs.write(CHIEF, b"INFO:torch_estimator:Saved a checkpoint.", True)
    logs.write(CHIEF, b'{"time": "now", "level": "INFO", "process": "chief", "message": "Saved."}', True)
    logs.write(WORKER, b"WARNING:torch_estimator:The server is gone.", True)
    logs.close()
    assert logs.last_error == {
        "chief-0": "ValueError: no such column",
        "worker-0": "WARNING:torch_estimator:The server is gone.",
    }
