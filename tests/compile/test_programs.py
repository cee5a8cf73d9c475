"""Programs whose step depends on something that is no tensor: constant during a training, or changing by itself."""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.line_jobs import variables

REFUSED = "The training step is not compiled, because "
STEPS = 20

config = types.ModuleType("config_of_programs")
config.FACTOR = 1.0  # type: ignore[attr-defined]


class OfClass:
    factor = 1.0


class Product(nn.Module):
    """Multiplies by numbers from six places outside of the model."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.1))
        self.file, self.database = str(folder / "factor.txt"), str(folder / "factors.db")

    def forward(self, x: Tensor) -> Tensor:
        with sqlite3.connect(self.database) as connection:
            ((of_row,),) = connection.execute("SELECT value FROM factors").fetchall()
        connection.close()
        factor = float(Path(self.file).read_text()) * float(os.environ["FACTOR_OF_PROGRAMS"]) * of_row
        return (x * self.weight).sum(1) * factor * config.FACTOR * OfClass.factor * float(sys.argv[-1])


Set = Callable[[str, float], None]
PLACES = ["a file", "an environment variable", "a global", "a class attribute", "a database row", "sys.argv"]


@pytest.fixture
def set_factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Set:
    """Return a function that changes the number in one place; all are 1 at first."""
    monkeypatch.setattr(sys, "argv", [*sys.argv, "1.0"])

    def set_factor(place: str, value: float) -> None:
        if place == "a file":
            (tmp_path / "factor.txt").write_text(str(value))
        elif place == "an environment variable":
            monkeypatch.setenv("FACTOR_OF_PROGRAMS", str(value))
        elif place == "a global":
            monkeypatch.setattr(config, "FACTOR", value)
        elif place == "a class attribute":
            monkeypatch.setattr(OfClass, "factor", value)
        elif place == "a database row":
            with sqlite3.connect(tmp_path / "factors.db") as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS factors (value REAL)")
                connection.execute("DELETE FROM factors")
                connection.execute("INSERT INTO factors VALUES (?)", (value,))
            connection.close()
        else:
            sys.argv[-1] = str(value)

    for place in PLACES:
        set_factor(place, 1.0)
    return set_factor


def data() -> te.data.Dataset:
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    return te.data.Dataset.from_arrays(x, x.sum(1)).batch(16).repeat()


class Compiled(te.Hook):
    """Counts the steps that are taken by a compiled step."""

    every_n_steps = 1

    def __init__(self) -> None:
        self.count = 0

    def after_step(self, context: te.RunContext) -> None:
        self.count += context.compiled


def trained(model_dir: Path, module: nn.Module, compile: bool, max_steps: int = STEPS) -> tuple[Any, int]:
    """Return the variables after training to a step, and how many of the steps were compiled."""
    hook = Compiled()
    job = te.Estimator.from_module(
        module,
        loss=nn.MSELoss(),
        optimizer="SGD",
        model_dir=str(model_dir),
        config=te.RunConfig(random_seed=5, compile=compile),
    )
    job.train(data, max_steps=max_steps, hooks=[hook])
    return variables(job), hook.count


def assert_equal_to_python(folder: Path, name: str, module: Callable[[], nn.Module], max_steps: int = STEPS) -> None:
    found, count = trained(folder / f"{name} compiled", module(), True, max_steps)
    expected, _ = trained(folder / f"{name} python", module(), False, max_steps)
    assert count >= STEPS - 3
    np.testing.assert_allclose(found["weight"], expected["weight"], rtol=1e-5)


@pytest.mark.runs_in_python
def test_a_constant_that_changes_between_trainings_and_before_a_resume(tmp_path: Path, set_factor: Set) -> None:
    def module() -> nn.Module:
        return Product(tmp_path)

    assert_equal_to_python(tmp_path, "resumed", module)
    for place in PLACES:
        set_factor(place, 2.0)
        assert_equal_to_python(tmp_path, place, module)
        set_factor(place, 1.0)
    for place in PLACES:
        set_factor(place, 1.2)
    assert_equal_to_python(tmp_path, "resumed", module, 2 * STEPS)


def of_the_clock() -> Callable[[], float]:
    return lambda: time.perf_counter() % 1.0


def of_numpy() -> Callable[[], float]:
    return lambda: float(np.random.rand())


def of_a_closure() -> Callable[[], float]:
    count = 0

    def counted() -> float:
        nonlocal count
        count += 1
        return 1.0 + count / 100

    return counted


TICKING: dict[str, float] = {"number": 0.0}


def of_another_thread() -> Callable[[], float]:
    return lambda: 1.0 + TICKING["number"] % 1.0


@pytest.fixture
def _ticking() -> Any:
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.0001):
            # The golden ratio: its multiples come back to no earlier number, as those of 0.001 do once in 1,000.
            TICKING["number"] += 0.6180339887498949

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join()


class Changing(nn.Module):
    def __init__(self, number: Callable[[], float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.1))
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(1) * self.number()


@pytest.mark.usefixtures("_ticking")
@pytest.mark.runs_in_python
@pytest.mark.parametrize("number", [of_the_clock, of_numpy, of_a_closure, of_another_thread])
def test_a_number_that_changes_by_itself_is_never_compiled_and_one_line_says_why(
    number: Callable[[], Callable[[], float]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    _, count = trained(tmp_path, Changing(number()), True)
    assert count == 0
    assert len([one for one in caplog.messages if one.startswith(REFUSED)]) == 1
