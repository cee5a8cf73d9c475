"""Training with compiled steps gives the same results as in Python, whatever happens in between."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.line_jobs import assert_same_variables, variables
from torch_estimator.code_cache import DIGESTS, CodeCache
from torch_estimator.compile import compilation, compiled_runner, policy
from torch_estimator.compile.building import DESCRIPTION, STEP_LIBRARY
from torch_estimator.compile.compilation import Compilation
from torch_estimator.compile.step_compiler import StepCompiler


class Network(nn.Module):
    """A module with an embedding, dropout, and a factor that hooks may set."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.drop = nn.Dropout(0.25)
        self.out = nn.Linear(4, 1)
        self.factor = 1.0

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        rows = torch.cat([self.embedding(features["id"]), features["x"]], 1)
        return self.out(self.drop(rows)) * self.factor


def scheduled_adam(named: Any) -> Any:
    optimizer = torch.optim.Adam([parameter for _, parameter in named], lr=0.01, weight_decay=0.001)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=1000)


def data(*, bad: int | None = None, infinite: int | None = None) -> te.data.Dataset:
    """Return 18 rows in batches of 4, the last one partial.

    Args:
        bad: Number of a row whose id is out of range.
        infinite: Number of a row whose loss is infinite.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(18, 1)).astype(np.float32)
    ids = rng.integers(0, 7, 18)
    y = (x[:, 0] + ids).astype(np.float32)
    if bad is not None:
        ids[bad] = 7
    if infinite is not None:
        x[infinite] = 1e30
    return te.data.Dataset.from_arrays({"x": x, "id": ids}, y).batch(4)


def job(model_dir: Path, compile: Any, module: type[nn.Module] = Network, **settings: Any) -> te.Estimator:
    torch.manual_seed(0)
    return te.Estimator.from_module(
        module(),
        head=te.RegressionHead(),
        optimizer=scheduled_adam,
        model_dir=str(model_dir),
        config=te.RunConfig(random_seed=5, compile=compile, **settings),
    )


@pytest.fixture(autouse=True)
def _one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let all tests share a cache, so that only the first of them has to compile."""
    cache = tmp_path_factory.getbasetemp() / "compiled steps"
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(cache))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``"auto"`` compile at once."""
    monkeypatch.setattr(compiled_runner, "is_worth_compiling_in_background", lambda *_: True)


def assert_close(one: te.Estimator, other: te.Estimator) -> None:
    expected = variables(other)
    for name, value in variables(one).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def graphs_of_this_process() -> int:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo.counters["stats"]["unique_graphs"] if dynamo is not None else 0


def test_a_schedule_and_a_partial_batch_compile_once_and_resume_bit_for_bit(
    tmp_path: Path, compilations: Callable[[], list[int]]
) -> None:
    before = graphs_of_this_process()
    eager = job(tmp_path / "eager", False).train(lambda: data().repeat(), steps=100)
    compiled = job(tmp_path / "compiled", True).train(lambda: data().repeat(), steps=100)
    assert compilations() in ([4], [])
    assert_close(compiled, eager)
    for steps_taken in (1, 36, 3, 60):
        job(tmp_path / "resumed", True).train(lambda: data().repeat(), steps=steps_taken)
    assert_same_variables(job(tmp_path / "resumed", True), compiled)
    # The step is found in the cache, and was never traced in this process.
    assert compilations() == []
    assert graphs_of_this_process() == before


@pytest.mark.usefixtures("at_once")
def test_auto_trains_in_python_until_the_step_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    is_over = Compilation.is_over
    asked: list[int] = []

    def is_over_at_last(self: Compilation) -> bool:
        asked.append(1)
        if len(asked) == 20:
            self.wait()
        return len(asked) >= 20 and is_over(self)

    monkeypatch.setattr(Compilation, "is_over", is_over_at_last)
    monkeypatch.setattr(Compilation, "wait", lambda self: [time.sleep(0.05) for _ in iter(lambda: is_over(self), True)])
    auto = job(tmp_path / "auto", "auto").train(lambda: data().repeat(), steps=100)
    messages = [message for message in caplog.messages if "training step" in message]
    assert messages == [
        "Compiling the training step for batches of 4; training goes on in Python.",
        "Compiled the training step for batches of 4.",
    ]
    assert len(asked) == 20
    assert_close(auto, job(tmp_path / "eager", False).train(lambda: data().repeat(), steps=100))
    caplog.clear()
    again = job(tmp_path / "again", "auto").train(lambda: data().repeat(), steps=100)
    assert not [record for record in caplog.records if "Compiling" in record.msg]
    assert_close(again, auto)


class Counting(Network):
    """A network that counts how often it was trained on each id, in whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(7, dtype=torch.int64))

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        if self.training:
            self.seen.index_add_(0, features["id"], torch.ones_like(features["id"]))
        return super().forward(features)


