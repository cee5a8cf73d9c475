"""The example batch script: its tasks find their place, and it is queued again after a signal."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from torch_estimator.cluster import task_from_environment

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "cluster" / "slurm.sbatch"

# In place of srun: starts the tasks with the variables of a job step, one after the other.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
highest=0
for ((rank = 0; rank < SLURM_NTASKS; rank++)); do
    SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST \
        SLURM_PROCID=$rank "$@" || highest=$?
done
exit $highest
"""
# In place of Python: records its environment and arguments.
PROGRAM = """#!/usr/bin/env bash
env -0 >"$RECORDS/$SLURM_PROCID.environ"
echo "$@" >"$RECORDS/$SLURM_PROCID.arguments"
exit "$STATUS"
"""
SCONTROL = """#!/usr/bin/env bash
echo "$@" >>"$RECORDS/asked"
"""


def options() -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(.+)$", SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE))


def submitted(folder: Path, status: int = 0, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("python", PROGRAM)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    given = options()
    tasks = int(given["nodes"]) * int(given["ntasks-per-node"])
    return subprocess.run(
        ["bash", str(SCRIPT), "--job-dir", "runs/slurm"],
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHON": str(folder / "python"),
            "RECORDS": str(folder),
            "STATUS": str(status),
            "SLURM_JOB_ID": "4100",
            "SLURM_JOB_NODELIST": f"node[1-{given['nodes']}]",
            "SLURM_NTASKS": str(tasks),
            "SLURM_CPUS_PER_TASK": given["cpus-per-task"],
            **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
        },
        capture_output=True,
        text=True,
    )


def environ(file: Path) -> dict[str, str]:
    return dict(one.split("=", 1) for one in file.read_text(encoding="utf-8").split("\0") if one)


def test_bash_understands_it() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_every_task_finds_its_place(tmp_path: Path) -> None:
    ended = submitted(tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    places = [task_from_environment(environ(file)) for file in sorted(tmp_path.glob("*.environ"))]
    assert list(map(str, places)) == ["chief 0", "worker 0"]
    assert {(one.num_workers, one.rendezvous) for one in places} == {(2, "node1:16100")}
    assert {file.read_text(encoding="utf-8") for file in tmp_path.glob("*.arguments")} == {
        "-m examples.mnist.task --job-dir runs/slurm\n"
    }


@pytest.mark.parametrize(
    ("status", "restarts", "again"),
    [(0, 0, False), (1, 0, False), (2, 0, False), (137, 0, True), (143, 2, True), (143, 3, False)],
)
def test_it_is_queued_again_after_signals_but_not_after_errors(
    tmp_path: Path, status: int, restarts: int, again: bool
) -> None:
    assert submitted(tmp_path, status, restarts).returncode == status
    asked = tmp_path / "asked"
    assert (asked.read_text(encoding="utf-8") if asked.exists() else "") == ("requeue 4100\n" if again else "")
