"""The peers that need nothing but PyTorch train the same model, and report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.peers import census_rows, compiled_census, wide_deep
from benchmarks.protocol import ROOT
from examples.census.trainer import sample


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with generated files under the names of the real ones."""
    files = sample.write(str(tmp_path), train_rows=500, eval_rows=200)
    Path(files.train_file).rename(tmp_path / "adult.data.csv")
    Path(files.eval_file).rename(tmp_path / "adult.test.csv")
    return tmp_path


# Of torch.optim's own sparse Adagrad.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_the_compiled_loops_steps_are_those_of_the_eager_loop(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", _as_it_is)
    rows = compiled_census.read(data / "adult.data.csv")
    torch.manual_seed(1)
    by_hand = compiled_census.Training(rows, batch=40, steps_per_call=2)
    torch.manual_seed(1)
    model = wide_deep.WideDeep()
    optimizer = wide_deep.one_optimizer(model)

    orders = census_rows.orders(500, 80)
    for _ in range(20):
        places = torch.from_numpy(next(orders))
        loss = by_hand(places)
        for some in places.split(40):
            optimizer.zero_grad()
            eager_loss = wide_deep.loss_of(model, rows.take(some))
            eager_loss.backward()
            optimizer.step()

    torch.testing.assert_close(loss, eager_loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(by_hand.wide.weights, model.wide.weight.detach().view(-1), rtol=1e-3, atol=1e-6)
    assert by_hand.wide.weights.count_nonzero() > 100


def test_the_network_has_the_layers_of_the_example() -> None:
    model = wide_deep.WideDeep()

    assert model.deep[0].in_features == census_rows.DEEP_INPUTS
    assert (
        sum(parameter.numel() for parameter in model.deep.parameters())
        == 66 * 100 + 100 * 70 + 70 * 48 + 48 * 34 + 34 + 253
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--workers", "0"], ["--workers", "2", "--batch", "64"]])
def test_the_eager_loop_reports_what_was_asked_for(data: Path, arguments: list[str]) -> None:
    found = _run("eager_census", data, "--steps", "200", "--warmup", "10", "--evaluate", *arguments)

    assert found["steps_per_s"] > 0
    assert found["examples_per_s"] == pytest.approx(found["steps_per_s"] * (64 if "64" in arguments else 40))
    assert 0 < found["first_step_s"] < found["total_s"]
    assert 0.6 < found["auc"] < 1
    assert 0 < found["average_loss"] < 1


def _as_it_is(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    return function


def _run(peer: str, data: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.peers.{peer}", "--data", str(data), "--threads", "1", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))