@pytest.mark.usefixtures("at_once")
def test_no_row_is_lost_or_repeated_where_a_training_fails_before_and_after_the_compiled_step_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: Callable[[], list[int]]
) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    settings: dict[str, Any] = {"module": Counting, "save_checkpoints_steps": 5}
    eager = job(tmp_path / "eager", False, **settings).train(lambda: data().repeat(), steps=80)
    is_over, asked = Compilation.is_over, itertools.count(1)

    def is_over_at_last(self: Compilation) -> bool:
        late = next(asked) >= 20
        while late and not is_over(self):
            time.sleep(0.05)
        return late

    monkeypatch.setattr(Compilation, "is_over", is_over_at_last)
    compiled = []
    for fails_at in (8, 43, 61):
        with pytest.raises(KeyError):
            job(tmp_path / "auto", "auto", **settings).train(
                lambda: data().repeat(), max_steps=80, hooks=[CutShort(fail, fails_at)]
            )
        compiled.append(compilations())
    auto = job(tmp_path / "auto", "auto", **settings).train(lambda: data().repeat(), max_steps=80)
    # The first run ends before, the second one after its step was compiled, and the others find it in the cache.
    assert compiled == [[], [4], []]
    np.testing.assert_array_equal(auto.get_variable_value("seen"), eager.get_variable_value("seen"))
    assert_close(auto, eager)


def test_short_jobs_are_not_compiled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    job(tmp_path, "auto", save_summary_steps=None).train(lambda: data().map(lambda *row: row).repeat(), steps=30)
    assert not [record for record in caplog.records if "ompil" in record.msg]


def test_a_training_with_nothing_to_compile_looks_at_few_of_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    block_of = compiled_runner.block_of
    monkeypatch.setattr(compiled_runner, "block_of", lambda batches: looks.append(1) or block_of(batches))
    monkeypatch.setattr(compiled_runner, "_REST_SECS", 1000.0)
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    auto = job(tmp_path / "auto", "auto").train(lambda: data().repeat(), steps=30)
    # The first step is taken before the optimizer of `torch.optim` has its state, and is not counted.
    assert len(looks) == 2
    assert_same_variables(auto, job(tmp_path / "eager", False).train(lambda: data().repeat(), steps=30))


@pytest.mark.parametrize("often", [False, True])
def test_a_change_by_a_hook_takes_effect(
    tmp_path: Path, compilations: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch, often: bool
) -> None:
    class Factor(te.Hook):
        first_step, every_n_steps = (1, 1) if often else (20, 1000)

        def after_step(self, context: te.RunContext) -> None:
            if context.global_step == 20:
                context.module.factor = 2.0  # type: ignore[union-attr,assignment]

    recomputed: list[int] = []
    is_outdated = StepCompiler.is_outdated
    monkeypatch.setattr(StepCompiler, "is_outdated", lambda self: recomputed.append(1) or is_outdated(self))
    eager, compiled = (
        job(tmp_path / str(compile), compile).train(lambda: data().repeat(), steps=40, hooks=[Factor()])
        for compile in (False, True)
    )
    # Both steps, before and after the change, may be in the cache already.
    assert len(compilations()) <= 2
    assert_close(compiled, eager)
    # Recomputing the cache key takes as long as twenty steps.
    assert len(recomputed) < 20


