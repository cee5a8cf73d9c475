"""Submit tiny programs as jobs, in a directory of the test, and end what a failed test left running."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.storms import submitting
from torch_estimator.jobs.directory import FINAL, names
from torch_estimator.jobs.kinds import status_of

BEGINNING = """
import json, os, pathlib, signal, sys, time

task = json.loads(os.environ["TF_CONFIG"])["task"]
me = f"{task.get('type', 'chief')}-{task.get('index', 0)}"
here = pathlib.Path.cwd()


def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.005)


"""


# At first worker 0 hangs, and the others wait for it.
WORKER_HANGS = """
from torch_estimator.activity import doing, waiting

is_first = not (here / me).exists()
(here / me).touch()
with doing("training", lambda: 412):
    if me == "worker-0" and is_first:
        time.sleep(1000)
    with waiting(lambda: ["worker 0"]):
        wait_for("go")
"""


class Jobs(submitting.Jobs):
    """The jobs of a test."""

    def program(self, code: str) -> None:
        """Write ``trainer/task.py``."""
        (self.folder / "trainer").mkdir(exist_ok=True)
        (self.folder / "trainer" / "task.py").write_text(BEGINNING + textwrap.dedent(code))


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Jobs in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCH_ESTIMATOR_JOBS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    found = Jobs(tmp_path)
    yield found
    for name in names(str(tmp_path / "jobs")):
        if status_of(found.directory(name)).state not in FINAL:
            os.kill(found.launcher(name), signal.SIGKILL)
