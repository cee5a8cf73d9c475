"""Training with parameter servers: the same numbers as a single process, shared work, restarts and shutdowns."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.cluster_jobs import Cluster, Ended, Process, ended
from tests.line_jobs import checkpoint_steps
from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.parameter_server.encryption import KEY_FILE, make_key_file
from torch_estimator.runs.training_status import read_status

PROGRAM = """
import logging, os, sys, time
import numpy as np
import pyarrow
import torch
import torch_estimator as te
from torch_estimator import feature_column as fc

model_dir, batch, max_steps, *rest = sys.argv[1:]
settings = dict(one.split("=") for one in rest)
logging.basicConfig(level=logging.INFO, format="%(message)s")
if "large" in settings:
    te.feature_column.table.LARGE_BYTES = int(settings["large"])
if "writes_for" in settings:
    import torch_estimator.parameter_server.large_table as large_table

    begun = []

    def read(self, *arguments, whole=large_table.FrozenRows.read):
        begun.extend([self] * (self not in begun))
        if len(begun) >= 2 * int(settings.get("from_checkpoint", 1)) - 1:
            print("Writing for long.", flush=True)
            time.sleep(float(settings["writes_for"]))
        return whole(self, *arguments)

    large_table.FrozenRows.read = read
config = te.RunConfig(
    log_step_count_steps=100,
    random_seed=1,
    save_checkpoints_steps=int(settings.get("save", 1000)),
    compile=settings.get("compile") == "True",
    session_creation_timeout_secs=float(settings.get("wait", 100)),
    experimental_max_worker_delay_secs=int(settings.get("delay", 0)),
    train_distribute=te.distribute.ParameterServerStrategy(
        pipeline="pipeline" in settings,
        max_staleness=int(settings["staleness"]) if "staleness" in settings else None,
        silence_secs=float(settings.get("silence", 300)),
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
    if "repeat" in settings:
        data = data.repeat()
    return data.batch(int(batch))


class Acts(te.Hook):
    every_n_steps = int(settings.get("look", 1))

    def after_step(self, context):
        time.sleep(float(settings.get("slow", 0)))
        step = settings.get(config.task_type)
        if step is not None and context.global_step >= int(step):
            if settings["does"] == "stops":
                context.request_stop()
            if settings["does"] == "is preempted":
                os.kill(os.getpid(), 15)
            if settings["does"] == "dies":
                os.kill(os.getpid(), 9)


def optimizer(name):
    if name == "torch":
        return lambda params: torch.optim.Adam(params, lr=0.01)
    if name == "decayed":
        return lambda params: torch.optim.lr_scheduler.ExponentialLR(te.optim.Adagrad(lr=0.1)(params), 0.97)
    if name == "fast":
        return te.optim.Adagrad(lr=0.2)
    if name == "wild":
        return te.optim.GradientDescent(lr=1e30)
    if name == "clipped":
        return te.optim.clip_gradients_by_norm(te.optim.Adagrad(lr=0.1), 0.05)
    return name


class Dies(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith(settings["dies_when_it_says"]):
            os.kill(os.getpid(), 9)


if "dies_when_it_says" in settings:
    logging.getLogger("torch_estimator").addHandler(Dies())


color = fc.categorical_column_with_hash_bucket("color", 100)
linear = [color, fc.crossed_column(["color", "shape"], 1000)]
if "lists" in settings:
    linear.append(fc.categorical_column_with_identity("tags", 20, multivalent=True))
estimator = te.DNNLinearCombinedClassifier(
    model_dir=model_dir.replace("{}", config.task_type),
    linear_feature_columns=linear,
    linear_optimizer=optimizer(settings.get("linear", "Ftrl")),
    dnn_feature_columns=[fc.embedding_column(color, 4), fc.numeric_column("size")],
    dnn_optimizer=optimizer(settings.get("dnn", "Adagrad")),
    dnn_hidden_units=[16, 8],
    config=config,
)
with te.errors.exit_on_user_error():
    te.train_and_evaluate(
        estimator,
        te.TrainSpec(input_fn, max_steps=None if max_steps == "None" else int(max_steps), hooks=[Acts()]),
        te.EvalSpec(input_fn, steps=1, start_delay_secs=0, throttle_secs=0),
    )
"""


def variables(model_dir: Path) -> dict[str, np.ndarray]:
    newest = max(checkpoint_steps(model_dir))
    checkpoint = load_checkpoint(str(model_dir / f"model.ckpt-{newest}"))
    return {name: tensor.numpy() for name, tensor in {**checkpoint.variables, **checkpoint.slots}.items()}


def assert_close(one: Path, other: Path) -> None:
    ours, theirs = variables(one), variables(other)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=2e-5, atol=1e-5, err_msg=name)


def run(model_dir: Path, *arguments: object, workers: int = 0, servers: int = 1) -> list[Ended]:
    """Run a job that succeeds; return how its processes ended, the chief first."""
    results = Cluster(PROGRAM, workers, servers).run(model_dir, *arguments)
    for result in results:
        assert result.status == 0, result.output
    return results


def alone(model_dir: Path, *arguments: object) -> None:
    run(model_dir, *arguments, servers=0)


@pytest.mark.parametrize(
    "settings",
    [
        ("dnn=decayed", "lists=1"),
        pytest.param(("linear=torch", "dnn=Adam", "compile=True", "save=50"), marks=pytest.mark.slow),
        ("linear=clipped", "dnn=clipped", "compile=True"),
        ("dnn=decayed", "lists=1", "large=0"),
        ("linear=clipped", "dnn=clipped", "compile=True", "large=0"),
    ],
    ids=" ".join,
)
def test_one_worker_computes_what_a_single_process_computes(tmp_path: Path, settings: tuple[str, ...]) -> None:
    chief, *_ = run(tmp_path / "served", 32, 100, "repeat=1", *settings, servers=2)
    alone(tmp_path / "alone", 32, 100, "repeat=1", *settings, "compile=False")
    # Reading the state back for a checkpoint is no change that a compiled step has to be made anew for.
    assert "was changed" not in chief.output
    assert checkpoint_steps(tmp_path / "served") == checkpoint_steps(tmp_path / "alone")
    assert_close(tmp_path / "served", tmp_path / "alone")


@pytest.mark.parametrize("settings", [pytest.param(("compile=True",), marks=pytest.mark.slow), (), ("large=0",)])
def test_a_job_continues_with_and_without_servers(tmp_path: Path, settings: tuple[str, ...]) -> None:
    settings = ("repeat=1", *settings)
    run(tmp_path / "turns", 32, 20, *settings)
    alone(tmp_path / "turns", 32, 50, *settings)
    run(tmp_path / "turns", 32, 70, *settings, servers=2)
    alone(tmp_path / "alone", 32, 70, "repeat=1")
    assert_close(tmp_path / "turns", tmp_path / "alone")


@pytest.mark.parametrize(
    "settings", [(), ("dnn=Adam", "lists=1"), ("linear=clipped",), ("compile=True",)], ids=" ".join
)
def test_tables_on_servers_alone_end_with_the_bits_of_tables_that_the_worker_holds(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    for large in (0, 2**40):
        run(tmp_path / str(large), 32, 60, "repeat=1", "save=25", f"large={large}", *settings, servers=2)
    ours, theirs = variables(tmp_path / "0"), variables(tmp_path / str(2**40))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
    names = {one.name for one in (tmp_path / "0" / "model.ckpt-60").iterdir()}
    assert {"variables-of-ps-0.safetensors", "variables-of-ps-1.safetensors"} <= names


def test_an_optimizer_of_torch_is_refused_for_a_table_on_servers_alone(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=0, servers=1)
    chief, server = (cluster.start(task, tmp_path, 32, 60, "linear=torch", "large=0") for task in cluster.tasks)
    (result,) = ended([chief])
    server.kill()
    server.wait()
    assert result.status == 2, result.output
    assert "is on parameter servers, which update rows with the optimizers of te.optim only; train it" in result.output


@pytest.mark.parametrize("victim", [0, 1])
def test_a_server_that_dies_while_it_writes_the_first_checkpoint_begins_anew(tmp_path: Path, victim: int) -> None:
    cluster = Cluster(PROGRAM, workers=0, servers=2)
    arguments = (tmp_path, 16, 400, "repeat=1", "save=100", "slow=0.005", "large=0")
    running = {task: cluster.start(task, *arguments) for task in cluster.tasks if task != ("ps", victim)}
    running["ps", victim] = cluster.start(("ps", victim), *arguments, "writes_for=1000")
    read_until(running["chief", 0], "step = 0")
    running["ps", victim].kill()
    running["ps", victim].wait()
    running["ps", victim] = cluster.start(("ps", victim), *arguments)
    results = dict(zip(running, ended(list(running.values())), strict=True))
    for result in results.values():
        assert result.status == 0, result.output
    told = results["chief", 0].output
    assert f"model.ckpt-0 is not saved: ps {victim} was started again while it wrote its rows." in told
    assert f"ps {victim} has lost what it held before the first checkpoint was whole; it begins with initial" in told
    assert max(checkpoint_steps(tmp_path)) == 400


def told_of_a_server_that_dies_while_it_writes(*arguments: object) -> str:
    """Kill ps 1 while it writes its second checkpoint and start it again; return what the chief printed by the end."""
    cluster = Cluster(PROGRAM, workers=0, servers=2)
    running = {task: cluster.start(task, *arguments) for task in cluster.tasks if task != ("ps", 1)}
    running["ps", 1] = cluster.start(("ps", 1), *arguments, "writes_for=1000", "from_checkpoint=2")
    read_until(running["ps", 1], "Writing for long.")
    running["ps", 1].kill()
    running["ps", 1].wait()
    running["ps", 1] = cluster.start(("ps", 1), *arguments)
    results = dict(zip(running, ended(list(running.values())), strict=True))
    for result in results.values():
        assert result.status == 0, result.output
    return results["chief", 0].output


@pytest.mark.parametrize("every", [50, 1000])
def test_a_server_that_dies_while_it_writes_the_last_checkpoint_writes_it_again(tmp_path: Path, every: int) -> None:
    told = told_of_a_server_that_dies_while_it_writes(tmp_path, 16, 50, "repeat=1", f"save={every}", "large=0")
    assert "model.ckpt-50 is not saved: ps 1 was started again" in told
    assert checkpoint_steps(tmp_path) == [0, 50]
    assert load_checkpoint(tmp_path).step == 50


def test_a_server_that_dies_while_it_writes_costs_that_checkpoint_and_the_next_one_is_whole(tmp_path: Path) -> None:
    told = told_of_a_server_that_dies_while_it_writes(
        tmp_path, 16, 400, "repeat=1", "save=100", "slow=0.005", "large=0"
    )
    assert "model.ckpt-100 is not saved: ps 1 was started again while it wrote its rows." in told
    assert "ps 1 has lost what it held; restoring it from the checkpoint of global step 0." in told
    assert checkpoint_steps(tmp_path) == [0, 200, 300, 400]
    assert len(list(tmp_path.glob("*model.ckpt-*"))) == len(checkpoint_steps(tmp_path))
    assert all(np.isfinite(one).all() for one in variables(tmp_path).values())


@pytest.mark.slow
def test_a_job_that_continues_with_more_or_fewer_processes_restarts_its_input(tmp_path: Path) -> None:
    settings = ("repeat=1", "compile=True")
    run(tmp_path, 32, 20, *settings, workers=1)
    for workers, step in ((0, 30), (2, 45), (1, 60)):
        before, now = {0: ("2 processes", 1), 2: ("1 process", 3), 1: ("3 processes", 2)}[workers]
        told = run(tmp_path, 32, step, *settings, workers=workers)[0].output
        assert f"saved in a training of {before}, and this one is of {now}: reading the input from" in told
        assert max(checkpoint_steps(tmp_path)) == step
    results = Cluster(PROGRAM, 0, 0).run(tmp_path, 32, 70, *settings)
    assert results[0].status == 0, results[0].output
    assert "saved in a training of 2 processes, and this one is of 1: reading the input from" in results[0].output


@pytest.mark.parametrize("settings", [(), ("pipeline=1", "look=50"), ("pipeline=1", "large=0")])
def test_inputs_that_end_at_different_times_are_all_read(tmp_path: Path, settings: tuple[str, ...]) -> None:
    # 5, 4 and 4 batches of one.
    results = run(tmp_path, 1, None, "rows=13", *settings, workers=2)
    assert max(checkpoint_steps(tmp_path)) == 13
    assert "Training ended at global step 13: the input ended." in results[0].output
    assert "ps 0 ends: training is over." in results[3].output


def test_all_workers_stop_at_the_last_step_and_when_one_of_them_stops(tmp_path: Path) -> None:
    results = run(tmp_path / "last", 16, 150, "repeat=1", "save=50", "pipeline=1", workers=1, servers=2)
    assert max(checkpoint_steps(tmp_path / "last")) == 150
    assert all("the last step was reached." in one.output for one in results[:2])
    results = run(tmp_path / "stops", 16, 100_000, "repeat=1", "worker=120", "does=stops", workers=1)
    assert 119 <= max(checkpoint_steps(tmp_path / "stops")) < 100_000
    assert "a hook asked for it." in results[1].output


def test_a_worker_that_starts_after_an_early_end_takes_no_step(tmp_path: Path) -> None:
    results = run(tmp_path, 16, 1000, "repeat=1", "chief=3", "does=stops", "delay=2", "wait=30", workers=1)
    assert max(checkpoint_steps(tmp_path)) == 3
    assert "the other processes had ended it." in results[1].output


def test_a_chief_that_is_killed_after_its_servers_have_ended_trains_no_further(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=0, servers=1)
    arguments = (tmp_path, 16, None, "wait=1", "repeat=1", "chief=3", "does=stops")
    says = "Training ended at global step"
    killed, server = ended(
        [
            cluster.start(cluster.tasks[0], *arguments, f"dies_when_it_says={says}"),
            cluster.start(cluster.tasks[1], *arguments),
        ]
    )
    assert (killed.status, server.status) == (-9, 0), killed.output + server.output
    # Restarted servers, which hold nothing, must not make the chief train further.
    again = ended([cluster.start(task, *arguments) for task in cluster.tasks])
    assert [one.status for one in again] == [0, 0], again
    assert "Training had ended when this process was killed; it takes no further step." in again[0].output
    assert checkpoint_steps(tmp_path) == [0, 3]
    state = read_status(str(tmp_path))
    assert state is not None
    assert state.ended


@pytest.mark.parametrize("large", [2**40, 0])
def test_a_job_goes_on_though_each_kind_of_process_is_killed(tmp_path: Path, large: int) -> None:
    cluster = Cluster(PROGRAM, workers=1, servers=2)
    arguments = (tmp_path, 16, 1500, "repeat=1", "save=100", "slow=0.005", "dnn=decayed", f"large={large}")
    running = {task: cluster.start(task, *arguments) for task in cluster.tasks}
    told = {}
    for reached, victim in ((100, ("ps", 1)), (300, ("worker", 0)), (500, ("chief", 0)), (700, ("ps", 0))):
        wait_for_checkpoint(tmp_path, reached, running)
        running[victim].kill()
        told[victim] = running[victim].wait()
        running[victim] = cluster.start(victim, *arguments)
    results = dict(zip(cluster.tasks, ended(list(running.values())), strict=True))
    for result in results.values():
        assert result.status == 0, result.output
    assert max(checkpoint_steps(tmp_path)) == 1500
    for who in (("chief", 0), ("worker", 0)):
        assert "Training ended at global step 1500: " in results[who].output
    chief = told["chief", 0] + results["chief", 0].output
    assert "ps 1 has lost what it held; restoring it from the checkpoint of global step " in chief
    restored = re.search(r"ps 0 has lost what it held; .* of global step (\d+)\. Training was at step (\d+)\.", chief)
    assert restored is not None
    assert int(restored[1]) <= int(restored[2]) < 1500
    # The servers had gone on while the chief was away.
    assert re.search(r"Parameter servers are at global step [5-9]\d\d; going on with them", results["chief", 0].output)


def test_bounded_staleness_does_not_wait_for_workers_that_are_killed_or_stopped(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=2, servers=1)
    # The wait is shorter than the silence after which a worker is taken for hanging.
    arguments = (tmp_path, 16, 100_000, "repeat=1", "save=50", "slow=0.002", "staleness=4", "wait=3", "silence=6")
    running = {task: cluster.start(task, *arguments) for task in cluster.tasks}
    told = ("The connection to worker 0 has ended; no other worker waits for it.", "worker 1 has sent nothing for 6 s")
    for number, signal_ in ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
        wait_for_checkpoint(tmp_path, 200, running)
        os.kill(running["worker", number].pid, signal_)
        read_until(running["ps", 0], told[number])
        at = max(checkpoint_steps(tmp_path))
        wait_for_checkpoint(tmp_path, at + 200, running)
    os.kill(running["worker", 1].pid, signal.SIGCONT)
    read_until(running["ps", 0], "worker 1 is back.")
    # The others do not wait for it to catch up.
    at = max(checkpoint_steps(tmp_path))
    wait_for_checkpoint(tmp_path, at + 200, running)
    os.kill(running["chief", 0].pid, signal.SIGTERM)
    (chief,) = ended([running["chief", 0]])
    assert chief.status == 143, chief.output
    for one in (running["worker", 1], running["ps", 0]):
        one.kill()
        one.wait()


def test_a_second_chief_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=0, servers=1)
    arguments = (tmp_path, 16, 1000, "repeat=1", "save=50", "slow=0.002")
    running = {task: cluster.start(task, *arguments) for task in cluster.tasks}
    wait_for_checkpoint(tmp_path, 50, running)
    second = cluster.start(("chief", 0), *arguments)
    first, other, server = ended([running["chief", 0], second, running["ps", 0]])
    assert (first.status, other.status, server.status) == (0, 2, 0), first.output + other.output
    pid = running["chief", 0].pid
    assert re.search(rf"error: model_dir {tmp_path} is in use: .* \(process {pid} on .*\) trains in it; ", other.output)
    assert max(checkpoint_steps(tmp_path)) == 1000


def test_a_restarted_worker_reads_on_and_logs_how_much_it_reads_again(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=0, servers=1)
    server = cluster.start(("ps", 0), tmp_path, 1, None)
    (first,) = ended([cluster.start(("chief", 0), tmp_path, 1, None, "rows=300", "chief=100", "does=dies")])
    assert first.status == -9, first.output
    chief, ps = ended([cluster.start(("chief", 0), tmp_path, 1, None, "rows=300"), server])
    assert (chief.status, ps.status) == (0, 0), chief.output
    told = re.search(r"where it stood (\d+) batches ago; these are trained on again", chief.output)
    twice = int(told[1]) if told else 0
    assert twice <= 100
    assert max(checkpoint_steps(tmp_path)) == 300 + twice


def test_sigterm_to_the_chief_saves_a_checkpoint_and_the_servers_wait_for_its_restart(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=0, servers=1)
    server = cluster.start(("ps", 0), tmp_path, 16, 200, "repeat=1")
    (first,) = ended([cluster.start(("chief", 0), tmp_path, 16, 200, "repeat=1", "chief=60", "does=is preempted")])
    assert first.status == 143, first.output
    assert max(checkpoint_steps(tmp_path)) >= 60
    chief, ps = ended([cluster.start(("chief", 0), tmp_path, 16, 200, "repeat=1"), server])
    assert (chief.status, ps.status) == (0, 0), chief.output
    assert "going on with them." in chief.output
    assert max(checkpoint_steps(tmp_path)) == 200


def test_sigterm_to_all_saves_a_checkpoint_before_the_servers_end(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=1, servers=2)
    arguments = (tmp_path, 16, 3000, "repeat=1", "slow=0.002", "save=100000")
    running = {task: cluster.start(task, *arguments) for task in cluster.tasks}
    read_until(running["chief", 0], "step = 100")
    for task in (("ps", 0), ("ps", 1), ("worker", 0), ("chief", 0)):
        os.kill(running[task].pid, signal.SIGTERM)
    for result in ended(list(running.values())):
        assert result.status == 143, result.output
    assert max(checkpoint_steps(tmp_path)) >= 100


def test_ctrl_c_to_all_saves_a_checkpoint_before_the_servers_end(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=1, servers=2)
    arguments = (tmp_path, 16, 10**7, "repeat=1", "slow=0.002", "save=100000")
    running = {task: cluster.start(task, *arguments) for task in cluster.tasks}
    read_until(running["chief", 0], "step = 100")
    read_until(running["worker", 0], "step = ")
    for task in (("ps", 0), ("ps", 1), ("worker", 0), ("chief", 0)):
        os.kill(running[task].pid, signal.SIGINT)
    results = dict(zip(running, ended(list(running.values())), strict=True))
    for result in results.values():
        assert result.status == 130, result.output
        assert "Traceback" not in result.output
        assert "press Ctrl-C again to end at once." in result.output
    saved = max(checkpoint_steps(tmp_path))
    assert saved >= 100
    assert f"Training ended at global step {saved}: Ctrl-C asked for it;" in results["chief", 0].output
    assert "ps 0: shutting down on Ctrl-C; start again to go on." in results["ps", 0].output


def test_a_second_ctrl_c_ends_a_server_that_workers_still_need(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=0, servers=1)
    arguments = (tmp_path, 16, 10**7, "repeat=1", "save=100000")
    server, chief = (cluster.start(task, *arguments) for task in (("ps", 0), ("chief", 0)))
    read_until(chief, "step = 100")
    # A stopped chief can neither save nor end.
    os.kill(chief.pid, signal.SIGSTOP)
    os.kill(server.pid, signal.SIGINT)
    read_until(server, "press Ctrl-C again to end at once.")
    os.kill(server.pid, signal.SIGINT)
    (result,) = ended([server])
    chief.kill()
    chief.wait()
    assert result.status == 130, result.output
    assert "Ctrl-C asked for it" not in result.output


@pytest.mark.parametrize("large", [2**40, 0])
def test_sigterm_to_one_server_saves_what_it_holds_before_it_ends(tmp_path: Path, large: int) -> None:
    cluster = Cluster(PROGRAM, workers=1, servers=2)
    arguments = (tmp_path, 16, 4000, "repeat=1", "slow=0.002", "save=100000", f"large={large}")
    running = {task: cluster.start(task, *arguments) for task in cluster.tasks}
    read_until(running["chief", 0], "step = 100")
    os.kill(running["ps", 0].pid, signal.SIGTERM)
    (gone,) = ended([running["ps", 0]])
    assert gone.status == 143, gone.output
    saved = max(checkpoint_steps(tmp_path))
    assert saved >= 100
    running["ps", 0] = cluster.start(("ps", 0), *arguments)
    told = {
        task: one.output for task, one in zip(running, ended(list(running.values())), strict=True) if not one.status
    }
    assert len(told) == 4
    assert "ps 0 is shutting down; saving its parameters." in told["chief", 0]
    assert f"ps 0 has lost what it held; restoring it from the checkpoint of global step {saved}." in told["chief", 0]
    # The server ended as soon as that was saved, before workers took many steps that are lost with it.
    lost = re.search(r"where that stood at global step \d+, at most (\d+) batches before", told["chief", 0])
    assert lost is None or int(lost[1]) < 500
    assert max(checkpoint_steps(tmp_path)) == 4000


def test_sigterm_ends_processes_that_wait_for_a_server_or_for_the_chief(tmp_path: Path) -> None:
    alone, early = Cluster(PROGRAM, workers=0, servers=1), Cluster(PROGRAM, workers=1, servers=1)
    server = early.start(("ps", 0), tmp_path, 16, 100)
    waiting = [alone.start(("chief", 0), tmp_path, 16, 100), early.start(("worker", 0), tmp_path, 16, 100)]
    for one in waiting:
        wait_until_it_handles_sigterm(one)
        os.kill(one.pid, signal.SIGTERM)
    chief, worker = ended(waiting)
    server.kill()
    server.wait()
    assert (chief.status, worker.status) == (143, 143), chief.output + worker.output
    assert re.search(
        r"^SIGTERM came while chief 0 waited for ps 0 at \S+, which cannot be reached, so that no further checkpoint "
        "could be written; start again to go on.$",
        chief.output,
        re.M,
    )
    assert "SIGTERM came while worker 0 waited for the chief to give the parameter servers their" in worker.output


def test_sigterm_to_a_chief_without_its_server_logs_that_nothing_could_be_saved(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=0, servers=1)
    arguments = (tmp_path, 16, 100_000, "repeat=1", "slow=0.005")
    server, chief = (cluster.start(task, *arguments) for task in (("ps", 0), ("chief", 0)))
    wait_for_checkpoint(tmp_path, 0, {("chief", 0): chief})
    server.kill()
    server.wait()
    os.kill(chief.pid, signal.SIGTERM)
    (result,) = ended([chief])
    assert result.status == 143, result.output
    lost = "which cannot be reached, so that no further checkpoint could be written; start again to go on."
    assert lost in result.output


def test_sigterm_to_a_chief_that_waits_for_workers_leaves_them_the_servers(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=1, servers=1)
    server = cluster.start(("ps", 0), tmp_path, 1, None)
    # 7 and 6 batches of one.
    chief = cluster.start(("chief", 0), tmp_path, 1, None, "rows=13")
    read_until(chief, "The input has ended here; waiting for worker 0.")
    os.kill(chief.pid, signal.SIGTERM)
    (first,) = ended([chief])
    assert first.status == 143, first.output
    assert max(checkpoint_steps(tmp_path)) == 7
    results = ended([*(cluster.start(task, tmp_path, 1, None, "rows=13") for task in cluster.tasks[:2]), server])
    assert [one.status for one in results] == [0, 0, 0], [one.output for one in results]
    assert max(checkpoint_steps(tmp_path)) == 13


def test_a_worker_that_dies_with_its_server_reads_on_at_the_cursor_of_the_checkpoint(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=1, servers=1)
    arguments = (tmp_path, 16, 500, "repeat=1", "slow=0.002")
    running = {task: cluster.start(task, *arguments) for task in cluster.tasks}
    for task in (("worker", 0), ("chief", 0), ("chief", 0)):
        # There is one such line for every hundred steps.
        read_until(running[task], "loss = ")
    for victim in (("worker", 0), ("ps", 0)):
        running[victim].kill()
        running[victim].wait()
    running |= {task: cluster.start(task, *arguments) for task in (("ps", 0), ("worker", 0))}
    chief, worker, ps = ended(list(running.values()))
    assert (chief.status, worker.status, ps.status) == (0, 0, 0), chief.output + worker.output
    assert "ps 0 has lost what it held; restoring it from the checkpoint of global step 0." in chief.output
    # The checkpoint has none of the worker's batches, so none of them are trained on again.
    assert "trained on again" not in worker.output
    assert max(checkpoint_steps(tmp_path)) == 500


def test_a_server_that_dies_while_the_chief_waits_for_others_is_restored(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=1, servers=1)
    server = cluster.start(("ps", 0), tmp_path, 1, None)
    # 7 and 6 batches of one.
    chief = cluster.start(("chief", 0), tmp_path, 1, None, "rows=13")
    read_until(chief, "The input has ended here; waiting for worker 0.")
    server.kill()
    server.wait()
    others = [cluster.start(task, tmp_path, 1, None, "rows=13") for task in (("ps", 0), ("worker", 0))]
    results = ended([chief, *others])
    assert [one.status for one in results] == [0, 0, 0], [one.output for one in results]
    # The chief's steps are lost with the server.
    assert max(checkpoint_steps(tmp_path)) == 6


def test_a_server_that_no_chief_comes_to_ends_as_its_run_config_says(tmp_path: Path) -> None:
    (server,) = ended([Cluster(PROGRAM, workers=0, servers=1).start(("ps", 0), tmp_path, 1, 10, "wait=0.5")])
    assert server.status == 2
    assert "error: ps 0 waited 0.5 s (session_creation_timeout_secs) for the chief to give it its par" in server.output


def test_a_failed_training_leaves_its_parameters_as_they_were_before(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=0, servers=1)
    server = cluster.start(("ps", 0), tmp_path, 16, 40, "repeat=1")
    (chief,) = ended([cluster.start(("chief", 0), tmp_path, 16, 40, "repeat=1", "save=10", "dnn=wild")])
    assert chief.status == 2
    assert "The loss became NaN at global step" in chief.output
    server.kill()
    server.wait()
    assert all(np.isfinite(one).all() for one in variables(tmp_path).values())


def test_other_programs_directories_and_clusters_are_named(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=3, servers=2)
    turned = {**cluster.spec, "ps": cluster.spec["ps"][::-1]}
    worker_2 = json.dumps({"cluster": turned, "task": {"type": "worker", "index": 2}})
    fewer = {**cluster.spec, "worker": cluster.spec["worker"][:1]}
    of_fewer = json.dumps({"cluster": fewer, "task": {"type": "worker", "index": 0}})
    arguments = (tmp_path / "chief", 16, 100_000, "repeat=1", "slow=0.01", "dnn=fast")
    *servers, chief = (cluster.start(task, *arguments) for task in (("ps", 0), ("ps", 1), ("chief", 0)))
    try:
        wait_for_checkpoint(tmp_path / "chief", 0, {("chief", 0): chief})
        apart, differs, turns, sooner, alone_with_chief = ended(
            [
                cluster.start(("worker", 0), tmp_path / "{}", 16, 100_000),
                cluster.start(("worker", 1), tmp_path / "chief", 16, 100_000),
                cluster.start(("worker", 2), *arguments, TF_CONFIG=worker_2),
                cluster.start(("worker", 0), *arguments[:2], 200, *arguments[3:]),
                cluster.start(("worker", 0), *arguments, TF_CONFIG=of_fewer),
            ]
        )
        # The chief goes on: the refused processes have not replaced it.
        os.kill(chief.pid, signal.SIGTERM)
        (first,) = ended([chief])
        assert first.status == 143, first.output
        assert max(checkpoint_steps(tmp_path / "chief")) > 0
    finally:
        chief.kill()
        for one in servers:
            one.kill()
            one.wait()
    assert [one.status for one in (apart, differs, turns, sooner, alone_with_chief)] == [2] * 5
    assert (
        "error: worker 0 and chief 0 must be of the same cluster, but differ in how many there are: the number of "
        "processes that train is 2 on worker 0, and 4 on chief 0; start them with the same TF_CONFIG, but for its task"
    ) in alone_with_chief.output
    ends = "differ in the end of training: max_steps is 200 on worker 0, and 100000 on chief 0; start them"
    assert f"error: worker 0 and chief 0 must run the same program, but {ends}" in sooner.output
    unseen = f"error: worker 0 does not see the chief's model_dir: in its {tmp_path}/worker there is no file"
    assert unseen in apart.output
    assert (
        "error: worker 1 and chief 0 must run the same program, but differ in the optimizers: lr of Adagrad of "
        "dnn.input_from_feature_columns.input_layer.tables.0.weight and 6 more is 0.001 on worker 1, and 0.2 on chief 0"
    ) in differs.output
    place = "its place among the parameter servers is '1 of 2' there, and '0 of 2' here. Give all"
    assert f"error: ps 0 serves another training than this one: {place}" in turns.output


def test_the_servers_follow_the_last_of_two_trainings_that_have_them(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=0, servers=1)
    server = cluster.start(("ps", 0), tmp_path / "first", 16, 100)
    first = cluster.start(("chief", 0), tmp_path / "first", 16, 100_000, "repeat=1", "slow=0.002")
    wait_for_checkpoint(tmp_path / "first", 0, {("chief", 0): first})
    second = cluster.start(("chief", 0), tmp_path / "second", 16, 100, "repeat=1")
    results = ended([first, second, server])
    assert [one.status for one in results] == [2, 0, 0], [one.output for one in results]
    assert (
        "error: ps 0 refuses chief 0: It holds another training by now; see whether two programs" in results[0].output
    )
    assert "ps 0 drops its training: the chief of another training has connected." in results[2].output
    assert max(checkpoint_steps(tmp_path / "second")) == 100


def test_processes_without_the_key_end_and_the_others_train_encrypted(tmp_path: Path) -> None:
    cluster = Cluster(PROGRAM, workers=2, servers=1)
    arguments = (tmp_path / "job", 16, 100, "repeat=1")
    key, other = ({KEY_FILE: str(tmp_path / name)} for name in ("key", "other"))
    for one in (key, other):
        make_key_file(one[KEY_FILE])
    server = cluster.start(("ps", 0), *arguments, **key)
    another, none, absent = ended(
        [
            cluster.start(("chief", 0), *arguments, **other),
            cluster.start(("worker", 0), *arguments),
            cluster.start(("worker", 1), *arguments, **{KEY_FILE: str(tmp_path / "absent")}),
        ]
    )
    trained = ended([cluster.start(task, *arguments, **key) for task in cluster.tasks[:2]] + [server])
    assert [one.status for one in (another, none, absent)] == [2, 2, 2]
    assert re.search(
        r"^error: ps 0 at \S+ has another key than chief 0, whose key file is .*other; ", another.output, re.M
    )
    assert re.search(
        rf"^error: ps 0 at \S+ asks for a key, but worker 0 has none; set {KEY_FILE} to", none.output, re.M
    )
    assert f"error: the key file '{tmp_path}/absent', which {KEY_FILE} names, cannot be read: No such" in absent.output
    assert [one.status for one in trained] == [0, 0, 0], [one.output for one in trained]
    assert f"with the key in {tmp_path}/key" in trained[0].output
    assert max(checkpoint_steps(tmp_path / "job")) == 100
    assert trained[2].output.count("ps 0 has refused a peer that has another key than this server") == 1


def wait_until_it_handles_sigterm(process: Process) -> None:
    deadline = time.monotonic() + 120
    while True:
        caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.M)
        assert caught is not None
        if int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        assert time.monotonic() < deadline, process.status
        time.sleep(0.02)


def read_until(process: Process, text: str) -> None:
    assert any(text in line for line in process.stdout)


def wait_for_checkpoint(model_dir: Path, step: int, running: Mapping[tuple[str, int], Process]) -> None:
    deadline = time.monotonic() + 120
    while max(checkpoint_steps(model_dir), default=-1) < step:
        assert time.monotonic() < deadline, {task: one.status for task, one in running.items()}
        time.sleep(0.02)
