"""Processes that train together share evaluations, and have the metrics that one process has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_jobs import Cluster, Ended, Process, ended

PROGRAM = """
import json, logging, os, random, sys
from pathlib import Path
import numpy as np
import torch
import torchmetrics
from torch import nn
import torch_estimator as te
from torch_estimator.distributed import rendezvous

logging.basicConfig(level=logging.INFO, format="%(message)s")
does, model_dir, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
struck = Path(model_dir) / "struck"


# Larger groups use the collectives of torch.
rendezvous.MAX_MESH_SIZE = given.get("most_in_mesh", 32)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(given.get("inputs", 3), 1)
        self.seen = 0

    def forward(self, x):
        if not self.training and '"index": 1' in os.environ.get("TF_CONFIG", ""):
            self.seen += 1
            if self.seen == 3 and "strikes" in given and not struck.exists():
                struck.touch()
                if given["strikes"] == "fails":
                    raise KeyError("something of the user's")
                os.kill(os.getpid(), 9)
        of = self.layer(x).flatten()
        return {"of": of, "process": torch.full_like(of, os.getpid())}


def input_fn(mode):
    x = torch.arange(101 * given.get("inputs", 3)).reshape(101, -1) / 100
    order = list(range(101))
    if given.get("shuffles") == "numpy":
        order = np.random.permutation(101)
    if given.get("shuffles") == "Python":
        random.shuffle(order)
    data = te.data.Dataset.from_arrays(x.numpy()[order], x.sum(1).numpy()[order])
    data = data.shuffle(101) if given.get("shuffles") == "Dataset" else data
    return (data.repeat() if mode == "train" else data).batch(8)


class Ends(te.Hook):
    def end(self, context):
        print("LAST LOSS", context.loss)


def error(labels, predictions):
    metric = torchmetrics.MeanSquaredError()
    metric.update(predictions["of"], labels)
    return metric if given.get("returns_object") else metric.compute()


config = te.RunConfig(
    model_dir=model_dir,
    compile=False,
    random_seed=given.get("seed"),
    save_checkpoints_steps=10,
    session_creation_timeout_secs=60,
    train_distribute=te.distribute.MultiWorkerMirroredStrategy() if given.get("together", True) else None,
    eval_distribute=eval(given.get("strategy", "MultiWorkerMirroredStrategy()"), vars(te.distribute)),
)
estimator = te.Estimator.from_module(
    Model(),
    loss=lambda outputs, labels: nn.functional.mse_loss(outputs["of"], labels),
    predictions=lambda outputs: outputs,
    metrics={
        "rows": lambda labels, predictions: len(labels),
        "distinct": lambda labels, predictions: labels.unique().numel(),
        "error": error,
        "first": lambda labels, predictions: predictions["of"][0],
        "processes": lambda labels, predictions: predictions["process"].unique().numel(),
    },
    optimizer=te.optim.SGD(lr=1e-3),
    config=config,
)
if does == "evaluate":
    if given.get("steps"):
        estimator.train(input_fn, max_steps=given["steps"])
    metrics = estimator.evaluate(input_fn, steps=given.get("batches"), name="all", hooks=[Ends()])
elif does == "train":
    estimator.train(input_fn, max_steps=10)
    metrics = {}
else:
    spec = te.EvalSpec(input_fn, steps=None, throttle_secs=0, hooks=[Ends()])
    metrics, _ = te.train_and_evaluate(estimator, te.TrainSpec(input_fn, max_steps=given["steps"]), spec)
