"""Fully sharded training computes what one process computes; any number of processes resumes from its checkpoints."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.cluster_jobs import Cluster, ended
from tests.line_jobs import checkpoint_steps
from tests.strategies.test_synchronous_training import assert_close, assert_same, read_until, variables
from torch_estimator.train.preemption import RESTART_ME

PROGRAM = """
import logging, os, sys
import numpy as np
import torch
from torch import nn
import torch_estimator as te
from torch_estimator import feature_column as fc

model_dir, batch, max_steps, *rest = sys.argv[1:]
settings = dict(one.split("=") for one in rest)
logging.basicConfig(level=logging.INFO, format="%(message)s")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(7, 7)
        self.norm = nn.BatchNorm1d(7) if "norm" in settings else nn.LayerNorm(7)
        self.dropout = nn.Dropout(float(settings.get("dropout", 0)))

    def forward(self, rows):
        if settings.get("fails") == config.task_type and torch.rand(()) < 0.1:
            raise RuntimeError("something of the user's")
        return rows + self.dropout(self.norm(self.linear(rows)).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.last = nn.Linear(7, 1)
        kind = settings.get("model")
        if kind == "tied":
            self.blocks[1].linear = self.blocks[0].linear
        if kind == "scalar":
            self.temperature = nn.Parameter(torch.ones(()))
        if kind == "hooked":
            self.first.weight.register_hook(lambda gradient: 2 * gradient)
        if kind == "sparse":
            self.table = nn.Embedding(10, 3, sparse=True)

    def forward(self, rows):
        rows = self.first(rows)
        for block in self.blocks:
            rows = rows + block.linear.weight.sum() if settings.get("model") == "reaching" else block(rows)
        return self.last(rows).squeeze(1)


# Adam divides by the size of past gradients. With a tiny epsilon, rounding errors of gradients near 0 would grow.
OPTIMIZERS = {
    "adam": te.optim.Adam(lr=0.01, epsilon=0.01),
    "ftrl": te.optim.clip_gradients_by_norm(te.optim.Ftrl(lr=0.05), 0.5),
    "torch": lambda named: torch.optim.AdamW(named, lr=0.01, eps=0.01),
    "clipped": te.optim.clip_gradients_by_norm(lambda named: torch.optim.AdamW(named, lr=0.01, eps=0.01), 0.1),
}
OPTIMIZERS["accumulated"] = te.optim.moving_average(te.optim.accumulate(OPTIMIZERS["clipped"], 3), 0.9)

config = te.RunConfig(
    random_seed=1,
    save_checkpoints_steps=int(settings.get("save", 1000)),
    save_summary_steps=10,
    resume_input="over" not in settings,
    mixed_precision=settings.get("precision"),
    train_distribute=None if "mirrored" in settings else te.distribute.FullyShardedStrategy(
        {"blocks": [Block], "absent": [nn.Conv1d], "lists": [nn.ModuleList]}.get(settings.get("units"))
    ),
)


def input_fn(mode, input_context):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(int(settings.get("rows", 960)), 5)).astype(np.float32)
    data = te.data.Dataset.from_arrays(rows, np.sin(rows.sum(1)))
    if mode == "train":
        data = data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if "shuffle" in settings and mode == "train":
        data = data.shuffle(100)
    if "repeat" in settings and mode == "train":
        data = data.repeat()
    return data.batch(int(batch))


class Acts(te.Hook):
    def after_step(self, context):
        step = settings.get(config.task_type)
        if step is not None and context.global_step == int(step):
            if settings["does"] == "stops":
                context.request_stop()
            if settings["does"] == "fails":
                raise KeyError("something of the user's")
            if settings["does"] == "dies":
                os.kill(os.getpid(), 9)


loss = nn.MSELoss(reduction="sum") if "sum" in settings else nn.functional.mse_loss
if settings.get("model") == "canned":
    column = fc.embedding_column(fc.categorical_column_with_identity("id", 10), 4)
    estimator = te.DNNRegressor(model_dir=model_dir, feature_columns=[column], hidden_units=[4], config=config)
else:
    module = Net()
    estimator = te.Estimator.from_module(
        module,
        loss=loss,
        optimizer=torch.optim.SGD(module.parameters()) if "bound" in settings else OPTIMIZERS[
            settings.get("optimizer", "adam")
        ],
        model_dir=model_dir,
        config=config,
    )
