"""Mirrored training computes what one process computes, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import torch_estimator as te
from tests.cluster_jobs import Ended, Process, ended
from tests.line_jobs import checkpoint_steps
from tests.strategies.test_synchronous_training import assert_close, assert_same, read_until

PROGRAM = """
import logging, os, sys
import numpy as np
import torch
import torch_estimator as te
from torch_estimator import feature_column as fc

model_dir, batch, max_steps, *rest = sys.argv[1:]
settings = dict(one.split("=") for one in rest)
logging.basicConfig(level=logging.INFO, format="%(message)s")
count, first = int(settings.get("replicas", 1)), os.getpid()
strategy = te.distribute.MirroredStrategy([f"cpu:{number}" for number in range(count)])
config = te.RunConfig(
    log_step_count_steps=100,
    random_seed=1,
    save_checkpoints_steps=int(settings.get("save", 1000)),
    compile="compiled" in settings,
    train_distribute=strategy if "replicas" in settings else None,
    eval_distribute=strategy if "evaluated" in settings else None,
)


def broken(features, labels):
    if os.getpid() != first and settings.get("does") == "cannot read":
        raise te.errors.DataError("a.csv, line 7: something is wrong.")
    return features, labels


def input_fn(input_context, config, mode):
    context = input_context
    told = context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync
    assert told == (1, 0, count if mode == "train" else 1)
    assert (config.num_worker_replicas, config.task_id) == (1, 0)
    assert config.is_chief == (os.getpid() == first)
    rng = np.random.default_rng(0)
    color = rng.choice([f"color {number}" for number in range(50)], int(settings.get("rows", 960)))
    size = rng.normal(size=len(color)).astype(np.float32)
    data = te.data.Dataset.from_arrays({"color": color, "size": size}, (size + np.char.str_len(color) > 7.5) * 1)
    if "loader" in settings:
        rows = [(number % 7 * 1.0, number % 2) for number in range(90)]
        batches = torch.utils.data.DataLoader(rows, int(batch), shuffle=True)
        return (({"color": ["a"] * len(x), "size": x}, y) for _ in range(9) for x, y in batches)
    if "shuffle" in settings and mode == "train":
        data = data.shuffle(100)
    if mode == "train" and "once" not in settings:
        data = data.repeat()
    return data.batch(int(batch)).map(broken)


class Acts(te.Hook):
    def after_step(self, context):
        where = "copy" if os.getpid() != first else "first"
        if settings.get("who") != where or context.global_step != int(settings.get("at", 0)):
            return
        if settings["does"] == "fails":
            raise KeyError("something of the user's")
        if settings["does"] == "dies":
            os.kill(os.getpid(), 9)
        if settings["does"] == "is preempted":
            os.kill(os.getpid(), 15)
        if settings["does"] == "tells":
            print("parent:", os.getppid(), flush=True)
            logging.getLogger("torch_estimator").warning("%d percent", 5)


accumulated = te.optim.accumulate(te.optim.Adagrad(lr=0.05), 3)
OPTIMIZERS = {"accumulated": te.optim.moving_average(accumulated, 0.9, dynamic_decay=True)}
color = fc.categorical_column_with_hash_bucket("color", 100)
estimator = te.DNNLinearCombinedClassifier(
    model_dir=model_dir,
    linear_feature_columns=[color],
    dnn_feature_columns=[fc.embedding_column(color, 4), fc.numeric_column("size")],
    dnn_hidden_units=[16, 8],
    dnn_optimizer=OPTIMIZERS.get(settings.get("optimizer"), "Adagrad"),
    dnn_dropout=float(settings["dropout"]) if "dropout" in settings else None,
    config=config,
)
steps = None if max_steps == "None" else int(max_steps)
with te.errors.exit_on_user_error():
    if "evaluated" in settings:
        train = te.TrainSpec(input_fn, max_steps=steps)
        metrics, _ = te.train_and_evaluate(estimator, train, te.EvalSpec(input_fn, steps=None, throttle_secs=0))
        print(f"at the end: {metrics['global_step']}")
    for part in range(int(settings.get("parts", 1))):
        threads = torch.get_num_threads()
        estimator.train(input_fn, max_steps=steps and steps * (part + 1), hooks=[Acts()])
        assert torch.get_num_threads() == threads
        if "parts" in settings:
            estimator.evaluate(input_fn)
    print("the program went on:", os.getpid() == first)
