"""Steps compiled in the training process, as on GPUs and on systems other than Linux."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._inductor import compile_fx

import torch_estimator as te
from tests.line_jobs import assert_same_variables, variables
from torch_estimator import feature_column as fc
from torch_estimator.compile import runner_choice, torch_compile_runner


@pytest.fixture(autouse=True)
def _no_forked_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_choice, "SUPPORTED", False)


def adamw(named: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(te.optim.AdamW(named, lr=0.01), max_lr=0.05, total_steps=1000)


def data() -> te.data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=18).astype(np.float32)
    return te.data.Dataset.from_arrays({"x": x, "id": rng.integers(0, 7, 18)}, 2 * x).batch(4)


def job(model_dir: Path, compile: Any) -> te.Estimator:
    ids = fc.categorical_column_with_identity("id", 7)
    return te.DNNLinearCombinedRegressor(
        str(model_dir),
        linear_feature_columns=[ids],
        dnn_feature_columns=[fc.numeric_column("x"), fc.embedding_column(ids, 2)],
        dnn_hidden_units=[4],
        dnn_optimizer=adamw,
        dnn_dropout=0.2,
        config=te.RunConfig(random_seed=5, compile=compile),
    )


@pytest.mark.slow
def test_a_schedule_and_a_partial_batch_compile_once_and_resume_bit_for_bit(tmp_path: Path) -> None:
    counters = torch._dynamo.utils.counters
    counters.clear()
    eager = job(tmp_path / "eager", False).train(lambda: data().repeat(), steps=40)
    compiled = job(tmp_path / "compiled", True).train(lambda: data().repeat(), steps=40)
    assert counters["stats"]["unique_graphs"] == 1
    expected = variables(eager)
    for name, value in variables(compiled).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
    for steps in (3, 37):
        job(tmp_path / "resumed", True).train(lambda: data().repeat(), steps=steps)
    assert_same_variables(job(tmp_path / "resumed", True), compiled)


@pytest.mark.slow
def test_all_that_a_compiled_step_writes_to_keeps_its_place_as_cuda_graphs_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, int]] = []
    compile_graph = compile_fx._compile_fx_inner

    def noted(graph: Any, inputs: Any, **options: Any) -> Any:
        places = {node: index for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
        in_place = [
            places[node.args[0]]
            for node in graph.graph.nodes
            if isinstance(node.target, torch._ops.OpOverload)
            and node.target._schema.is_mutable
            and node.args[0] in places
        ]
        written.append((len(in_place), len(set(in_place) - set(options["static_input_idxs"]))))
        return compile_graph(graph, inputs, **options)

    monkeypatch.setattr(compile_fx, "_compile_fx_inner", noted)
    # A graph from torch's caches would not be compiled again.
    monkeypatch.setattr(torch._functorch.config, "enable_autograd_cache", False)
    with torch._inductor.config.patch(fx_graph_cache=False):
        job(tmp_path, True).train(lambda: data().repeat(), steps=3)
    (count, moving), *_ = written
    assert count >= 10
    assert moving == 0


def test_auto_compiles_once_it_is_worth_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch_compile_runner, "is_worth_waiting", lambda secs, steps, left: steps >= 5)
    caplog.set_level("INFO", "torch_estimator")
    auto = job(tmp_path / "auto", "auto").train(lambda: data().repeat(), steps=20)
    assert len(re.findall("Compiling the training step for batches of 4", caplog.text)) == 1
    expected = variables(job(tmp_path / "eager", False).train(lambda: data().repeat(), steps=20))
    for name, value in variables(auto).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.runs_in_python
def test_with_an_older_pytorch_auto_trains_in_python_and_only_true_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Older:
        """Settings of dynamo in PyTorch 2.9 and 2.10, which lack one."""

        def __getattr__(self, name: str) -> Any:
            if name == "trace_autograd_ops":
                raise AttributeError(name)
            return getattr(settings, name)

    settings = torch._dynamo.config
    monkeypatch.setattr(torch._dynamo, "config", Older())
    monkeypatch.setattr(torch_compile_runner, "is_worth_waiting", lambda secs, steps, left: steps >= 5)
    auto = job(tmp_path / "auto", "auto").train(lambda: data().repeat(), steps=20)
    (logged,) = [record.getMessage() for record in caplog.records if "not compiled" in record.msg]
    why = f"it needs a newer PyTorch than {torch.__version__}"
    assert logged == f"The training step is not compiled, because {why}; training goes on without."
    assert_same_variables(auto, job(tmp_path / "eager", False).train(lambda: data().repeat(), steps=20))
    with pytest.raises(te.errors.InvalidValueError, match="needs a newer PyTorch"):
        job(tmp_path / "true", True).train(lambda: data().repeat(), steps=20)


@pytest.mark.runs_in_python
def test_a_step_that_cannot_be_compiled_runs_in_python_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Reading(nn.Linear):
        def forward(self, input: Any) -> torch.Tensor:
            return super().forward(input["x"][:, None]) * (1.0 if input["x"].max().item() > 0 else 0.5)

    def trained(compile: bool) -> te.Estimator:
        torch.manual_seed(0)
        estimator = te.Estimator.from_module(
            Reading(1, 1),
            head=te.RegressionHead(),
            optimizer=te.optim.Adagrad(lr=0.1),
            model_dir=str(tmp_path / str(compile)),
            config=te.RunConfig(random_seed=5, compile=compile),
        )
        return estimator.train(lambda: data().repeat(), steps=10)

    compiled = trained(True)
    (logged,) = [record.getMessage() for record in caplog.records if "not compiled" in record.msg]
    assert logged.startswith("The training step is not compiled, because ")
    assert_same_variables(compiled, trained(False))
