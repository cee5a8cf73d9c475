"""Jobs as a storm and the tests see them: commands, logs, and the processes of their roles."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scripts.storms.common import StormError
from torch_estimator.cli.main import main
from torch_estimator.jobs.directory import FINAL, JobDirectory, JobEvent
from torch_estimator.jobs.kinds import status_of
from torch_estimator.kubernetes_objects import label

SECS = 120.0


class Jobs:
    """The jobs below a folder, which is the current directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run ``estimator jobs``; return its status, stdout and stderr."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main(["jobs", *arguments])
            except SystemExit as exit:
                status = int(str(exit.code))
        return status, out.getvalue(), err.getvalue()

    def submit(self, name: str, *arguments: str) -> None:
        """Submit ``trainer.task``, or another --module-name; options, then ``--`` and arguments of the program."""
        module = () if "--module-name" in arguments else ("--module-name", "trainer.task")
        status, _, err = self.run("submit", "training", name, *module, *arguments)
        if status:
            raise StormError(f"submitting {name} ended with status {status}: {err.strip()}")

    def directory(self, name: str) -> JobDirectory:
        return JobDirectory(str(self.folder / "jobs"), name)

    def wait(self, name: str, secs: float = SECS) -> str:
        """Wait for the end of a job; return its state."""
        wait_until(lambda: status_of(self.directory(name)).state in FINAL, secs)
        return status_of(self.directory(name)).state

    def wait_for_line(self, name: str, role: str, text: str) -> None:
        """Wait until a role has printed a text."""
        wait_until(lambda: text in self.log(name, role))

    def log(self, name: str, role: str) -> str:
        """Return the log of a role without the times."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "jobs" / name / "logs" / f"{role}.log").read_text().splitlines()
            return "\n".join(line.partition(" ")[2] for line in lines)
        return ""

    def describe(self, name: str) -> dict[str, Any]:
        described: dict[str, Any] = json.loads(self.run("describe", name, "--format", "json")[1])
        return described

    def pid(self, name: str, role: str) -> int:
        """Return the process id that the events name for a role, the newest one."""
        return int(self.describe(name)["roles"][role]["pid"])

    def launched(self, name: str) -> JobEvent:
        launched = self.directory(name).launched()
        assert launched is not None
        return launched

    def launcher(self, name: str) -> int:
        pid = self.launched(name).pid
        assert pid is not None
        return pid


def wait_until(holds: Callable[[], bool], secs: float = SECS) -> None:
    """Wait until a condition holds; raise a StormError if it takes too long."""
    deadline = time.monotonic() + secs
    while not holds():
        if time.monotonic() >= deadline:
            raise StormError(f"what has to come did not come within {secs:g} s.")
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def pythons() -> Iterator[tuple[int, list[str], dict[str, str]]]:
    """Yield all Python processes of this machine: process id, command line and environment at their start."""
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes come and go.
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            if command and os.path.basename(command[0]).startswith("python"):
                environ = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                yield int(folder.name), command, dict(line.partition("=")[::2] for line in environ)


def role_processes(job: JobDirectory, module_name: str) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return the processes of the roles of a job that run on this machine, and the TF_CONFIG of each."""
    found = {}
    for pid, command, environ in pythons():
        is_role = {module_name, "torch_estimator.parameter_server"} & {*command}
        # In a pod of Kubernetes, the folder of the package has the name of the pod.
        path = environ.get("PYTHONPATH", "")
        is_of_job = job.package in path or f"/{label(job.name, 46)}-" in path
        if is_role and "TF_CONFIG" in environ and is_of_job and is_running(pid):
            config = json.loads(environ["TF_CONFIG"])
            task = config["task"]
            found[f"{task.get('type', 'chief')}-{task.get('index', 0)}"] = (pid, config)
    return found


def launcher_process(job: JobDirectory) -> int | None:
    """Return the process of the launcher, wherever on this machine it was started."""
    return next((pid for pid, command, _ in pythons() if command[-2:] == [job.spec().launcher, job.url]), None)
