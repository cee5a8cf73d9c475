"""Inductor's code is compiled with a smaller class around it where that is possible, and as it is elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.jobs import assert_same_variables
from torch_estimator.compile import generated_code
from torch_estimator.compile.building import STEP_LIBRARY
from torch_estimator.compile.generated_code import shorten, split

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


def test_the_kernels_are_split_off() -> None:
    assert split(CALLS + "\n" + KERNELS) == (CALLS + "\n", KERNELS)


@pytest.mark.parametrize("code", [CALLS, KERNELS, ""])
def test_code_without_one_of_the_two_parts_is_not_split(code: str) -> None:
    assert split(code) == (code, "")


def test_shortened_code_keeps_the_declarations_and_the_step() -> None:
    shortened = shorten(CALLS)
    assert shortened is not None
    assert "void kernel(" in shortened
    assert "kernel(input_handles[0]);" in shortened
    assert "long" not in shortened
    assert "aoti_include" not in shortened


@pytest.mark.parametrize(
    "change",
    [
        lambda code: code.replace("kernel(input_handles[0])", "kernel(constants_->at(0))"),
        lambda code: code.replace("::AOTInductorModel(", "::OtherModel("),
        lambda code: code.replace("run_impl(", "take_step("),
        lambda code: code.replace('} // extern "C"', "}"),
    ],
)
def test_code_with_constants_or_of_another_form_is_not_shortened(change: Callable[[str], str]) -> None:
    assert shorten(change(CALLS)) is None


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


def train(model_dir: Path) -> te.Estimator:
    rows = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    torch.manual_seed(0)
    estimator = te.Estimator.from_module(
        Network(),
        head=te.RegressionHead(),
        optimizer="Adam",
        model_dir=str(model_dir),
        config=te.RunConfig(compile=True, random_seed=1),
    )
    return estimator.train(lambda: te.data.Dataset.from_arrays(rows, rows[:, :1]).repeat().batch(8), steps=20)


def test_where_the_shortened_code_is_refused_the_code_as_it_is_computes_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: Callable[[], list[int]]
) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "one"))
    shortened = train(tmp_path / "shortened")
    # A later PyTorch may need something that step_model.h lacks. Then the compiler refuses the shortened code.
    monkeypatch.setattr(generated_code, "shorten", lambda calls: f"#error {len(calls)}")
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "other"))
    as_it_is = train(tmp_path / "as it is")
    assert compilations() == [8, 8]
    assert_same_variables(as_it_is, shortened)
    # PyTorch's own classes have more symbols, so the two are different libraries.
    sizes = [one.stat().st_size for one in tmp_path.rglob(STEP_LIBRARY)]
    assert len(sizes) == 2
    assert max(sizes) > 2 * min(sizes)