"""


def started(*arguments: object) -> Process:
    return Process(PROGRAM, [str(one) for one in arguments], {"OMP_NUM_THREADS": "2"})


def result(*arguments: object) -> Ended:
    return ended([started(*arguments)])[0]


def run(*arguments: object) -> str:
    """Run a program, assert that it succeeds, and return its output."""
    one = result(*arguments)
    assert one.status == 0, one.output
    assert one.output.count("the program went on") == one.output.count("the program went on: True") == 1
    return one.output


def test_three_replicas_compute_what_one_does_with_their_batches_together(tmp_path: Path) -> None:
    told = run(tmp_path / "mirrored", 16, 100, "replicas=3", "shuffle=1")
    run(tmp_path / "one", 48, 100, "shuffle=1")
    assert_close(tmp_path / "mirrored", tmp_path / "one")
    assert "Training on 3 replicas: cpu" in told
    assert told.count("Saving checkpoints for 100") == 1
    assert {file.parent for file in (tmp_path / "mirrored").rglob("events.*")} == {tmp_path / "mirrored"}


def test_replicas_accumulate_gradients_and_average_weights_as_one_process_does(tmp_path: Path) -> None:
    run(tmp_path / "mirrored", 16, 20, "replicas=2", "optimizer=accumulated")
    run(tmp_path / "one", 32, 20, "optimizer=accumulated")
    assert_close(tmp_path / "mirrored", tmp_path / "one")


def test_a_program_may_train_and_evaluate_by_turns(tmp_path: Path) -> None:
    run(tmp_path / "parts", 16, 10, "replicas=2", "parts=3")
    run(tmp_path / "whole", 16, 30, "replicas=2")
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_train_and_evaluate_evaluates_in_between(tmp_path: Path) -> None:
    told = run(tmp_path, 16, 30, "replicas=2", "save=10", "evaluated=1")
    assert "at the end: 30" in told
    assert told.count("Saving dict for global step") == told.count("Evaluating on 2 replicas: cpu, cpu.") == 3


def test_every_row_is_read_once_also_where_batches_are_left_over(tmp_path: Path) -> None:
    told = run(tmp_path / "mirrored", 10, None, "replicas=2", "once=1", "rows=45")
    assert "Training ended at global step 3: the input ended." in told
    # 3 batches for the first replica, 2 for the other.
    run(tmp_path / "one", 20, None, "once=1", "rows=45")
    assert_close(tmp_path / "mirrored", tmp_path / "one")


def test_replicas_share_the_order_that_a_loader_draws(tmp_path: Path) -> None:
    run(tmp_path / "mirrored", 10, None, "replicas=2", "loader=1", "dropout=0.0")
    assert checkpoint_steps(tmp_path / "mirrored") == [0, 41]


def test_a_job_that_goes_on_is_the_same_as_one_that_was_never_interrupted(tmp_path: Path) -> None:
    settings = ("replicas=2", "shuffle=1", "dropout=0.3", "save=7")
    run(tmp_path / "whole", 16, 30, *settings)
    run(tmp_path / "parts", 16, 11, *settings)
    run(tmp_path / "parts", 16, 30, *settings)
    assert_same(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
def test_replicas_and_one_process_go_on_with_what_the_other_has_trained(tmp_path: Path) -> None:
    run(tmp_path, 16, 10, "replicas=2", "compiled=1")
    told = run(tmp_path, 16, 20, "compiled=1")
    assert "saved in a training of 2 processes, and this one is of 1: reading the input from its beginning" in told
    told = run(tmp_path, 16, 30, "replicas=2", "compiled=1")
    assert "saved in a training of 1 process, and this one is of 2: reading the input from its beginning" in told
    assert max(checkpoint_steps(tmp_path)) == 30


def test_a_killed_replica_is_named_and_the_job_resumes_from_the_checkpoint(tmp_path: Path) -> None:
    settings = ("replicas=2", "shuffle=1", "dropout=0.3", "save=7")
    killed = result(tmp_path / "killed", 16, 30, *settings, "who=copy", "does=dies", "at=18")
    assert killed.status == 143, killed.output
    assert (
        "error: replica 1 was ended by SIGKILL; start again, and training goes on from the last checkpoint."
        in killed.output
    )
    assert max(checkpoint_steps(tmp_path / "killed")) == 14
    run(tmp_path / "killed", 16, 30, *settings)
    run(tmp_path / "whole", 16, 30, *settings)
    assert_same(tmp_path / "killed", tmp_path / "whole")


def test_an_error_in_a_replica_is_raised_as_it_would_be_without(tmp_path: Path) -> None:
    unread = result(tmp_path / "unread", 16, 30, "replicas=3", "does=cannot read")
    assert unread.status == 2, unread.output
    assert unread.output.splitlines()[-1] == "error: a.csv, line 7: something is wrong."
    assert "Traceback" not in unread.output
    failed = result(tmp_path / "failed", 16, 30, "replicas=2", "who=copy", "does=fails", "at=3")
    assert failed.status == 2, failed.output
    assert "error: replica 1 has failed; its traceback is above." in failed.output
    assert 'KeyError: "something of the user\'s"' in failed.output
    first = result(tmp_path / "first", 16, 30, "replicas=3", "who=first", "does=fails", "at=3")
    assert first.status == 1, first.output
    assert first.output.count("KeyError") == 1


@pytest.mark.parametrize("who", ["copy", "first"])
def test_sigterm_to_one_has_a_checkpoint_saved(tmp_path: Path, who: str) -> None:
    one = result(tmp_path, 16, 30, "replicas=2", f"who={who}", "does=is preempted", "at=12")
    assert one.status == 143, one.output
    assert checkpoint_steps(tmp_path)[-1] in (12, 13)


def test_ctrl_c_has_a_checkpoint_saved_and_ends_all_replicas(tmp_path: Path) -> None:
    process = started(tmp_path, 16, 10**7, "replicas=2")
    read_until(process, "step = 100")
    replicas = [int(one) for one in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert replicas
    # A terminal sends it to all processes, too.
    for one in (*replicas, process.pid):
        os.kill(one, signal.SIGINT)
    (one,) = ended([process])
    assert one.status == 130, one.output
    assert "Traceback" not in one.output
    assert f"Training ended at global step {checkpoint_steps(tmp_path)[-1]}: Ctrl-C asked for it;" in one.output
    assert checkpoint_steps(tmp_path)[-1] >= 100
    assert not any(Path(f"/proc/{one}").exists() for one in replicas)


def test_no_replica_outlives_the_program(tmp_path: Path) -> None:
    process = started(tmp_path, 16, 10**7, "replicas=2", "who=copy", "does=tells", "at=3")
    try:
        while "parent:" not in (line := process.stdout.readline()):
            assert line
        assert int(line.split()[1]) == process.pid
        assert process.stdout.readline() == "replica 1: 5 percent\n"
    finally:
        process.kill()
    # The pipe ends only when no process holds its other end any more, neither the program nor the replica.
    process.wait()
    assert process.status == -signal.SIGKILL


def test_inputs_and_directories_in_memory_work() -> None:
    rows = [(torch.full((2, 3), float(number)), torch.full((2, 1), float(number))) for number in range(8)]
    parent, steps = os.getpid(), []

    class Noted(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            steps.append(context.global_step)

    estimator = te.Estimator.from_module(
        torch.nn.Linear(3, 1),
        loss=torch.nn.MSELoss(),
        optimizer="SGD",
        model_dir="memory://mirrored",
        config=te.RunConfig(train_distribute=te.distribute.MirroredStrategy(replicas=2), compile=False),
    )
    estimator.train(lambda: iter(rows), hooks=[Noted()])
    assert steps == [1, 2, 3, 4]
    assert os.getpid() == parent
    assert estimator.evaluate(lambda: iter(rows))["global_step"] == 4


def test_a_cluster_of_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = te.distribute.MirroredStrategy()
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": task}))
    with pytest.raises(
        ValueError, match=r"^train_distribute is a MirroredStrategy, .* a cluster of 2 processes; use a"
    ):
        te.RunConfig(train_distribute=strategy)
    # A cluster of a chief and an evaluator trains in one process.
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"chief": ["a:1"]}, "task": task}))
    assert te.RunConfig(train_distribute=strategy).is_chief


def test_a_strategy_has_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = te.distribute.MirroredStrategy
    assert strategy(["/cpu:0", "CPU:1", "/device:CPU:2"]).num_replicas_in_sync == 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert strategy().torch_devices() == ("cpu",)
    assert strategy(replicas=2).torch_devices() == ("cpu", "cpu")
    with pytest.raises(ValueError, match=r"^MirroredStrategy wants gpu:0, but this machine has no GPU; name others"):
        strategy(["gpu:0"]).torch_devices()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert strategy().torch_devices() == ("cuda:0", "cuda:1")
    with pytest.raises(ValueError, match=r"^MirroredStrategy wants gpu:2, but this machine has 2 GPUs; name others"):
        strategy(replicas=3).torch_devices()


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ({"devices": []}, ValueError, "devices must name at least one device, but got none"),
        ({"devices": "cpu:0"}, TypeError, r"devices must be a list such as \['gpu:0', 'gpu:1'\], but got 'cpu:0'"),
        ({"devices": ["tpu:0"]}, ValueError, "devices must be named like 'gpu:0' or 'cpu:0', but one is 'tpu:0'"),
        ({"devices": ["gpu:0", "/gpu:0"]}, ValueError, "devices must differ from each other, but got"),
        ({"devices": ["gpu:0", "cpu:0"]}, ValueError, "devices must be all GPUs or all CPUs, but got"),
        ({"replicas": 0}, ValueError, "replicas must be positive, but got 0"),
        ({"replicas": "2"}, TypeError, "replicas must be a whole number, but got '2'"),
        ({"devices": ["cpu:0"], "replicas": 1}, ValueError, "Give devices or replicas, not both, but got"),
    ],
)
def test_wrong_devices_are_refused(arguments: dict[str, object], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=f"^{told}"):
        te.distribute.MirroredStrategy(**arguments)  # type: ignore[arg-type]


def test_batches_are_divided_before_they_are_mapped() -> None:
    seen: list[int] = []

    def noted(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.extend(features["x"].tolist())
        return features

    data = te.data.Dataset.from_arrays({"x": np.arange(10)}).batch(2).map(noted).prefetch(2)
    assert [features["x"].tolist() for features in data.divided(2, 1)] == [[2, 3], [6, 7]]
    assert seen == [2, 3, 6, 7]


OWN = """
import logging, sys
import torch
import torch_estimator as te