def other_memory(module: nn.Module) -> None:
    """Move all parameters, and spoil the memory that they were in."""
    for parameter in module.parameters():
        old = parameter.data
        parameter.data = old.clone()
        old.fill_(float("nan"))


def evaluation(module: nn.Module) -> None:
    module.eval()
    with torch.no_grad():
        module({"id": torch.zeros(64, dtype=torch.int64), "x": torch.ones(64, 1)})
    module.train()


def restored(module: nn.Module) -> None:
    module.load_state_dict({name: value * 0.5 for name, value in module.state_dict().items()})


BETWEEN: dict[str, Callable[[nn.Module], object]] = {
    "other memory": other_memory,
    "another type and back": lambda module: module.double().float(),
    "other weights": restored,
    "an evaluation": evaluation,
}


@pytest.mark.parametrize("act", BETWEEN.values(), ids=BETWEEN.keys())
def test_what_happens_to_tensors_between_two_compiled_steps_takes_effect(
    tmp_path: Path, compilations: Callable[[], list[int]], act: Callable[[nn.Module], object]
) -> None:
    class Acting(te.Hook):
        first_step, every_n_steps = 7, 7

        def after_step(self, context: te.RunContext) -> None:
            act(context.module)  # type: ignore[arg-type]

    eager, compiled = (
        job(tmp_path / str(compile), compile).train(lambda: data().repeat(), steps=40, hooks=[Acting()])
        for compile in (False, True)
    )
    assert len(compilations()) <= 1
    assert_close(compiled, eager)


@pytest.mark.runs_in_python
def test_a_parameter_of_another_type_is_not_read_as_one_of_the_old_type(tmp_path: Path) -> None:
    class Narrowing(te.Hook):
        first_step, every_n_steps = 10, 1000

        def after_step(self, context: te.RunContext) -> None:
            context.module.half()  # type: ignore[union-attr]

    # Half of the memory is left. A compiled step would read beyond it, and compute something.
    with pytest.raises(RuntimeError, match="dtype"):
        job(tmp_path, True).train(lambda: data().repeat(), steps=40, hooks=[Narrowing()])


@pytest.mark.runs_in_python
def test_a_list_that_a_hook_fills_is_not_searched_at_every_step(tmp_path: Path) -> None:
    class Collected(list[float]):
        looks = 0

        def __iter__(self) -> Iterator[float]:
            self.looks += 1
            return super().__iter__()

    class Losses(te.Hook):
        def __init__(self) -> None:
            self.losses = Collected()

        def after_step(self, context: te.RunContext) -> None:
            self.losses.append(context.loss)

    hook = Losses()
    job(tmp_path, True).train(lambda: data().repeat(), steps=40, hooks=[hook])
    assert (len(hook.losses), hook.losses.looks <= 1) == (40, True)


