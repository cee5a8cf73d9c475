"""Operators that Inductor computes otherwise than Python give the same numbers in compiled steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import torch_estimator as te
from tests.line_jobs import variables
from torch_estimator.compile.replacements import replacements

# Each function takes 16 times 64 float32 numbers from 0 to 6.3.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "x // 0.1": lambda x: x // 0.1,
    "3 // x": lambda x: 3 // (x + 0.1),
    "floor": lambda x: torch.div(x.double(), 0.1, rounding_mode="floor"),
    "floor in place": lambda x: x.clone().floor_divide_(-0.3),
    "seconds % 86400": lambda x: (x * 1e9).floor() % 86400,
    "x % -0.3": lambda x: x.clone().remainder_(-0.3),
    "3 % x": lambda x: 3 % (x + 0.1),
    "truncated": lambda x: torch.div((x * 10).long() - 30, -7, rounding_mode="trunc"),
    "uint8 amin": lambda x: (x * 10 + 100).to(torch.uint8).amin(1),
    "int8 max": lambda x: (x * 10 - 100).to(torch.int8).max(),
    "int8 max of rows": lambda x: (x * 10 - 100).to(torch.int8).max(1).values,
    "uint8 argmin": lambda x: (x * 10 + 100).to(torch.uint8).argmin(1),
    "uint8 aminmax": lambda x: (x * 10 + 100).to(torch.uint8).aminmax().min,
    "bfloat16": lambda x: x.bfloat16().float(),
    "float16": lambda x: (x * 1e5).half().float(),
}


Divide = Callable[[Tensor, Tensor], Tensor]


def _with_a_tensor(divide: Divide, number: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return a function that divides integers from -32 to 31, and limits of their type, by a number in a tensor."""

    def of_rows(x: Tensor) -> Tensor:
        integers = torch.where(x == 0, torch.iinfo(dtype).min + 1, (x * 10).round().long() - 32)
        dividends = torch.where(x == 1, torch.iinfo(dtype).max, integers).to(dtype)
        return divide(dividends, torch.tensor(number, dtype=dtype))

    return of_rows


DIVISIONS: dict[str, Divide] = {
    "floor division": lambda x, y: x // y,
    "truncated division": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "%": lambda x, y: x % y,
    "fmod": torch.fmod,
    "division of a tensor": lambda x, y: y // (x | 1),
    "fmod of two constants": lambda x, y: torch.fmod(torch.tensor(-15), y.long()) + x,
    "truncated division of two constants": lambda x, y: torch.div(torch.tensor(-15), y, rounding_mode="trunc") + x,
}
FUNCTIONS |= {
    f"{name} of {dtype} and a tensor of {number}": _with_a_tensor(divide, number, dtype)
    for name, divide in DIVISIONS.items()
    for dtype, number in ((torch.int8, -7), (torch.int32, 4), (torch.int64, -4))
}


class Recorded(nn.Module):
    """A module that records in its buffers what the functions give for a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 1)
        for number, function in enumerate(FUNCTIONS.values()):
            self.register_buffer(f"result_{number}", torch.zeros_like(function(torch.ones(16, 64))))

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            for number, function in enumerate(FUNCTIONS.values()):
                getattr(self, f"result_{number}").copy_(function(rows))
        return self.out(rows)


def test_compiled_steps_compute_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.permutation(np.arange(1024, dtype=np.float32) % 64 / 10).reshape(16, 64)
    dataset = te.data.Dataset.from_arrays(rows, np.ones((16, 1), np.float32)).batch(16).repeat()
    python, compiled = (
        variables(
            te.Estimator.from_module(
                Recorded(),
                head=te.RegressionHead(),
                optimizer=te.optim.GradientDescent(lr=0.001),
                model_dir=str(tmp_path / str(compile)),
                config=te.RunConfig(compile=compile),
            ).train(lambda: dataset, steps=3)
        )
        for compile in (False, True)
    )
    names = {f"result_{number}": name for number, name in enumerate(FUNCTIONS)}
    assert [name for key, name in names.items() if not np.array_equal(python[key], compiled[key])] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8])
@pytest.mark.parametrize("function", [torch.floor_divide, torch.remainder])
def test_special_numbers(function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    of_floats = [0.0, -0.0, 1.0, -1.0, 0.1, 0.5, -7.3, 86400.0, float("inf"), -float("inf"), float("nan")]
    numbers = torch.tensor(of_floats if dtype.is_floating_point else [1, -1, 2, -3, 7, -100], dtype=dtype)
    left, right = (one.flatten() for one in torch.meshgrid(numbers, numbers, indexing="ij"))
    traced = make_fx(function, replacements())(left, right)(left, right)
    expected = function(left, right)
    torch.testing.assert_close(traced, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(traced.signbit() & (traced == 0), expected.signbit() & (expected == 0))


def test_a_truncated_division_by_zero_raises_as_in_python() -> None:
    def divide(counts: Tensor) -> Tensor:
        return torch.div(100, counts, rounding_mode="trunc")

    traced = make_fx(divide, replacements())(torch.tensor([3, -7]))
    assert traced(torch.tensor([3, -7])).tolist() == [33, -14]
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        traced(torch.tensor([3, 0]))