with te.errors.exit_on_user_error():
    hooks = {
        "logs": lambda: te.LoggingTensorHook(["last.weight"], every_n_iter=1),
        "evaluates": lambda: te.InMemoryEvaluatorHook(estimator, input_fn),
    }
    hook = hooks[settings["hook"]]() if "hook" in settings else Acts()
    estimator.train(input_fn, max_steps=None if max_steps == "None" else int(max_steps), hooks=[hook])
    if "evaluate" in settings:
        print("evaluated:", estimator.evaluate(input_fn)["loss"])
        print("predicted:", next(iter(estimator.predict(input_fn))))
"""


def run(model_dir: Path, *arguments: object, workers: int = 1) -> list[str]:
    """Run a job, assert that it succeeds, and return the output of each process."""
    results = Cluster(PROGRAM, workers).run(model_dir, *arguments)
    for result in results:
        assert result.status == 0, result.output
    return [result.output for result in results]


@pytest.mark.parametrize(
    "settings",
    [
        ("optimizer=adam",),
        ("optimizer=ftrl", "units=blocks"),
        ("optimizer=clipped", "sum=1"),
        ("optimizer=accumulated",),
    ],
    ids=" ".join,
)
def test_two_with_half_of_each_batch_compute_what_one_does(tmp_path: Path, settings: tuple[str, ...]) -> None:
    told = run(tmp_path / "two", 16, 50, "repeat=1", *settings)
    run(tmp_path / "one", 32, 50, "repeat=1", *settings, workers=0)
    assert_close(tmp_path / "two", tmp_path / "one")
    losses = [[line for line in text.splitlines() if line.startswith("loss = ")] for text in told]
    assert losses[0] == losses[1]
    assert "Saving checkpoints" not in told[1]
    names = {file.name for file in (tmp_path / "two" / "model.ckpt-50").iterdir()}
    assert names == {
        "state.json",
        *(f"{kind}-0000{number}-of-00002.safetensors" for kind in ("variables", "slots") for number in (1, 2)),
    }


def test_inputs_that_end_at_different_times_are_all_read(tmp_path: Path) -> None:
    # 5 rows for the chief, 4 for the worker, in batches of one.
    run(tmp_path / "sharded", 1, None, "rows=9", "optimizer=clipped")
    run(tmp_path / "mirrored", 1, None, "rows=9", "optimizer=clipped", "mirrored=1")
    assert checkpoint_steps(tmp_path / "sharded") == [0, 5]
    assert_close(tmp_path / "sharded", tmp_path / "mirrored")


def test_a_process_without_any_batch_is_named_and_training_ends(tmp_path: Path) -> None:
    for text in run(tmp_path, 1, None, "rows=1"):
        assert "Training ends though there are batches left: worker 0 has none, and others need its rows." in text
    assert checkpoint_steps(tmp_path) == [0]


def test_a_job_that_goes_on_is_the_same_as_one_that_was_never_interrupted(tmp_path: Path) -> None:
    settings = ("repeat=1", "shuffle=1", "dropout=0.3", "norm=1", "save=7", "optimizer=torch")
    run(tmp_path / "whole", 16, 20, *settings)
    run(tmp_path / "parts", 16, 11, *settings)
    run(tmp_path / "parts", 16, 20, *settings)
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_any_number_of_processes_goes_on(tmp_path: Path) -> None:
    settings = ("repeat=1", "over=1", "optimizer=torch")
    for before in (1, 2):
        run(tmp_path / f"by {before}", 24 // before, 10, *settings, workers=before - 1)
    for before, after in ((1, 1), (1, 2), (2, 1), (2, 3)):
        model_dir = tmp_path / f"{before} then {after}"
        shutil.copytree(tmp_path / f"by {before}", model_dir)
        run(model_dir, 24 // after, 20, *settings, workers=after - 1)
        assert_close(model_dir, tmp_path / "1 then 1")


def test_one_process_evaluates_and_predicts_what_several_have_trained(tmp_path: Path) -> None:
    run(tmp_path, 32, 5, "repeat=1")
    (told,) = run(tmp_path, 32, 5, "evaluate=1", workers=0)
    assert "Restoring parameters from" in told
    # The module's first values are drawn anew in each run.
    assert re.search(r"^evaluated: \d\.\d+$", told, re.MULTILINE)
    assert "predicted: {" in told


def test_after_a_kill_the_others_end_with_a_sentence_and_the_job_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    settings = ("repeat=1", "shuffle=1", "dropout=0.3", "save=7")
    results = Cluster(PROGRAM).run(tmp_path / "killed", 16, 20, *settings, "worker=18", "does=dies")
    assert results[1].status == -signal.SIGKILL
    assert results[0].status == RESTART_ME, results[0].output
    assert "training goes on from the last checkpoint." in results[0].output
    assert max(checkpoint_steps(tmp_path / "killed")) == 14
    run(tmp_path / "killed", 16, 20, *settings)
    run(tmp_path / "whole", 16, 20, *settings)
    assert_same(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize(("who", "at"), [("chief", 12), ("worker", 13)])
def test_all_processes_stop_at_the_same_step(tmp_path: Path, who: str, at: int) -> None:
    told = run(tmp_path, 16, 30, "repeat=1", f"{who}=12", "does=stops")
    assert checkpoint_steps(tmp_path) == [0, at]
    for text in told:
        assert f"Training ended at global step {at}: a hook asked for it." in text


def test_ctrl_c_to_all_has_the_step_at_hand_saved(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, 1)
    running = [cluster.start(task, tmp_path / "parts", 16, 10**7, "repeat=1") for task in cluster.tasks]
    read_until(running[0], "step = 0")
    for one in reversed(running):
        os.kill(one.pid, signal.SIGINT)
    for result in ended(running):
        assert result.status == 130, result.output
        assert "Traceback" not in result.output
    saved = max(checkpoint_steps(tmp_path / "parts"))
    assert saved > 0
    run(tmp_path / "parts", 16, saved + 5, "repeat=1")
    run(tmp_path / "whole", 16, saved + 5, "repeat=1")
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_a_process_that_fails_between_two_steps_is_named_by_the_others(tmp_path: Path) -> None:
    results = Cluster(PROGRAM).run(tmp_path, 16, 30, "repeat=1", "worker=12", "does=fails")
    assert results[1].status == 1
    assert 'KeyError: "something of the user\'s"' in results[1].output
    assert results[0].status == RESTART_ME
    assert "worker 0 has failed; see its log, and start all of them again: training goes on" in results[0].output


def test_where_a_process_fails_within_a_step_the_others_end_with_a_sentence(tmp_path: Path) -> None:
    results = Cluster(PROGRAM).run(tmp_path, 16, 300, "repeat=1", "fails=worker")
    assert results[1].status == 1
    assert "RuntimeError: something of the user's" in results[1].output
    assert results[0].status == RESTART_ME, results[0].output
    assert "see its log, and start all of them again" in results[0].output


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("model=canned", "FullyShardedStrategy does not spread the tables of feature columns, such as"),
        ("model=tied", "'blocks.0' and 'blocks.1' of Net share a parameter, but FullyShardedStrategy gathers each"),
        ("model=scalar", "FullyShardedStrategy cannot divide 'temperature', which is one number; give it the shape"),
        ("model=hooked", "but 'first.weight' has a hook for its gradient, which would be lost; remove the hook"),
        ("model=sparse", "FullyShardedStrategy cannot add up sparse gradients; make 'table' with sparse=False."),
        ("units=absent", "units of FullyShardedStrategy names Conv1d, but Net has no module of that type."),
        ("units=lists", "units of FullyShardedStrategy names ModuleList, which is never called; name the type of its"),
        ("model=reaching", "A parameter is used outside of the forward pass of its unit"),
        ("hook=logs", "error: Logging needs whole variables, but with FullyShardedStrategy each process holds a part"),
        ("hook=evaluates", "error: Evaluating what is in training needs whole variables, but with"),
        ("bound=1", "SGD was made before; give optimizer a name or a function of named parameters."),
    ],
)
def test_modules_that_cannot_be_sharded_are_refused(tmp_path: Path, setting: str, sentence: str) -> None:
    for result in Cluster(PROGRAM).run(tmp_path, 16, 30, setting):
        assert result.status == 2, result.output
        assert sentence in result.output
        assert "Traceback" not in result.output


def test_optimizers_that_differ_are_named(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM)
    chief, worker = ended(
        [
            cluster.start(task, tmp_path, 16, 30, "repeat=1", f"optimizer={kind}")
            for task, kind in zip(cluster.tasks, ("adam", "ftrl"), strict=True)
        ]
    )
    for one in (chief, worker):
        assert one.status == 2, one.output
        assert "worker 0 and chief 0 must run the same program, but differ in the optimizers: " in one.output
        assert ' is "Ftrl" on worker 0, and "Adam" on chief 0' in one.output
        assert "Traceback" not in one.output


def test_bfloat16_computes_about_what_one_process_does(tmp_path: Path) -> None:
    run(tmp_path / "two", 16, 20, "repeat=1", "precision=bf16")
    run(tmp_path / "one", 32, 20, "repeat=1", "precision=bf16", workers=0)
    ours, theirs = variables(tmp_path / "two"), variables(tmp_path / "one")
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, atol=0.05, err_msg=name)