@pytest.mark.runs_in_python
def test_changes_by_a_listener_take_effect_and_frequent_ones_end_compiling(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(name: str, compile: bool) -> te.Estimator:
        estimator = job(tmp_path / name, compile, save_checkpoints_steps=4)

        class Factor(te.CheckpointSaverListener):
            def after_save(self, global_step: int) -> None:
                trained_module.factor = 1.0 + global_step / 10

        class Module(te.Hook):
            every_n_steps = None

            def begin(self, context: te.RunContext) -> None:
                nonlocal trained_module
                trained_module = context.module

        trained_module: Any = None
        return estimator.train(lambda: data().repeat(), steps=12, hooks=[Module()], saving_listeners=[Factor()])

    monkeypatch.setattr(compiled_runner, "_MOST_CHANGES", 1)
    compiled = trained("compiled", True)
    logged = [record.getMessage() for record in caplog.records if "not compiled" in record.msg]
    assert logged == [
        "The training step is not compiled, because the step or a hook changes something in the model or its optimizer "
        "again and again, such as a count or a flag (a buffer may change); training goes on without."
    ]
    assert_close(compiled, trained("eager", False))


def test_training_stops_at_the_very_step_of_an_infinite_loss(tmp_path: Path) -> None:
    job(tmp_path, True).train(lambda: data().repeat(), steps=5)
    with pytest.raises(te.errors.NanLossDuringTrainingError, match="The loss became infinite at global step 8;"):
        job(tmp_path, True, save_summary_steps=None).train(lambda: data(infinite=9).repeat(), steps=40)


@pytest.mark.parametrize("row", [9, 0])
def test_a_failing_compiled_step_raises_the_error_of_the_step_in_python(tmp_path: Path, row: int) -> None:
    job(tmp_path, True).train(lambda: data().repeat(), steps=1)
    with pytest.raises(IndexError) as raised:
        job(tmp_path, True, save_summary_steps=None).train(lambda: data(bad=row).repeat(), steps=40)
    assert any(re.search("module Network failed in mode train", note) for note in raised.value.__notes__)


READINGS: dict[str, tuple[Callable[[Tensor], float], str]] = {
    "float": (
        lambda x: float(x.abs().max() < 100),
        "it turns a tensor into a Python number (item(), float(), bool() or an if on a tensor)",
    ),
    "numpy": (lambda x: 1.0 + x.numpy().mean(), "it reads a tensor's numbers in Python (numpy())"),
    "asarray": (lambda x: 1.0 + np.asarray(x).mean(), "it reads a tensor's numbers in Python (array())"),
    "tolist": (lambda x: x[:, 0].tolist()[0], "it reads a tensor's numbers in Python (tolist())"),
}


@pytest.mark.runs_in_python
@pytest.mark.parametrize("reading", READINGS)
def test_a_step_that_cannot_be_compiled_runs_in_python_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reading: str
) -> None:
    read, why = READINGS[reading]

    class Reading(Network):
        def forward(self, features: dict[str, Tensor]) -> Tensor:
            return super().forward(features) * read(features["x"])

    estimator = te.Estimator.from_module(
        Reading(),
        head=te.RegressionHead(),
        optimizer=te.optim.Adagrad(lr=0.1),
        model_dir=str(tmp_path),
        config=te.RunConfig(compile=True),
    )
    estimator.train(lambda: data().repeat(), steps=20)
    (warning,) = [record.getMessage() for record in caplog.records if "not compiled" in record.msg]
    assert warning == f"The training step is not compiled, because {why}; training goes on without."
    assert int(estimator.get_variable_value("global_step")) == 20


@pytest.mark.runs_in_python
def test_a_setting_that_is_a_tensor_is_not_moved_ahead_by_a_schedule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def scheduled(named: Any) -> Any:
        optimizer = te.optim.Adagrad([parameter for _, parameter in named], lr=torch.tensor(0.1))
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)

    def trained(compile: bool) -> te.Estimator:
        torch.manual_seed(0)
        config = te.RunConfig(compile=compile, random_seed=5)
        estimator = te.Estimator.from_module(
            Network(),
            head=te.RegressionHead(),
            optimizer=scheduled,
            model_dir=str(tmp_path / str(compile)),
            config=config,
        )
        return estimator.train(lambda: data().repeat(), steps=20)

    assert_close(trained(True), trained(False))
    (warning,) = [record.getMessage() for record in caplog.records if "not compiled" in record.msg]
    assert "because a schedule moves a setting of an optimizer that is a tensor" in warning


class Named(nn.Module):
    """Has one layer for each feature, chosen by the feature's name."""

    def __init__(self) -> None:
        super().__init__()
        self.of = nn.ModuleDict({name: nn.Linear(1, 1) for name in ("a", "b")})

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return self.of["a"](features["a"]) - 3 * self.of["b"](features["b"])


