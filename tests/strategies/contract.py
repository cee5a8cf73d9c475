"""Contract of strategies: on the same rows, training ends with the variables of one process and of TensorFlow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.cluster_jobs import Cluster, Process, ended
from tests.models.test_golden_trajectories import as_array
from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.checkpoint.writer import CheckpointWriter

PROGRAM = """
import importlib, json, logging, sys
import torch
from torch import nn
import torch_estimator as te
from tests import programs
from torch_estimator import feature_column as fc



def given(strategy):
    # For example torch_estimator.distribute:MirroredStrategy(replicas=2).
    if strategy == "None":
        return None
    module, _, call = strategy.partition(":")
    return eval(call, vars(importlib.import_module(module)))


job, model_dir, batch, strategy = sys.argv[1:]
logging.basicConfig(level=logging.INFO, format="%(message)s")
with open(job) as file:
    job = json.load(file)
config = te.RunConfig(
    model_dir=model_dir,
    compile=False,
    save_checkpoints_steps=job["golden_steps"],
    train_distribute=given(strategy),
)


class Births(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(2000, 3))
        self.hidden = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.logits = nn.Linear(8, 1)

    def forward(self, columns):
        weeks, cross, age = columns.split([1, 2000, 1], dim=1)
        return self.logits(self.hidden(torch.cat([weeks, cross @ self.embedding, age], dim=1)))


def census():
    return te.DNNLinearCombinedClassifier(
        linear_feature_columns=programs.census_wide(),
        dnn_feature_columns=programs.census_deep(),
        dnn_hidden_units=[16, 8],
        label_vocabulary=["<=50K", ">50K"],
        config=config,
        warm_start_from=job["start"],
    )


def births():
    wide, (age, weeks, cross) = programs.babyweight_columns()
    return te.Estimator.from_module(
        Births(),
        columns=[age, weeks, fc.indicator_column(cross.categorical_column)],
        head=te.RegressionHead(loss_reduction="SUM"),
        optimizer=te.optim.Adagrad(lr=0.05),
        config=config,
        warm_start_from=job["start"],
    )


def rows(file):
    names, label = {
        census: (programs.CENSUS_NAMES, "income_bracket"),
        births: (programs.BABYWEIGHT_NAMES, "weight_pounds"),
    }[build]
    return te.data.Dataset.from_csv(file, column_names=names, label=label)


def train_fn(input_context):
    part = input_context.num_input_pipelines, input_context.input_pipeline_id
    return rows(job["train_file"]).skip(job["train_skip_rows"]).shard(*part).batch(int(batch))


def eval_fn():
    data = rows(job["eval_file"])
    if job["eval_rows"] is not None:
        data = data.take(job["eval_rows"])
    return data.batch(job["eval_batch_size"])


build = {"census": census, "births": births}[job["program"]]
metrics, _ = te.train_and_evaluate(
    build(),
    te.TrainSpec(train_fn, max_steps=100),
    te.EvalSpec(eval_fn, steps=None, start_delay_secs=0, throttle_secs=1000),
)
if metrics is not None:
    print("metrics:", json.dumps({key: float(value) for key, value in metrics.items()}))
"""

BIRTHS = {
    "module.embedding": "dnn/input_from_feature_columns/input_layer/"
    "gestation_weeks_bucketized_X_is_male_X_mother_age_bucketized_X_plurality_embedding/embedding_weights",
    "module.hidden.0.weight": "dnn/hiddenlayer_0/kernel",
    "module.hidden.0.bias": "dnn/hiddenlayer_0/bias",
    "module.hidden.2.weight": "dnn/hiddenlayer_1/kernel",
    "module.hidden.2.bias": "dnn/hiddenlayer_1/bias",
    "module.logits.weight": "dnn/logits/kernel",
    "module.logits.bias": "dnn/logits/bias",
}
"""Names of the module's variables, and their names in TensorFlow."""


@dataclass(frozen=True, slots=True)
class Job:
    """A program with its data, and the results of one process with whole batches and of TensorFlow.

    Attributes:
        folder: Directory with ``job.json``, which the program reads, and ``None``, the model_dir of one process.
        batch: Number of rows of a global batch.
        metrics: The metrics of one process.
        golden_steps: The step after which TensorFlow's variables are known.
        golden: TensorFlow's variables after that step, by the names of this package.
    """

    folder: Path
    batch: int
    metrics: Mapping[str, float]
    golden_steps: int
    golden: Mapping[str, np.ndarray]


def job(name: str, golden: Mapping[str, Any], data: Path, folder: Path) -> Job:
    """Train a program in one process, and return what other strategies are compared with."""
    initial = {one: torch.from_numpy(value) for one, value in by_our_names(name, golden["initial"]).items()}
    with CheckpointWriter(folder / "start") as writer:
        writer.save(0, initial)
    last = golden["runs"][-1]
    settings = {
        **{key: golden[key] for key in ("train_skip_rows", "eval_rows", "eval_batch_size")},
        **{key: str(data / golden[key]) for key in ("train_file", "eval_file")},
        "program": name,
        "start": str(folder / "start"),
        "golden_steps": last["steps"],
    }
    (folder / "job.json").write_text(json.dumps(settings))
    metrics = run(folder, "None", golden["batch_size"])
    return Job(folder, golden["batch_size"], metrics, last["steps"], by_our_names(name, last["variables"]))


def by_our_names(program: str, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    theirs = {name: as_array(value) for name, value in values.items()}
    if program == "census":
        return theirs
    return {ours: theirs[name].T.copy() if "kernel" in name else theirs[name] for ours, name in BIRTHS.items()}


def run(folder: Path, strategy: str, batch: int, workers: int = 0, servers: int = 0) -> dict[str, float]:
    """Run the program of a folder to its end; return the metrics, which one of its processes prints."""
    arguments = [str(folder / "job.json"), str(folder / strategy), str(batch), strategy]
    if workers or servers:
        cluster = Cluster(PROGRAM, workers, servers)
        results = ended([cluster.start(task, *arguments) for task in (*cluster.tasks, ("evaluator", 0))])
    else:
        results = ended([Process(PROGRAM, arguments, {})])
    for result in results:
        assert result.status == 0, result.output
    (metrics,) = re.findall(r"^metrics: (.*)$", "".join(result.output for result in results), re.MULTILINE)
    return dict(json.loads(metrics))


def assert_close(found: Mapping[str, Any], wanted: Mapping[str, Any], **tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, err_msg=name, **tolerance)


def check_strategy(job: Job, strategy: str, replicas: int, cluster: Mapping[str, int]) -> None:
    """Train with a strategy, each replica with its part of every batch, and compare the end.

    Args:
        job: The program, and the results to compare with.
        strategy: Module and call that make the strategy, such as
            ``torch_estimator.distribute:MirroredStrategy(replicas=2)``.
        replicas: Number of batches that one step takes.
        cluster: Number of ``workers`` and ``servers`` beside the chief; empty for one process.
    """
    metrics = run(job.folder, strategy, job.batch // replicas, **cluster)
    assert metrics["global_step"] == 100
    assert_close(metrics, job.metrics, rtol=1e-5)
    ours, alone = (load_checkpoint(job.folder / name / "model.ckpt-100") for name in (strategy, "None"))
    assert_close(ours.variables, alone.variables, rtol=0, atol=1e-5)
    # Adagrad's sums of squares reach 1e9.
    assert_close(ours.slots, alone.slots, rtol=1e-5, atol=1e-5)
    there = load_checkpoint(job.folder / strategy / f"model.ckpt-{job.golden_steps}")
    assert_close(there.variables, job.golden, rtol=0, atol=1e-5)
