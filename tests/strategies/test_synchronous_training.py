"""Synchronous training computes what one process computes, recovers from losses bit for bit, and never hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cluster_jobs import Cluster, Process, ended
from tests.line_jobs import checkpoint_steps
from torch_estimator.checkpoint.checkpoint import load_checkpoint

PROGRAM = """
import gc, logging, os, sys, time
import numpy as np
import pyarrow
import torch
import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.distributed.mesh import AllGatherMesh

model_dir, batch, max_steps, *rest = sys.argv[1:]
settings = dict(one.split("=") for one in rest)
logging.basicConfig(level=logging.INFO, format="%(message)s")
config = te.RunConfig(
    log_step_count_steps=100,
    random_seed=1,
    save_checkpoints_steps=int(settings.get("save", 1000)),
    compile=settings.get("compile") == "True",
    session_creation_timeout_secs=float(settings.get("wait", 100)),
    train_distribute=te.distribute.MultiWorkerMirroredStrategy(
        silence_secs=float(settings.get("silence", 60)),
        elastic=bool({"elastic", f"elastic_of_{te.RunConfig().task_type}"} & settings.keys()),
    ),
)
rows = int(settings.get("rows", 960))


def input_fn(input_context):
    rng = np.random.default_rng(0)
    color = rng.choice([f"color {number}" for number in range(50)], rows)
    size = rng.normal(size=rows).astype(np.float32)
    tags = [[int(tag) for tag in rng.integers(0, 20, 1 + row // 40)] for row in range(rows)]
    labels = (size + np.char.str_len(color) > 7.5).astype(np.int64)
    features = {"color": color, "size": size, "shape": rng.choice(["round", "square"], rows)}
    if "lists" in settings:
        features["tags"] = pyarrow.array(tags)
    data = te.data.Dataset.from_arrays(features, labels)
    data = data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if "shuffle" in settings:
        data = data.shuffle(100)
    if "repeat" in settings:
        data = data.repeat()
    if f"rows_of_{config.task_type}{config.task_id}" in settings:
        data = data.take(int(settings[f"rows_of_{config.task_type}{config.task_id}"]))
    return data.batch(int(batch))


class Acts(te.Hook):
    def after_step(self, context):
        step = settings.get(f"{config.task_type}{config.task_id}") or settings.get(config.task_type)
        if step is None or context.global_step < int(step):
            return
        if settings["does"] == "stops":
            context.request_stop()
        if settings["does"] == "fails":
            raise KeyError("something of the user's")
        if settings["does"] == "dies":
            os.kill(os.getpid(), 9)
        if settings["does"] == "hangs":
            while not os.path.exists(os.path.join(model_dir, "go")):
                time.sleep(0.01)
            time.sleep(float(settings.get("slow", 0)))
        if settings["does"] == "is cut off" and context.global_step == int(step):
            next(one for one in gc.get_objects() if isinstance(one, AllGatherMesh)).shut_down_sending()
            while not os.path.exists(os.path.join(model_dir, "back")):
                time.sleep(0.01)
        if settings["does"] == "is preempted" and context.global_step == int(step):
            os.kill(os.getpid(), 15)


color = fc.categorical_column_with_hash_bucket("color", 100)
linear = [color, fc.crossed_column(["color", "shape"], 1000)]
if "lists" in settings:
    linear.append(fc.categorical_column_with_identity("tags", 20, multivalent=True))
width = int(settings.get(f"width_of_{config.task_type}", 16))
rate = float(settings.get(f"rate_of_{config.task_type}", 0.001))


def decayed(named):
    return torch.optim.lr_scheduler.ExponentialLR(te.optim.Adagrad(lr=rate)(named), 0.9)


estimator = te.DNNLinearCombinedClassifier(
    model_dir=model_dir.replace("{}", config.task_type),
    linear_feature_columns=linear,
    dnn_feature_columns=[fc.embedding_column(color, 4), fc.numeric_column("size")],
    dnn_hidden_units=[width, 8],
    dnn_optimizer=decayed if "decayed" in settings else te.optim.Adagrad(lr=rate),
    dnn_activation_fn=torch.relu,
    dnn_dropout=float(settings["dropout"]) if "dropout" in settings else None,
    batch_norm="norm" in settings,
    config=config,
)
if "attempts_of_worker" in settings and config.task_type == "worker":
    torch.distributed.distributed_c10d._world.group_count = int(settings["attempts_of_worker"])
steps = None if max_steps == "None" else int(max_steps)
with te.errors.exit_on_user_error():
    for part in range(int(settings.get("parts", 1))):
        estimator.train(input_fn, max_steps=steps and steps * (part + 1), hooks=[Acts()])
"""


def variables(model_dir: Path) -> dict[str, np.ndarray]:
    """Return the variables and the optimizer state of the newest checkpoint."""
    newest = max(checkpoint_steps(model_dir))
    checkpoint = load_checkpoint(str(model_dir / f"model.ckpt-{newest}"))
    return {name: tensor.numpy() for name, tensor in {**checkpoint.variables, **checkpoint.slots}.items()}


def assert_close(one: Path, other: Path) -> None:
    ours, theirs = variables(one), variables(other)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


def assert_same(one: Path, other: Path) -> None:
    ours, theirs = variables(one), variables(other)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def run(model_dir: Path, *arguments: object, workers: int = 1) -> list[str]:
    """Run a job, assert that it succeeds, and return the output of each process."""
    results = Cluster(PROGRAM, workers).run(model_dir, *arguments)
    for result in results:
        assert result.status == 0, result.output
    return [result.output for result in results]


def alone(model_dir: Path, *arguments: object) -> None:
    (result,) = Cluster(PROGRAM, 0).run(model_dir, *arguments)
    assert result.status == 0, result.output


def read_until(process: Process, text: str) -> None:
    assert any(text in line for line in process.stdout)


def test_the_chief_saves_and_all_log_the_loss_of_the_whole_batch(tmp_path: Path) -> None:
    told = run(tmp_path, 16, 100, "repeat=1")
    assert "Saving checkpoints for 100" in told[0]
    assert "Saving checkpoints" not in told[1]
    losses = [re.findall(r"^loss = .*, step = \d+", text, re.MULTILINE) for text in told]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 1
    assert {file.parent for file in tmp_path.rglob("events.*")} == {tmp_path}


def test_one_program_may_train_several_times(tmp_path: Path) -> None:
    run(tmp_path / "parts", 16, 10, "repeat=1", "parts=3")
    run(tmp_path / "whole", 16, 30, "repeat=1")
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_lists_of_any_length_are_sent(tmp_path: Path) -> None:
    run(tmp_path / "two", 16, 20, "lists=1")
    alone(tmp_path / "one", 32, 20, "lists=1")
    assert_close(tmp_path / "two", tmp_path / "one")


def test_a_process_that_has_failed_to_connect_finds_one_that_has_just_started(tmp_path: Path) -> None:
    run(tmp_path, 16, 3, "repeat=1", "attempts_of_worker=2", "wait=20")


def test_inputs_that_end_at_different_times_are_all_read(tmp_path: Path) -> None:
    # 5 rows for the chief, 4 for the worker, in batches of one.
    told = run(tmp_path, 1, None, "rows=9")
    assert checkpoint_steps(tmp_path) == [0, 5]
    assert ["Training ended at global step 5: the input ended." in text for text in told] == [True, True]


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_job_that_goes_on_is_the_same_as_one_that_was_never_interrupted(
    tmp_path: Path, compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    settings = ("repeat=1", "shuffle=1", "dropout=0.3", "norm=1", f"compile={compile}", "save=7")
    run(tmp_path / "whole", 16, 30, *settings)
    run(tmp_path / "parts", 16, 11, *settings)
    run(tmp_path / "parts", 16, 30, *settings)
    assert_same(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize(("victim", "at", "more"), [(2, 18, ()), (2, 1, ()), (0, 18, ()), (0, 12, ("elastic=1",))])
def test_the_replacement_of_a_killed_process_is_handed_its_state_and_no_step_is_lost(
    tmp_path: Path, victim: int, at: int, more: tuple[str, ...]
) -> None:
    settings = ("repeat=1", "shuffle=1", "dropout=0.3", "norm=1", "decayed=1", "save=7", *more)
    cluster = Cluster(PROGRAM, workers=2)
    arguments = (tmp_path / "killed", 16, 30, *settings)
    kind, number = cluster.tasks[victim]
    running = [cluster.start(task, *arguments, f"{kind}{number}={at}", "does=dies") for task in cluster.tasks]
    running[victim].wait()
    assert running[victim].status == -signal.SIGKILL
    running[victim] = cluster.start((kind, number), *arguments)
    results = ended(running)
    for result in results:
        assert result.status == 0, result.output
        assert "Training ended at global step 30: the last step was reached." in result.output
    run(tmp_path / "whole", 16, 30, *settings, workers=2)
    assert_same(tmp_path / "killed", tmp_path / "whole")
    # The replacement got the state of the others, not that of a checkpoint.
    assert f"The others are at global step {at}; going on with them." in results[victim].output


def test_a_replacement_that_runs_another_program_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM)
    arguments = (tmp_path, 16, 30, "repeat=1")
    chief = cluster.start(("chief", 0), *arguments)
    victim = cluster.start(("worker", 0), *arguments, "worker0=12", "does=dies")
    victim.wait()
    (another,) = ended([cluster.start(("worker", 0), *arguments, "rate_of_worker=0.5")])
    results = ended([chief, cluster.start(("worker", 0), *arguments)])
    assert another.status == 2
    for result in (another, results[0]):
        assert "is 0.5 on worker 0, and 0.001 on chief 0; start them with the same code" in result.output
    for result in results:
        assert result.status == 0, result.output
        assert "Training ended at global step 30: the last step was reached." in result.output


@pytest.mark.parametrize(("does", "status"), [("dies", -signal.SIGKILL), ("fails", 1)])
def test_an_elastic_group_goes_on_without_a_lost_process(tmp_path: Path, does: str, status: int) -> None:
    settings = ("repeat=1", "shuffle=1", "dropout=0.3", "norm=1", "save=7", "elastic=1")
    chief, worker, victim = Cluster(PROGRAM, workers=2).run(
        tmp_path / "killed", 16, 30, *settings, "worker1=12", f"does={does}"
    )
    assert victim.status == status
    for result in (chief, worker):
        assert result.status == 0, result.output
        assert "Going on at global step 12 without worker 1." in result.output
        assert "Training ended at global step 30: the last step was reached." in result.output
    # The same as if the input of the lost process had ended.
    run(tmp_path / "ended", 16, 30, *settings, f"rows_of_worker1={12 * 16}", workers=2)
    assert_same(tmp_path / "killed", tmp_path / "ended")


def test_a_process_that_returns_to_an_elastic_group_reads_the_rest_of_its_input(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=2)
    # 20 batches for each process.
    arguments = (tmp_path, 16, None, "rows=960", "elastic=1", "save=7", "silence=1")
    waits = (*arguments, "chief=15", "does=hangs", "slow=0.5")
    running = [cluster.start(task, *waits) for task in cluster.tasks[:2]]
    victim = cluster.start(cluster.tasks[2], *arguments, "worker=12", "does=dies")
    victim.wait()
    read_until(running[0], "Going on at global step 12 without worker 1.")
    back = cluster.start(cluster.tasks[2], *arguments)
    read_until(back, "The group continues without worker 1; waiting until the chief admits it again.")
    (tmp_path / "go").touch()
    results = ended([*running, back])
    for result in results:
        assert result.status == 0, result.output
        assert "All 3 processes are connected again; going on at global step" in result.output or result is results[2]
    assert "worker 1 is back." in results[0].output
    found = re.search(r"The others are at global step (\d+); going on with them.", results[2].output)
    assert found is not None and 15 <= int(found[1]) < 20
    last = int(found[1]) + 20 - 12
    assert checkpoint_steps(tmp_path)[-1] == last
    for result in results:
        assert f"Training ended at global step {last}: the input ended." in result.output


def test_a_process_cut_off_from_an_elastic_group_for_long_asks_to_be_started_again(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=2)
    arguments = (tmp_path, 16, 30, "repeat=1", "elastic=1")
    running = [cluster.start(task, *arguments, "chief=20", "does=hangs") for task in cluster.tasks[:2]]
    cut_off = cluster.start(cluster.tasks[2], *arguments, "worker=12", "does=is cut off")
    read_until(running[0], "Going on at global step 12 without worker 1.")
    (tmp_path / "back").touch()
    (behind,) = ended([cut_off])
    (tmp_path / "go").touch()
    chief, worker = ended(running)
    assert (chief.status, worker.status, behind.status) == (0, 0, 143), behind.output
    assert (
        "worker 1 was away for too long: the others have gone on without it; start it again to go on." in behind.output
    )


@pytest.mark.parametrize(("who", "workers"), [("chief", 0), ("worker", 1)])
def test_sigterm_to_one_has_a_checkpoint_saved_and_all_ask_to_be_started_again(
    tmp_path: Path, who: str, workers: int
) -> None:
    settings = ("repeat=1", "shuffle=1", "dropout=0.3", "save=7")
    results = Cluster(PROGRAM, workers).run(tmp_path / "parts", 16, 30, *settings, f"{who}=12", "does=is preempted")
    # A worker tells its wish to stop with its next step.
    at = 13 if workers else 12
    for result in results:
        assert result.status == 143, result.output
        assert f"Training ended at global step {at}: SIGTERM asked for it; start again to go on." in result.output
    assert checkpoint_steps(tmp_path / "parts") == [0, 7, at]
    run(tmp_path / "parts", 16, 30, *settings, workers=workers)
    run(tmp_path / "whole", 16, 30, *settings, workers=workers)
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_ctrl_c_to_all_has_the_step_at_hand_saved(tmp_path: Path) -> None:
    settings = ("repeat=1", "shuffle=1", "dropout=0.3")
    cluster = Cluster(PROGRAM, 2)
    running = [cluster.start(task, tmp_path / "parts", 16, 10**7, *settings) for task in cluster.tasks]
    read_until(running[0], "step = 100")
    for one in reversed(running):
        os.kill(one.pid, signal.SIGINT)
    for result in ended(running):
        assert result.status == 130, result.output
        assert "Traceback" not in result.output
        assert ": Ctrl-C asked for it; train again to go on." in result.output
    saved = max(checkpoint_steps(tmp_path / "parts"))
    assert saved >= 100
    run(tmp_path / "parts", 16, saved + 10, *settings, workers=2)
    run(tmp_path / "whole", 16, saved + 10, *settings, workers=2)
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_ctrl_c_while_waiting_for_a_replacement_loses_no_step(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, 1)
    arguments = (tmp_path, 16, 30, "repeat=1", "save=7", "worker0=12", "does=dies")
    chief, worker = (cluster.start(task, *arguments) for task in cluster.tasks)
    read_until(chief, "waiting for it to come back.")
    os.kill(chief.pid, signal.SIGINT)
    chief_ended, _ = ended([chief, worker])
    assert chief_ended.status == 130, chief_ended.output
    assert "Ctrl-C came while this process waited for others; start again to go on." in chief_ended.output
    assert "Traceback" not in chief_ended.output
    assert checkpoint_steps(tmp_path) == [0, 7, 12]


def test_sigterm_while_waiting_for_a_replacement_loses_no_step(tmp_path: Path) -> None:
    settings = ("repeat=1", "shuffle=1", "dropout=0.3", "save=7")
    cluster = Cluster(PROGRAM, 2)
    arguments = (tmp_path / "parts", 16, 30, *settings, "worker1=12", "does=dies")
    running = [cluster.start(task, *arguments) for task in cluster.tasks]
    for one in running[:2]:
        read_until(one, "waiting for it to come back.")
        os.kill(one.pid, signal.SIGTERM)
    chief, worker, dead = ended(running)
    assert (chief.status, worker.status, dead.status) == (143, 143, -signal.SIGKILL)
    for one in (chief, worker):
        assert "SIGTERM came while this process waited for others; start again to go on." in one.output
        assert "Traceback" not in one.output
    assert checkpoint_steps(tmp_path / "parts") == [0, 7, 12]
    run(tmp_path / "parts", 16, 30, *settings, workers=2)
    run(tmp_path / "whole", 16, 30, *settings, workers=2)
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_sigterm_while_another_process_hangs_loses_no_step(tmp_path: Path) -> None:
    settings = ("repeat=1", "shuffle=1", "dropout=0.3", "save=7", "silence=1")
    cluster = Cluster(PROGRAM, 2)
    arguments = (tmp_path / "parts", 16, 30, *settings, "worker1=12", "does=hangs")
    *running, hangs = [cluster.start(task, *arguments) for task in cluster.tasks]
    for one in running:
        read_until(one, "has been waiting for worker 1 for")
        os.kill(one.pid, signal.SIGTERM)
    for one in ended(running):
        assert one.status == 143
        assert re.search(r"SIGTERM came while this process waited for .*; start again to go on\.", one.output)
        assert "Traceback" not in one.output
    hangs.kill()
    ended([hangs])
    assert checkpoint_steps(tmp_path / "parts") == [0, 7, 12]
    run(tmp_path / "parts", 16, 30, *settings, workers=2)
    run(tmp_path / "whole", 16, 30, *settings, workers=2)
    assert_same(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize(("who", "at"), [("chief", 12), ("worker", 13)])
def test_all_processes_stop_at_the_same_step(tmp_path: Path, who: str, at: int) -> None:
    told = run(tmp_path, 16, 30, "repeat=1", f"{who}=12", "does=stops", workers=2)
    assert checkpoint_steps(tmp_path) == [0, at]
    for text in told:
        assert f"Training ended at global step {at}: a hook asked for it." in text


def test_a_failed_process_is_named_by_the_others(tmp_path: Path) -> None:
    results = Cluster(PROGRAM).run(tmp_path, 16, 30, "repeat=1", "worker=12", "does=fails", "wait=2")
    assert results[1].status == 1
    assert 'KeyError: "something of the user\'s"' in results[1].output
    assert results[0].status == 2
    assert "worker 0 has failed; its log says why; waiting for it to come back." in results[0].output
    assert "error: chief 0 waited 2 s (session_creation_timeout_secs of RunConfig) at localhost:" in results[0].output


def test_a_process_that_hangs_is_named_by_the_others(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM)
    arguments = (tmp_path, 16, 30, "repeat=1", "worker=12", "does=hangs", "silence=0.2")
    chief, worker = (cluster.start(task, *arguments) for task in cluster.tasks)
    port = cluster.spec["chief"][0].partition(":")[2]
    read_until(chief, f"chief 0 listens on port {port} (all interfaces, *).")
    for _ in range(3):
        read_until(chief, "chief 0 has been waiting for worker 0 for ")
    (tmp_path / "go").touch()
    results = ended([chief, worker])
    for result in results:
        assert result.status == 0, result.output
    assert len(re.findall("worker 0 is back; chief 0 had waited for it for", results[0].output)) == 1
    assert max(checkpoint_steps(tmp_path)) == 30


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_process_is_named_even_if_it_is_the_chief(tmp_path: Path, stopped: int) -> None:
    cluster = Cluster(PROGRAM)
    running = [
        cluster.start(task, tmp_path, 16, 1000, "repeat=1", "silence=0.4", "save=10", "slow=0")
        for task in cluster.tasks
    ]
    read_until(running[0], "Saving checkpoints for 10 ")
    os.kill(running[stopped].pid, signal.SIGSTOP)
    names = ["chief 0", "worker 0"]
    read_until(running[1 - stopped], f"{names[1 - stopped]} has been waiting for {names[stopped]} for ")
    os.kill(running[stopped].pid, signal.SIGCONT)
    for result in ended(running):
        assert result.status == 0, result.output
    assert max(checkpoint_steps(tmp_path)) == 1000


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        (
            "width_of_worker=12",
            'the variables: dnn/hiddenlayer_0/kernel is [[5, 12], "torch.float32"] on worker 0, and [[5, 16], '
            '"torch.float32"] on chief 0',
        ),
        (
            "rate_of_worker=0.5",
            "the optimizers: lr of Adagrad of dnn.input_from_feature_columns.input_layer.tables.0.weight and 6 more is "
            "0.5 on worker 0, and 0.001 on chief 0",
        ),
        (
            "elastic_of_chief=1",
            "the settings: elastic is false on worker 0, and true on chief 0",
        ),
    ],
)
def test_different_programs_are_named(tmp_path: Path, setting: str, named: str) -> None:
    for result in Cluster(PROGRAM).run(tmp_path, 16, 30, setting):
        assert result.status == 2
        assert f"error: worker 0 and chief 0 must run the same program, but differ in {named}; start" in result.output


def test_clusters_of_different_size_are_named(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM)
    more = {**cluster.spec, "worker": [*cluster.spec["worker"], "localhost:1"]}
    of_more = json.dumps({"cluster": more, "task": {"type": "worker", "index": 0}})
    chief = cluster.start(("chief", 0), tmp_path, 16, 30)
    for result in ended([chief, cluster.start(("worker", 0), tmp_path, 16, 30, TF_CONFIG=of_more)]):
        assert result.status == 2
        assert (
            "error: worker 0 and chief 0 must be of the same cluster, but differ in how many there are: the number of "
            "processes that train is 3 on worker 0, and 2 on chief 0; start them with the same TF_CONFIG"
        ) in result.output


def test_different_model_dirs_are_named(tmp_path: Path) -> None:
    unseen = f"error: worker 0 does not see the chief's model_dir: in its {tmp_path}/of worker there is no file"
    for result in Cluster(PROGRAM).run(tmp_path / "of {}", 16, 30):
        assert result.status == 2
        assert unseen in result.output


def test_waiting_for_a_process_that_never_starts_times_out(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM)
    (chief,) = ended([cluster.start(("chief", 0), tmp_path, 16, 30, "wait=2")])
    assert chief.status == 2, chief.output
    assert "error: chief 0 waited 2 s (session_creation_timeout_secs of RunConfig) at localhost:" in chief.output
    assert " for worker 0; see whether all run and can reach that address." in chief.output
    (worker,) = ended([cluster.start(("worker", 0), tmp_path, 16, 30, "wait=2")])
    assert worker.status == 2, worker.output
    assert "error: worker 0 waited 2 s (session_creation_timeout_secs of RunConfig) for chief 0 at" in worker.output


def test_waiting_for_a_chief_that_does_not_answer_times_out(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM)
    chief, worker = (cluster.start(task, tmp_path, 16, 500, "repeat=1", "wait=30") for task in cluster.tasks)
    read_until(chief, "loss = ")
    os.kill(chief.pid, signal.SIGSTOP)
    worker.kill()
    (behind,) = ended([cluster.start(("worker", 0), tmp_path, 16, 500, "repeat=1", "wait=2")])
    assert behind.status == 2, behind.output
    assert "error: worker 0 waited 2 s (session_creation_timeout_secs of RunConfig) for chief 0 at" in behind.output
    os.kill(chief.pid, signal.SIGCONT)
    for result in ended([chief, cluster.start(("worker", 0), tmp_path, 16, 500, "repeat=1")]):
        assert result.status == 0, result.output


def test_a_second_process_with_the_same_task_gives_up_with_an_error(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM)
    arguments = (tmp_path, 16, 30, "repeat=1", "wait=10", "chief=12", "does=hangs")
    running = [cluster.start(task, *arguments) for task in [*cluster.tasks, ("worker", 0)]]
    deadline = time.monotonic() + 60
    while not (over := [one for one in running if one.status is not None]) and time.monotonic() < deadline:
        time.sleep(0.05)
    (tmp_path / "go").touch()
    chief, *workers = ended(running)
    assert chief.status == 0, chief.output
    assert sorted(one.status for one in workers) == [0, 2]
    (left_out,) = (one for one in workers if one.status)
    assert (
        " for another process that runs as worker 0 to end; see whether two have the same TF_CONFIG." in left_out.output
    )
    assert len(over) == 1


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM)
    first = cluster.start(("chief", 0), tmp_path, 16, 30, "wait=60")
    try:
        while "waiting at" not in (line := first.stdout.readline()):
            assert line
        time.sleep(0.5)
        # In another model_dir, since the first chief holds the lease of its own.
        (second,) = ended([cluster.start(("chief", 0), tmp_path / "other", 16, 30, "wait=2")])
    finally:
        first.kill()
        first.wait()
    assert second.status == 2, second.output
    assert "the port is in use; end what uses it, or name another port." in second.output