@pytest.mark.parametrize("within", [False, True])
def test_features_are_identified_by_their_names_in_any_order(tmp_path: Path, within: bool) -> None:
    x = np.random.default_rng(0).normal(size=(2, 12, 1)).astype(np.float32)

    def rows(*orders: str) -> Any:
        for order in orders:
            features = {name: x["ab".index(name)] for name in order}
            yield features, (x[0] + 10 * x[1])[:, 0]

    def trained(name: str, compile: Any, *orders: str) -> te.Estimator:
        torch.manual_seed(0)
        estimator = te.Estimator.from_module(
            Named(),
            head=te.RegressionHead(),
            optimizer=te.optim.SGD(lr=0.05),
            model_dir=str(tmp_path / name),
            config=te.RunConfig(random_seed=5, compile=compile, save_summary_steps=None),
        )
        return estimator.train(lambda: te.data.Dataset.from_iterable(lambda: rows(*orders)), steps=len(orders))

    orders = ["ab", "ba"] * 8 if within else ["ba"] * 16
    if not within:
        # The step that this leaves in the cache does not fit the next training.
        trained("before", True, *["ab"] * 16)
    assert_close(trained("compiled", True, *orders), trained("eager", False, *orders))


@pytest.mark.runs_in_python
@pytest.mark.parametrize(("compile", "worth", "logged"), [(True, False, 1), ("auto", True, 1), ("auto", False, 0)])
def test_batches_with_strings_warn_once_compiling_would_be_worth_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    compile: Any,
    worth: bool,
    logged: int,
) -> None:
    monkeypatch.setattr(compiled_runner, "is_worth_compiling_in_background", lambda *_: worth)
    rows = {"x": np.ones((4, 1), np.float32), "id": np.arange(4), "name": np.array(["a", "b", "c", "d"])}
    named = te.data.Dataset.from_arrays(rows, np.ones(4, np.float32)).batch(2).repeat()
    job(tmp_path, compile).train(lambda: named, steps=20)
    warnings = [record.getMessage() for record in caplog.records if "not compiled" in record.msg]
    why = "a batch holds something other than tensors, such as strings; training goes on without."
    assert warnings == [f"The training step is not compiled, because {why}"] * logged


@pytest.mark.runs_in_python
def test_without_a_compiler_training_goes_on_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    job(tmp_path / "model", True).train(lambda: data().repeat(), steps=3)
    (logged,) = [record.getMessage() for record in caplog.records if "not compiled" in record.msg]
    why = "there is no C++ compiler (install g++, or name another in CXX)"
    assert logged == f"The training step is not compiled, because {why}; training goes on without."


@pytest.mark.usefixtures("at_once")
def test_a_compilation_ends_with_the_training_if_nothing_can_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", os.devnull)
    monkeypatch.setattr(compilation, "trace", lambda *_: time.sleep(600))
    job(tmp_path, "auto").train(lambda: data().repeat(), steps=10)
    logged = [message for message in caplog.messages if "Compil" in message or "compiling" in message]
    assert logged == [
        "Compiled steps are not kept for later runs: Not a directory (/dev/null/steps); TORCH_ESTIMATOR_CACHE_DIR may "
        "name another directory.",
        "Compiling the training step for batches of 4; training goes on in Python.",
    ]


