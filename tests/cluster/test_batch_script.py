"""The example batch script: its tasks find their place and role, and it is queued again after a signal."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from torch_estimator.cluster import task_from_environment

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "cluster" / "slurm.sbatch"

# In place of srun: starts the tasks with the variables of a job step, one after the other.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
highest=0
echo $$ >"$RECORDS/srun.pid"
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
# In place of Python: a task to which Slurm sends SIGTERM before the time limit, first to the batch script.
PREEMPTED = """#!/usr/bin/env bash
echo $$ >"$RECORDS/$SLURM_PROCID.task"
trap 'exit 143' TERM
if ((SLURM_PROCID == 0)); then kill -TERM "$(ps -o ppid= -p "$(cat "$RECORDS/srun.pid")" | tr -d ' ')"; fi
for _ in {1..600}; do sleep 0.05; done
"""
# In place of scancel: sends the signal to the tasks of the step.
SCANCEL = """#!/usr/bin/env bash
echo "$@" >>"$RECORDS/cancelled"
kill -TERM $(cat "$RECORDS"/*.task)
"""
SCONTROL = """#!/usr/bin/env bash
if [[ $1 == show ]]; then
    for node in 1 2 3 4; do echo node$node; done
else
    echo "$@" >>"$RECORDS/asked"
fi
"""


def options() -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(.+)$", SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE))


def submitted(
    folder: Path,
    status: int = 0,
    restarts: int = 0,
    nodes: int | None = None,
    per_node: int = 1,
    program: str = PROGRAM,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("scancel", SCANCEL), ("python", program)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    given = options()
    nodes = nodes or int(given["nodes"])
    return subprocess.run(
        ["bash", str(SCRIPT), "--job-dir", "runs/slurm"],
        cwd=ROOT,
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHON": str(folder / "python"),
            "RECORDS": str(folder),
            "STATUS": str(status),
            "SLURM_JOB_ID": "4100",
            "SLURM_JOB_NODELIST": f"node[1-{nodes}]",
            "SLURM_NTASKS": str(nodes * per_node),
            "SLURM_NTASKS_PER_NODE": str(per_node),
            "SLURM_CPUS_PER_TASK": given["cpus-per-task"],
            **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
            **variables,
        },
        capture_output=True,
        text=True,
    )


def environ(file: Path) -> dict[str, str]:
    return dict(one.split("=", 1) for one in file.read_text(encoding="utf-8").split("\0") if one)


def test_every_task_finds_its_place(tmp_path: Path) -> None:
    ended = submitted(tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    places = [task_from_environment(environ(file)) for file in sorted(tmp_path.glob("*.environ"))]
    assert list(map(str, places)) == ["chief 0", "worker 0"]
    assert {(one.num_workers, one.rendezvous) for one in places} == {(2, "node1:16100")}
    assert {file.read_text(encoding="utf-8") for file in tmp_path.glob("*.arguments")} == {
        "-m examples.mnist.task --job-dir runs/slurm\n"
    }


def test_servers_and_an_evaluator_share_nodes_with_workers(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "slurm.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^sbatch (.*) \\\n.*--job-dir runs/servers$", guide, flags=re.MULTILINE)
    given = dict(option.removeprefix("--").split("=", 1) for option in command.split())
    # Without ALL the tasks would get no other variable of the user, such as that of the key.
    everything, *variables = given["export"].split(",")
    assert everything == "ALL"
    passed = dict(one.split("=") for one in variables)
    ended = submitted(tmp_path, nodes=int(given["nodes"]), per_node=int(given["ntasks-per-node"]), **passed)
    assert (ended.returncode, ended.stderr) == (0, "")
    environs = [environ(tmp_path / f"{rank}.environ") for rank in range(6)]
    places = [task_from_environment(one) for one in environs]
    assert list(map(str, places)) == ["chief 0", "ps 0", "ps 1", "worker 0", "worker 1", "evaluator 0"]
    (cluster,) = {json.dumps(json.loads(one["TF_CONFIG"])["cluster"]) for one in environs}
    assert json.loads(cluster) == {
        "chief": ["node1:22000"],
        "ps": ["node1:22001", "node2:22002"],
        "worker": ["node2:22003", "node3:22004"],
    }


def test_an_evaluator_needs_no_servers(tmp_path: Path) -> None:
    assert submitted(tmp_path, nodes=2, EVALUATOR="1").returncode == 0
    places = [task_from_environment(environ(tmp_path / f"{rank}.environ")) for rank in range(2)]
    assert list(map(str, places)) == ["chief 0", "evaluator 0"]


def test_too_few_tasks_for_the_roles_are_an_error(tmp_path: Path) -> None:
    ended = submitted(tmp_path, nodes=2, PS="1", EVALUATOR="1")
    assert ended.returncode == 2
    assert "PS=1 and EVALUATOR=1 need 3 tasks with the chief, but the step has 2;" in ended.stderr
    assert not list(tmp_path.glob("*.environ"))


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


@pytest.mark.parametrize(("restarts", "again"), [(0, True), (2, True), (3, False)])
def test_it_is_queued_again_at_its_time_limit(tmp_path: Path, restarts: int, again: bool) -> None:
    assert options()["signal"] == "B:TERM@90"
    ended = submitted(tmp_path, restarts=restarts, nodes=1, program=PREEMPTED)
    assert (ended.returncode, ended.stderr) == (143, "")
    assert (tmp_path / "cancelled").read_text(encoding="utf-8") == "--signal=TERM 4100.0\n"
    assert (tmp_path / "asked").exists() == again
