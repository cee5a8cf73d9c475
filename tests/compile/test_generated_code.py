"""Inductor's code is compiled with a smaller class around it where that is possible, and as it is elsewhere."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.line_jobs import assert_same_variables
from torch_estimator.compile import generated_code
from torch_estimator.compile.building import STEP_LIBRARY
from torch_estimator.compile.generated_code import GeneratedCode, shorten

CALLS = """#include <torch/csrc/inductor/aoti_include/cpu.h>
extern "C" {
AOTIRuntimeError AOTInductorModelContainerRun() { long; }
} // extern "C"
extern "C" void kernel(const float* in_ptr0);
namespace torch::aot_inductor {
class AOTInductorModelKernels : public AOTInductorModelKernelsBase {};
AOTInductorModel::AOTInductorModel(std::shared_ptr<ConstantMap> constants_map)
    : AOTInductorModelBase(1, 1, 0) {}
static void check_input_0() { long; }
void AOTInductorModel::run_impl(
    AtenTensorHandle* input_handles
) {
    kernel(input_handles[0]);
} // AOTInductorModel::run_impl
} // namespace torch::aot_inductor
"""
KERNELS = "#include <torch/csrc/inductor/cpp_prefix.h>\nvoid kernel(const float* in_ptr0) {}\n"


def test_shortened_code_keeps_the_declarations_the_step_and_the_kernels() -> None:
    shortened = shorten(CALLS + KERNELS)
    assert shortened is not None
    assert "void kernel(" in shortened
    assert "kernel(input_handles[0]);" in shortened
    assert shortened.endswith(KERNELS)
    assert "long" not in shortened
    assert "aoti_include" not in shortened


@pytest.mark.parametrize(
    "change",
    [
        lambda code: code.replace("kernel(input_handles[0])", "kernel(constants_->at(0))"),
        # step_model.h keeps one tensor for each place, so no place may run twice in a step.
        lambda code: code.replace("kernel(input_handles[0]);", "while (1) { kernel(input_handles[0]); }"),
        lambda code: code.replace("kernel(input_handles[0]);", "int64_t sizes[] = {u0, 2L};"),
        lambda code: code.replace("::AOTInductorModel(", "::OtherModel("),
        lambda code: code.replace("run_impl(", "take_step("),
        lambda code: code.replace('} // extern "C"', "}"),
    ],
)
def test_code_with_constants_or_of_another_form_is_not_shortened(change: Callable[[str], str]) -> None:
    assert shorten(change(CALLS)) is None


def test_words_in_comments_do_not_count() -> None:
    assert shorten(CALLS.replace("kernel(input_handles[0]);", "kernel(input_handles[0]); // for while u0")) is not None


@pytest.mark.parametrize(
    ("described", "operators"),
    [('{"nodes": [{"node": {"target": "aten::qr"}}]}', ["aten::qr"]), (None, ["an operator"])],
)
def test_operators_that_are_dispatched_are_found_in_the_code_even_if_nothing_describes_them(
    tmp_path: Path, described: str | None, operators: list[str]
) -> None:
    source = tmp_path / "step.wrapper.cpp"
    code = GeneratedCode(source, tmp_path, [])
    source.write_text(CALLS)
    assert code.dispatched_operators() == []
    source.write_text(CALLS.replace("kernel(", "aoti_torch_proxy_executor_call_function(proxy_executor, "))
    if described is not None:
        (tmp_path / "step.wrapper.json").write_text(described)
    assert code.dispatched_operators() == operators


class Triangle(nn.Module):
    """A module with an operator that PyTorch calls through its dispatcher only."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(rows) + torch.linalg.qr(rows.detach()).R.sum()


class Sparse(nn.Module):
    """A module with an operator for which PyTorch cannot tell the shape of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 1, sparse=True)

    def forward(self, rows: Tensor) -> Tensor:
        return self.words(rows[:, 0].round().int() % 8)


class Network(nn.Module):
    """A module in whose step some tensors are used again long after they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 6)
        self.out = nn.Linear(6, 1)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(self.hidden(rows))
        outputs = torch.softmax(hidden, 1).cumsum(1) + rows
        return self.out(outputs) + hidden.sort(1).values[:, :1]


class Mixed(nn.Module):
    """A module that shuffles rows, which Inductor has a rule for that fails (PyTorch 2.13)."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 1)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.out(0.7 * rows + 0.3 * rows[torch.randperm(len(rows))])
        return outputs


def train(
    model_dir: Path, module: type[nn.Module] = Network, optimizer: str = "Adam", *, compile: bool = True
) -> te.Estimator:
    rows = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    torch.manual_seed(0)
    estimator = te.Estimator.from_module(
        module(),
        head=te.RegressionHead(),
        optimizer=optimizer,
        model_dir=str(model_dir),
        config=te.RunConfig(compile=compile, random_seed=1),
    )
    return estimator.train(lambda: te.data.Dataset.from_arrays(rows, rows[:, :1]).repeat().batch(8), steps=20)


@pytest.mark.runs_in_python
@pytest.mark.parametrize(
    ("module", "optimizer", "operator"), [(Triangle, "Adam", "linalg_qr"), (Sparse, "SGD", "_to_dense")]
)
def test_a_step_with_an_operator_that_is_not_compiled_runs_in_python(
    module: type[nn.Module], optimizer: str, operator: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, module, optimizer)
    (logged,) = [record.getMessage() for record in caplog.records if "not compiled" in record.msg]
    why = f"PyTorch has no compiled form of aten::{operator}"
    assert logged == f"The training step is not compiled, because {why}; training goes on without."


def test_rows_may_be_shuffled(tmp_path: Path, compilations: Callable[[], list[int]]) -> None:
    compiled = train(tmp_path / "compiled", Mixed)
    assert compilations() == [8]
    in_python = train(tmp_path / "in Python", Mixed, compile=False)
    for name in ("out.weight", "out.bias"):
        np.testing.assert_allclose(
            compiled.get_variable_value(name), in_python.get_variable_value(name), rtol=1e-5, atol=1e-7
        )


@pytest.mark.slow
def test_where_the_shortened_code_is_refused_the_code_as_it_is_computes_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: Callable[[], list[int]]
) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "one"))
    shortened = train(tmp_path / "shortened")
    # A later PyTorch may need something that step_model.h lacks. Then the compiler refuses the shortened code.
    monkeypatch.setattr(generated_code, "shorten", lambda code: f"#error {len(code)}")
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "other"))
    as_it_is = train(tmp_path / "as it is")
    assert compilations() == [8, 8]
    assert_same_variables(as_it_is, shortened)
    # PyTorch's own classes have more symbols, so the two are different libraries.
    libraries = list(tmp_path.rglob(STEP_LIBRARY))
    sizes = [one.stat().st_size for one in libraries]
    assert len(sizes) == 2
    assert max(sizes) > 2 * min(sizes)
    headers = subprocess.run(["readelf", "-lW", *libraries], check=True, capture_output=True, text=True).stdout
    assert headers.count("GNU_STACK") == 2
    assert "RWE" not in headers