print("METRICS", json.dumps(metrics))
"""


def metrics_of(process: Ended) -> dict[str, Any]:
    """Return the metrics that a process has printed; empty where it printed none."""
    assert process.status == 0, process.output
    (line,) = [line for line in process.output.splitlines() if line.startswith("METRICS")]
    return dict(json.loads(line.removeprefix("METRICS ")) or {})


def cluster(workers: int) -> Cluster:
    """Return a cluster without an evaluator, in which worker 0 is the chief."""
    return Cluster(PROGRAM, workers + 1, chief=False)


def run(model_dir: Path, does: str, workers: int, **given: Any) -> list[Ended]:
    """Run the program in a cluster, or in one process without a cluster if `workers` is 0; the chief comes first."""
    arguments = [does, str(model_dir), json.dumps(given)]
    return cluster(workers).run(*arguments) if workers else ended([Process(PROGRAM, arguments, {})])


@pytest.mark.parametrize(
    ("workers", "given"),
    [
        (1, {}),
        (2, {"returns_object": True}),
        (1, {"batches": 5.0}),
        (1, {"batches": 1}),
        (2, {"most_in_mesh": 1}),
        (2, {"shuffles": "Dataset", "seed": None}),
        (1, {"shuffles": "numpy", "seed": None}),
        (1, {"shuffles": "Python", "seed": None}),
    ],
)
def test_all_processes_have_the_metrics_of_one(tmp_path: Path, workers: int, given: dict[str, Any]) -> None:
    given = {"steps": 20, "seed": 1, **given}
    processes = run(tmp_path, "evaluate", workers, **given)
    shared = [metrics_of(one) for one in processes]

    assert ["LAST LOSS" in one.output for one in processes] == [True] + workers * [False]
    assert all(one == shared[0] for one in shared)
    assert shared[0].pop("processes") == min(workers + 1, given.get("batches", workers + 1))
    assert len(list((tmp_path / "eval_all").glob("events.*"))) == 1
    wanted = metrics_of(*run(tmp_path, "evaluate", 0, **{**given, "strategy": "None"}))
    assert wanted.pop("processes") == 1
    if "shuffles" in given:
        assert shared[0]["distinct"] == 101
    else:
        assert shared[0] == pytest.approx(wanted, rel=1e-6)
    assert shared[0]["rows"] == wanted["rows"] == 8 * given.get("batches", 101 / 8)
    assert shared[0]["global_step"] == 20


def test_weights_that_were_never_saved_are_the_chiefs(tmp_path: Path) -> None:
    chief, worker = (metrics_of(one) for one in run(tmp_path, "evaluate", 1, shuffles="Dataset"))
    assert chief == worker
    assert (chief["processes"], chief["distinct"], chief["global_step"]) == (2, 101, 0)


def test_processes_may_see_the_model_dir_at_different_paths(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "link").symlink_to("job")
    processes = cluster(1)
    chief, worker = ended(
        [
            processes.start(task, "evaluate", tmp_path / folder, json.dumps({"steps": 10}))
            for task, folder in zip(processes.tasks, ("job", "link"), strict=True)
        ]
    )
    assert metrics_of(chief) == metrics_of(worker)
    assert f"Restoring parameters from {tmp_path}/link/model.ckpt-10" in worker.output


def test_a_job_without_an_evaluator_shares_its_evaluations(tmp_path: Path) -> None:
    chief, worker = run(tmp_path, "train_and_evaluate", 1, steps=30)
    metrics = metrics_of(chief)
    assert (metrics.pop("processes"), metrics["rows"], metrics["global_step"]) == (2, 101, 30)
    assert (
        chief.output.count("Finished evaluation of 13 batches") == worker.output.count("Finished evaluation of 13") == 3
    )
    assert metrics_of(worker) == {}
    wanted = metrics_of(*run(tmp_path, "evaluate", 0, strategy="None"))
    assert wanted.pop("processes") == 1
    assert metrics == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("strikes", "status"), [("dies", -9), ("fails", 1)])
def test_an_evaluation_that_loses_a_process_is_done_by_the_chief(tmp_path: Path, strikes: str, status: int) -> None:
    processes = cluster(1)
    given = json.dumps({"steps": 30, "strikes": strikes})
    chief, worker = (processes.start(task, "train_and_evaluate", tmp_path, given) for task in processes.tasks)
    worker.wait()
    assert worker.status == status
    again = processes.start(processes.tasks[1], "train_and_evaluate", tmp_path, given)
    done, _ = ended([chief, again])
    metrics = metrics_of(done)
    assert (metrics["processes"], metrics["rows"], metrics["global_step"]) == (2, 101, 30)
    assert "; evaluating alone." in done.output
    assert done.output.count("Finished evaluation of 13 batches") == 3


def test_a_failed_process_is_named(tmp_path: Path) -> None:
    chief, worker = run(tmp_path, "evaluate", 1, strikes="fails")
    assert worker.status == chief.status == 1
    assert 'KeyError: "something of the user\'s"' in worker.output
    assert chief.output.splitlines()[-1].endswith("worker 1 has failed; its log says why")


def test_processes_with_different_purposes_are_refused(tmp_path: Path) -> None:
    processes = cluster(1)
    chief, worker = processes.tasks
    for one in ended(
        [processes.start(chief, "evaluate", tmp_path, "{}"), processes.start(worker, "train", tmp_path, "{}")]
    ):
        assert one.status == 1
        told = "worker 0 is to evaluate, but worker 1 is to train; have all of them call the same, in the same order."
        assert told in one.output


def test_other_models_are_not_evaluated_together(tmp_path: Path) -> None:
    processes = cluster(1)
    arguments = [json.dumps({"inputs": inputs}) for inputs in (3, 4)]
    for one in ended(
        [
            processes.start(task, "evaluate", tmp_path, given)
            for task, given in zip(processes.tasks, arguments, strict=True)
        ]
    ):
        assert one.status == 1
        assert "layer.weight" in one.output.splitlines()[-1]


def test_servers_and_evaluators_leave_one_process_alone(tmp_path: Path) -> None:
    chief, *_ = Cluster(PROGRAM, 0, 1).run("evaluate", tmp_path, json.dumps({"together": False}))
    assert metrics_of(chief)["processes"] == 1
    assert "eval_distribute is a MultiWorkerMirroredStrategy: this process evaluates alone, " in chief.output
