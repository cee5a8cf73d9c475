"""Studies of tiny programs, in a directory of the test."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from torch_estimator.jobs.directory import JobDirectory, JobSpec
from torch_estimator.tuning.controller import Controller
from torch_estimator.tuning.directory import StudyDirectory, Trial
from torch_estimator.tuning.space import Double, Space
from torch_estimator.tuning.starters import Forked
from torch_estimator.tuning.study import Study

ROOT = Path(__file__).parents[2]


def make_study(folder: Path, code: str, *arguments: str, name: str = "study", **asked: Any) -> StudyDirectory:
    """Make the directory of a study of the program ``task`` without starting it."""
    job = JobDirectory(str(folder / "jobs"), name)
    job.create()
    files = folder / "jobs" / name / "package"
    files.mkdir()
    (files / "task.py").write_text(textwrap.dedent(code))
    study = Study(**{"space": Space((Double("rate", 0.01, 0.1),)), "metric": "loss", **asked})
    job.write(
        JobSpec(
            name=name,
            created=time.time(),
            target="local",
            module_name="task",
            folder=str(folder),
            arguments=list(arguments),
            package="task.py",
            interpreter=sys.executable,
            settings={"kind": "local"},
            study=dataclasses.asdict(study),
            launcher="torch_estimator.tuning.controller",
        )
    )
    return StudyDirectory(job)


def make_trial(directory: StudyDirectory, number: int = 1, **settings: Any) -> Trial:
    """Write the file of a trial."""
    trial = Trial(
        **{
            "number": number,
            "parameters": {"rate": "0.05"},
            "job_dir": directory.path(number),
            "compile": False,
            "threads": 1,
            **settings,
        }
    )
    directory.write(trial)
    return trial


def run_forked(directory: StudyDirectory, number: int = 1) -> int:
    """Run a trial in a fork of this process; return its exit status."""
    process = Forked(directory)(directory.trial(number))
    while not process.has_ended():
        time.sleep(0.002)
    assert process.status is not None
    return process.status


def run_trial(directory: StudyDirectory, number: int = 1) -> subprocess.CompletedProcess[str]:
    """Run a trial in a process of its own."""
    command = [sys.executable, "-P", "-m", "torch_estimator.tuning.trial", directory.job.url, str(number)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environ, capture_output=True, text=True)


LINE = """
import argparse
from functools import partial
import torch
import torch_estimator as te
from tests.line_jobs import Line, absolute_error, points, squared_error

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
parser.add_argument("--job-dir")
options = parser.parse_args()


def model_fn(mode):
    return te.EstimatorSpec(
        mode=mode,
        module=Line(),
        loss=squared_error,
        metrics={"absolute_error": absolute_error},
        optimizer=partial(torch.optim.Adam, lr=options.rate),
    )


config = te.RunConfig(random_seed=1, save_checkpoints_steps=10)
te.train_and_evaluate(
    te.Estimator(model_fn, options.job_dir, config),
    te.TrainSpec(lambda: points().repeat(), max_steps=40),
    te.EvalSpec(points, steps=2, throttle_secs=600),
)
print("compile:", config.compile, "threads:", torch.get_num_threads())
"""
"""A program that trains a line for 40 steps, with a checkpoint every ten, and evaluates as seldom as it may."""

CURVE = """
import argparse, json, os, pathlib, signal, sys, time
from torch_estimator.executors.evaluation_watch import evaluation_watch

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
parser.add_argument("--job-dir", type=pathlib.Path)
parser.add_argument("--steps", type=int, default=64)
options = parser.parse_args()
options.job_dir.mkdir(parents=True, exist_ok=True)
checkpoint = options.job_dir / "checkpoint"
step = int(checkpoint.read_text()) if checkpoint.exists() else 0


def add(path, text):
    with open(path, "a") as file:
        file.write(text + "\\n")


def wait_for(name):
    end = time.monotonic() + 120
    while not pathlib.Path(name).exists():
        time.sleep(0.002)
        assert time.monotonic() < end


def each_step(step):
    pass


#BEGIN
while step < options.steps:
    step += 1
    each_step(step)
    add(options.job_dir / "trained", str(step))
    if step % 4 == 0:
        checkpoint.with_suffix(".new").write_text(str(step))
        checkpoint.with_suffix(".new").rename(checkpoint)
        add(os.environ["CLOUD_ML_HP_METRIC_FILE"], json.dumps({"score": options.rate * step, "global_step": step}))
        evaluation_watch().evaluated(step, final=step == options.steps)
"""
"""A program without torch: a checkpoint and an evaluation every four steps, and a score of the rate times the step."""


def curve(code: str = "") -> str:
    """Return the program `CURVE` with more code before its loop."""
    return CURVE.replace("#BEGIN", textwrap.dedent(code))


def run_study(directory: StudyDirectory) -> tuple[int, str, list[str]]:
    """Run a study whose trials are forked from this process; return status, reason, and what was said."""
    said: list[str] = []
    status, reason = Controller(directory, Forked(directory), said.append, threads=1).run()
    return status, reason, said


def trained(trial: Trial) -> list[int]:
    """Return the steps that a trial of `CURVE` has trained, in their order."""
    return [int(line) for line in (Path(trial.job_dir) / "trained").read_text().split()]