def test_a_damaged_step_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: Callable[[], list[int]]
) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    job(tmp_path / "model", True).train(lambda: data().repeat(), steps=3)
    assert compilations() == [4]
    (folder,) = (tmp_path / "cache" / "steps").glob("[!.]*")
    assert {one.name for one in folder.iterdir()} == {DESCRIPTION, DIGESTS, STEP_LIBRARY}
    whole = (folder / STEP_LIBRARY).read_bytes()
    damaged = whole[: len(whole) // 2]
    # This process has loaded the old file, so that one must not be changed.
    (folder / STEP_LIBRARY).unlink()
    (folder / STEP_LIBRARY).write_bytes(damaged)
    job(tmp_path / "two", True).train(lambda: data().repeat(), steps=3)
    assert compilations() == [4]
    assert CodeCache().find(folder.name) == folder


def test_the_step_of_another_compiling_process_is_used_once_it_is_ready(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    compilations: Callable[[], list[int]],
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    first = job(tmp_path / "first", True).train(lambda: data().repeat(), steps=40)
    compilations()
    find = CodeCache.find
    absent = [None] * 3
    monkeypatch.setattr(CodeCache, "find", lambda self, key: absent.pop() if absent else find(self, key))
    monkeypatch.setattr(CodeCache, "reserve", lambda self, key: None)
    monkeypatch.setattr(compiled_runner, "_LOOK_UP_EVERY_SECS", 0.01)
    caplog.clear()
    second = job(tmp_path / "second", True).train(lambda: data().repeat(), steps=40)
    logged = [record.getMessage() for record in caplog.records if "compiling" in record.getMessage()]
    assert logged == ["Another process is compiling the training step for batches of 4; this takes some seconds."]
    assert compilations() == []
    assert_same_variables(second, first)


def test_a_step_that_another_process_finishes_after_the_search_for_it_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: Callable[[], list[int]]
) -> None:
    first = job(tmp_path / "first", True).train(lambda: data().repeat(), steps=40)
    compilations()
    find, absent = CodeCache.find, [None]
    monkeypatch.setattr(CodeCache, "find", lambda self, key: absent.pop() if absent else find(self, key))
    second = job(tmp_path / "second", True).train(lambda: data().repeat(), steps=40)
    assert (compilations(), absent) == ([], [])
    assert_same_variables(second, first)


def test_a_stuck_compiler_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: Callable[[], list[int]]
) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compilation, "_CHECK_SECS", 0.1)
    monkeypatch.setattr(compilation, "_STUCK_CHECKS", 20)
    trace, reached = compilation.trace, tmp_path / "reached"

    def wait_the_first_time(*args: Any) -> Any:
        if not reached.exists():
            reached.touch()
            threading.Event().wait()
        return trace(*args)

    monkeypatch.setattr(compilation, "trace", wait_the_first_time)
    job(tmp_path / "model", True).train(lambda: data().repeat(), steps=3)
    assert reached.exists()
    assert compilations() == [4]


@pytest.mark.usefixtures("at_once")
def test_a_training_that_ends_first_leaves_a_complete_step_for_the_next_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    compilations: Callable[[], list[int]],
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    job(tmp_path / "first", "auto").train(lambda: data().repeat(), steps=3)
    assert "The training ended before its step was compiled; compiling goes on for later runs." in caplog.messages
    wait_for_the_compiler(tmp_path / "cache")
    (entry,) = (one for one in (tmp_path / "cache" / "steps").iterdir() if not one.name.endswith(".lock"))
    assert CodeCache().find(entry.name) == entry
    assert compilations() == []
    job(tmp_path / "second", True).train(lambda: data().repeat(), steps=3)
    assert not [message for message in caplog.messages if message.startswith("Compiling")]


def wait_for_the_compiler(cache: Path) -> None:
    """Wait until no process holds a lock of a cache."""
    for path in (cache / "steps").glob(".*.lock"):
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)


class CutShort(te.Hook):
    """Calls a function after the third step, or after another one."""

    every_n_steps = 1

    def __init__(self, act: Callable[[], object], step: int = 3) -> None:
        self.act = act
        self.step = step

    def after_step(self, context: te.RunContext) -> None:
        if context.global_step == self.step:
            self.act()


def fail() -> None:
    raise KeyError("of the user")


def interrupt() -> None:
    raise KeyboardInterrupt


