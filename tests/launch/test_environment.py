"""Environment and arguments that the launcher gives to its processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cluster_jobs import free_port
from tests.launch.launched import Launched
from torch_estimator.cluster.tf_config import task_from_tf_config

REPORT = """
print(json.dumps([os.environ["TF_CONFIG"], sys.argv[1:], __file__, os.environ.get("OMP_NUM_THREADS")]))
"""
PACKAGE = ("--package-path", "trainer/")


def reported(job: Launched) -> dict[str, tuple[str, list[str], str, str | None]]:
    lines = [line.partition("] ") for line in job.out.splitlines()]
    return {name.removeprefix("["): json.loads(text) for name, _, text in lines}


def test_every_process_gets_its_task_the_arguments_and_a_part_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    options = ["--distributed", "--worker-count", "2", "--evaluator"]
    options += ["--parameter-server-count", "1", "--finish-secs", "0.1"]
    program = REPORT + "if role == 'chief':\n    wait_for_end_of('worker 0', 'worker 1', 'evaluator 0')\n"
    job = Launched(tmp_path, program, *options, *PACKAGE, "--job-dir", "runs", "--", "--steps", "3", "--", "-x")
    assert job.end() == 0, job.err
    tasks = {name: task_from_tf_config(config) for name, (config, _, _, _) in reported(job).items()}
    assert sorted(tasks) == ["chief 0", "evaluator 0", "worker 0", "worker 1"]
    assert {name: str(task) for name, task in tasks.items()} == {name: name for name in tasks}
    cluster = tasks["chief 0"].cluster
    assert {type: len(addresses) for type, addresses in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}
    for task in tasks.values():
        assert task.cluster == cluster
    addresses = [address for each in cluster.values() for address in each]
    assert len(set(addresses)) == 4
    assert {address.rpartition(":")[0] for address in addresses} == {"localhost"}
    for _, arguments, _, threads in reported(job).values():
        assert arguments == ["--steps", "3", "--", "-x", "--job-dir", "runs"]
        assert threads == str(max(1, len(os.sched_getaffinity(0)) // 4))


def test_ports_are_consecutive_from_the_start_port_and_threads_as_many_as_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = free_port() - 10
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    job = Launched(tmp_path, REPORT, "--distributed", "--worker-count", "1", "--start-port", str(start))
    assert job.end() == 0, job.err
    assert {threads for _, _, _, threads in reported(job).values()} == {"7"}
    cluster = json.loads(reported(job)["chief 0"][0])["cluster"]
    assert cluster == {"chief": [f"localhost:{start}"], "worker": [f"localhost:{start + 1}"]}


def test_without_distributed_there_is_one_process_of_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", "of somebody else")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    job = Launched(tmp_path, REPORT, "--job-dir", "runs")
    assert job.end() == 0, job.err
    config, arguments, _, threads = json.loads(job.out)
    assert not task_from_tf_config(config).is_of_cluster
    assert (arguments, threads) == (["--job-dir", "runs"], None)
    assert job.err == ""


def test_the_package_named_goes_before_one_of_the_same_name_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "here" / "trainer").mkdir(parents=True)
    (tmp_path / "here" / "trainer" / "task.py").write_text("raise SystemExit('the wrong one')")
    job = Launched(tmp_path, REPORT, "--package-path", "../trainer", cwd=tmp_path / "here")
    assert job.end() == 0, job.err
    assert json.loads(job.out)[2] == str(tmp_path / "trainer" / "task.py")