logging.basicConfig(level=logging.INFO, format="%(message)s")
count, replicas = int(sys.argv[2]), int(sys.argv[3])
strategy = te.distribute.MirroredStrategy(["cpu:0", "cpu:1"]) if replicas > 1 else None
module = torch.nn.Sequential(torch.nn.Embedding(count, 2), torch.nn.Flatten(), torch.nn.Linear(2, 1))
config = te.RunConfig(compile=False, train_distribute=strategy)
loss = torch.nn.MSELoss()
estimator = te.Estimator.from_module(module, loss=loss, optimizer="SGD", model_dir=sys.argv[1], config=config)
estimator.train(lambda: ((torch.tensor([[1], [2]]), torch.ones(2, 1)) for _ in range(4)))
print("the program went on: True")
"""


@pytest.mark.parametrize(
    ("count", "replicas", "is_told"), [(500_001, 2, True), (500_000, 2, False), (500_001, 1, False)]
)
def test_a_big_table_that_is_exchanged_whole_is_named(tmp_path: Path, count: int, replicas: int, is_told: bool) -> None:
    (one,) = ended([Process(OWN, [str(tmp_path), str(count), str(replicas)], {"OMP_NUM_THREADS": "2"})])
    assert one.status == 0, one.output
    sentence = (
        "All 1000002 numbers of 0, which is a torch.nn.Embedding, are exchanged in every step; of an embedding_column"
    )
    assert one.output.count(sentence) == int(is_told)


OF_THE_CHIEF = """
import os, sys
import torch
import torch_estimator as te