def ask_to_go() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("act", [fail, interrupt, ask_to_go])
def test_an_interrupted_training_leaves_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, act: Callable[[], None]
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compilation, "trace", lambda *_: time.sleep(600))
    with pytest.raises((KeyError, KeyboardInterrupt, SystemExit)):
        job(tmp_path / "model", "auto").train(lambda: data().repeat(), steps=1000, hooks=[CutShort(act)])
    assert [message for message in caplog.messages if message.startswith("Compiling")]
    # The compiler ends at once; otherwise this would wait for ten minutes.
    wait_for_the_compiler(tmp_path / "cache")
    assert [one.suffix for one in (tmp_path / "cache" / "steps").iterdir()] == [".lock"]


COMPILES_FOR_EVER = """
import sys, time
from pathlib import Path
from tests.compile.test_compiled_training import data, job
from torch_estimator.compile import compilation
compilation.build = lambda *_, **settings: (settings["work"] / "half").touch() or time.sleep(600)
job(Path(sys.argv[1]), True).train(lambda: data().repeat(), steps=3)
"""


def test_a_training_and_its_compiler_that_are_killed_leave_no_process_and_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    steps = tmp_path / "cache" / "steps"
    (tmp_path / "temporary").mkdir()
    training = subprocess.Popen(
        [sys.executable, "-c", COMPILES_FOR_EVER, str(tmp_path / "model")],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary"), "PYTHONPATH": str(Path.cwd())},
    )
    while not list((tmp_path / "temporary").glob("*/half")):
        assert training.poll() is None
        time.sleep(0.05)
    (compiler,) = (int(one) for one in Path(f"/proc/{training.pid}/task/{training.pid}/children").read_text().split())
    training.kill()
    training.wait()
    # The compiler goes on without the training, for later runs, until it is killed, too.
    (lock,) = steps.glob(".*.lock")
    key = lock.name.removeprefix(".").removesuffix(".lock")
    assert CodeCache().reserve(key) is None
    os.killpg(compiler, signal.SIGKILL)
    wait_for_the_compiler(tmp_path / "cache")
    assert CodeCache().find(key) is None
    assert [one for one in steps.iterdir() if one.name.startswith(".building")]
    reserved = CodeCache().reserve(key)
    assert reserved is not None
    reserved.close()
    assert [*steps.iterdir()] == [lock]


@pytest.mark.runs_in_python
@pytest.mark.parametrize(
    ("measure_secs", "why"),
    [
        (0.0, "this process has one core"),
        # Too short for anybody to miss it.
        (1000.0, None),
    ],
)
def test_a_training_on_one_core_says_once_at_its_end_that_it_was_not_compiled(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    measure_secs: float,
    why: str | None,
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(policy, "_MEASURE_STEPS_SECS", measure_secs)
    job(tmp_path / "model", "auto").train(lambda: data().repeat(), steps=8)
    lines = [message for message in caplog.messages if "compile" in message.lower()]
    what = "the training step for batches of 4"
    line = f"Did not compile {what}, because {why}; RunConfig(compile=True) compiles it all the same."
    assert lines == ([line] if why else [])
    caplog.clear()
    with pytest.raises(ZeroDivisionError):
        job(tmp_path / "fails", "auto").train(lambda: data().repeat(), steps=8, hooks=[Failing()])
    assert "Did not compile" not in caplog.text


class Failing(te.Hook):
    def after_step(self, context: te.RunContext) -> None:
        if context.global_step == 5:
            raise ZeroDivisionError


@pytest.mark.runs_in_python
def test_a_step_that_changes_itself_is_refused_once_also_beside_a_hook(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Counting(Network):
        calls = 0

        def forward(self, features: dict[str, Tensor]) -> Tensor:
            self.calls += 1
            return super().forward(features)

    class Looking(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            pass

    job(tmp_path, True, Counting).train(lambda: data().repeat(), steps=20, hooks=[Looking()])
    (told,) = [one for one in caplog.messages if "compiled" in one]
    assert "because it changes something in the model that is no tensor" in told
