"""The census, babyweight and mnist programs train, evaluate and export in a cluster, without a changed line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_estimator as te
from examples.babyweight import sample as births
from examples.census.trainer import sample as people
from tests.cluster_jobs import ROOT, Cluster, ended
from tests.line_jobs import checkpoint_steps

RUN = "import runpy, sys; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
IN_STEP = ("--worker-count", "1")
WITH_SERVER = (*IN_STEP, "--parameter-server-count", "1")


@dataclass(frozen=True, slots=True)
class Example:
    """Example program with the expected end of a short job.

    Attributes:
        module: Name of the program's module.
        options: Options that make the job short.
        export: Name of the exporter.
        request: Inputs for a prediction by the export.
        in_step: Last step when a chief and a worker train synchronously.
        with_server: Last step when they train with a parameter server.
    """

    module: str
    options: Sequence[str]
    export: str
    request: Mapping[str, Any]
    in_step: int
    with_server: int


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Example]:
    folder = tmp_path_factory.mktemp("data")
    census = people.write(str(folder / "census"), train_rows=2000, eval_rows=200)
    train, held_out = births.write(str(folder / "births"), train_rows=2000, eval_rows=200)
    files = {"census": (census.train_file, census.eval_file), "babyweight": (train, held_out)}
    short = {
        name: ["--train-files", train, "--eval-files", held_out, "--train-steps", "40", "--train-batch-size", "40"]
        for name, (train, held_out) in files.items()
    }
    # Chief and worker read one half of the rows each, which is 25 batches.
    short["census"] += ["--num-epochs", "1"]
    short["mnist"] = ["--num-epochs", "1", "--batch-size", "128"]
    digit = {"image": np.zeros((1, 28, 28), np.float32)}
    return {
        "census": Example("examples.census.trainer.task", short["census"], "census", asked("census"), 25, 40),
        "babyweight": Example("examples.babyweight.task", short["babyweight"], "exporter", asked("babyweight"), 40, 40),
        "mnist": Example("examples.mnist.task", short["mnist"], "digits", digit, 14, 28),
    }


def asked(example: str) -> dict[str, list[Any]]:
    rows = [json.loads(line) for line in (ROOT / "examples" / example / "test.json").read_text().splitlines()]
    return {name: [row[name] for row in rows] for name in rows[0]}


def assert_ended(example: Example, job_dir: Path, last: int, told: str) -> None:
    """Assert that the last checkpoint was evaluated and exported, and that the export predicts."""
    assert checkpoint_steps(job_dir)[-1] == last
    assert f"reached at step {last}" in told
    assert list(job_dir.glob("eval*/events.*"))
    (export,) = (job_dir / "export" / example.export).iterdir()
    predicted = te.ExportedModel.load(str(export)).predict(example.request)
    numbers = predicted["predictions"] if "predictions" in predicted else predicted["probabilities"]
    assert len(numbers) == len(next(iter(example.request.values())))
    assert np.isfinite(numbers).all()


@pytest.mark.parametrize("program", ["census", "babyweight", "mnist"])
def test_a_chief_and_a_worker_train_in_step(program: str, examples: dict[str, Example], tmp_path: Path) -> None:
    example = examples[program]
    cluster = Cluster(RUN)
    arguments = (example.module, "--job-dir", tmp_path, *example.options)
    results = ended([cluster.start(task, *arguments) for task in (*cluster.tasks, ("evaluator", 0))])
    assert [result.status for result in results] == [0, 0, 0], [result.output for result in results]
    for result in results[:2]:
        assert f"Training ended at global step {example.in_step}: " in result.output
    assert_ended(example, tmp_path, example.in_step, results[2].output)


@pytest.mark.parametrize("program", ["census", "babyweight", pytest.param("mnist", marks=pytest.mark.slow)])
def test_a_chief_and_a_worker_train_with_a_parameter_server(
    program: str, examples: dict[str, Example], tmp_path: Path
) -> None:
    example = examples[program]
    cluster = Cluster(RUN, servers=1)
    arguments = (example.module, "--job-dir", tmp_path, *example.options)
    chief, *others = (*cluster.tasks, ("evaluator", 0))
    running = [cluster.start(task, *arguments) for task in others]
    # A worker starts five seconds late by default, and the job is shorter than that: start the chief after it.
    assert any("Calling model_fn." in line for line in running[0].stdout)
    results = ended([cluster.start(chief, *arguments), *running])
    assert [result.status for result in results] == [0, 0, 0, 0], [result.output for result in results]
    # The chief waits for workers whose input has not ended.
    assert f"Training ended at global step {example.with_server}: " in results[0].output
    assert "Training ended at global step " in results[1].output
    assert "ps 0 ends: training is over." in results[2].output
    assert_ended(example, tmp_path, example.with_server, results[3].output)


# Importing PyTorch in a new process takes three CPU-seconds, so that the launcher starts one example by default.
SLOW = [
    ("mnist", IN_STEP),
    ("census", IN_STEP),
    ("babyweight", IN_STEP),
    ("babyweight", WITH_SERVER),
    ("mnist", WITH_SERVER),
]


@pytest.mark.parametrize(
    ("program", "cluster"),
    [("census", WITH_SERVER), *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)],
)
def test_the_launcher_starts_them(
    program: str, cluster: Sequence[str], examples: dict[str, Example], tmp_path: Path
) -> None:
    example = examples[program]
    launcher = [sys.executable, "-m", "torch_estimator.cli", "local", "train", "--distributed", *cluster, "--evaluator"]
    job = ["--package-path", str(ROOT / "examples"), "--module-name", example.module, "--job-dir", str(tmp_path)]
    done = subprocess.run(
        [*launcher, *job, "--", *example.options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_ended(example, tmp_path, example.in_step if cluster == IN_STEP else example.with_server, done.stdout)