class Tells(te.Hook):
    def __init__(self, name):
        self.name = name

    def end(self, context):
        # `print` would write the end of the line apart, and the other process could come between.
        os.write(1, f"{self.name} in {'the first' if os.getpid() == first else 'a copy'}\\n".encode())


def model_fn(mode):
    return te.EstimatorSpec(
        mode=mode,
        module=torch.nn.Linear(1, 1),
        loss=torch.nn.MSELoss(),
        optimizer=te.optim.SGD(lr=0.1),
        training_hooks=[Tells("of all")],
        training_chief_hooks=[Tells("of the chief")],
    )


first = os.getpid()
config = te.RunConfig(sys.argv[1], train_distribute=te.distribute.MirroredStrategy(["cpu:0", "cpu:1"]))
rows = torch.ones(8, 1).numpy()
te.Estimator(model_fn, config=config).train(lambda: te.data.Dataset.from_arrays(rows, rows).batch(4))
"""


def test_hooks_of_the_chief_are_called_in_the_chief_only(tmp_path: Path) -> None:
    (one,) = ended([Process(OF_THE_CHIEF, [str(tmp_path)], {})])
    assert one.status == 0, one.output
    told = [line for line in one.output.splitlines() if line.startswith("of ")]
    assert sorted(told) == ["of all in a copy", "of all in the first", "of the chief in the first"]
