"""Processes that are about to train the same have equal descriptions, and the first difference is named."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, LinearLR

import torch_estimator as te
from torch_estimator.distributed.consistency import describe_training, difference, digest_of
from torch_estimator.specs import EstimatorSpec
from torch_estimator.train.model import Model
from torch_estimator.versions import own_sources


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.last = nn.Linear(width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.first(inputs).relu()).flatten(0)


def mean_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels).abs().mean()


def sgd(**settings: Any) -> Any:
    return functools.partial(torch.optim.SGD, **{"lr": 0.1, **settings})


def decayed(gamma: float) -> Any:
    return lambda named: ExponentialLR(te.optim.Adagrad(lr=0.1)(named), gamma)


def grown() -> Any:
    return lambda named: LinearLR(te.optim.Adagrad(lr=0.1)(named), start_factor=1.0)


def described(*, module: nn.Module | None = None, model_fn: object = None, **given: Any) -> dict[str, Any]:
    """Return the description of a training as another process receives it."""
    spec = {"loss": mean_error, "optimizer": sgd(), **given}
    model = Model(EstimatorSpec(mode=te.ModeKeys.TRAIN, module=module or Net(), **spec), "cpu")
    text = json.dumps(describe_training(model, model.make_optimizers(), model_fn))
    return dict(json.loads(text))


def difference_of(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Return the part of the sentence that names the difference between worker 0 and chief 0; empty if none."""
    assert (digest_of(one) == digest_of(other)) == (one == other)
    sentence = difference("worker 0", one, "chief 0", other)
    before, after = "worker 0 and chief 0 must run the same program, but differ in ", "; start them with the same code"
    if sentence:
        assert sentence.startswith(before) and after in sentence
    return sentence.removeprefix(before).partition(after)[0]


_OF = "of first.weight and 3 more"


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({"module": Net(5)}, {}, 'the variables: first.weight is [[5, 3], "torch.float32"] on worker 0, and [[4, 3]'),
        ({"module": Net().double()}, {}, 'the variables: first.weight is [[4, 3], "torch.float64"] on worker 0'),
        ({"optimizer": sgd(lr=0.2)}, {}, f"the optimizers: lr of SGD {_OF} is 0.2 on worker 0, and 0.1 on chief 0"),
        ({"optimizer": sgd(lr=float("inf"))}, {}, f'lr of SGD {_OF} is "inf" on worker 0, and 0.1 on chief 0'),
        ({"optimizer": sgd(momentum=0.9)}, {}, f"momentum of SGD {_OF} is 0.9 on worker 0, and 0 on chief 0"),
        ({"optimizer": sgd(weight_decay=0.1)}, {}, f"weight_decay of SGD {_OF} is 0.1 on worker 0"),
        ({"optimizer": te.optim.Adam(lr=0.1)}, {}, f'the optimizer {_OF} is "Adam" on worker 0, and "SGD" on chief 0'),
        (
            {"optimizer": te.optim.Ftrl(lr=0.1, l1_regularization_strength=0.5)},
            {"optimizer": te.optim.Ftrl(lr=0.1)},
            f"l1_regularization_strength of Ftrl {_OF} is 0.5 on worker 0, and 0.0 on chief 0",
        ),
        (
            {"optimizer": te.optim.clip_gradients_by_norm(sgd(), 2.0)},
            {"optimizer": te.optim.clip_gradients_by_norm(sgd(), 3.0)},
            f"the optimizers: gradient clipping 0._clip_norm of SGD {_OF} is 2.0 on worker 0, and 3.0 on chief 0",
        ),
        ({"optimizer": te.optim.clip_gradients_by_norm(sgd(), 2.0)}, {}, 'is "_ByNorm" on worker 0, and absent on'),
        (
            {"optimizer": decayed(0.9)},
            {"optimizer": decayed(0.8)},
            "the optimizers: schedule 0.gamma is 0.9 on worker 0",
        ),
        (
            {"optimizer": decayed(0.9)},
            {"optimizer": grown()},
            'the optimizers: schedule 0 is "ExponentialLR" on worker 0, and "LinearLR" on chief 0',
        ),
    ],
)
def test_the_first_difference_is_named(one: dict[str, Any], other: dict[str, Any], named: str) -> None:
    assert named in difference_of(described(**one), described(**other))


def test_another_version_is_named() -> None:
    own, other = described(), described()
    other["the versions"]["torch-estimator"] = "0.0.1, sources 00"
    # Other sections may differ, too, and come first.
    assert difference("worker 0", {"the last step": 1, **own}, "chief 0", {"the last step": 2, **other}) == (
        "worker 0 and chief 0 must run the same program, but differ in the versions: torch-estimator is "
        f'"{te.__version__}, sources {own_sources()[:12]}" on worker 0, and "0.0.1, sources 00" on chief 0; '
        "install the same version everywhere."
    )


@pytest.mark.parametrize(("one", "other"), [({}, {"new": None}), ({"new": None}, {}), ({"old": 1}, {"new": None})])
def test_a_setting_that_one_version_does_not_have_is_named(one: dict[str, Any], other: dict[str, Any]) -> None:
    sentence = difference("worker 0", {"the settings": one}, "chief 0", {"the settings": other})
    assert "differ in the settings: new is " in sentence and "absent on" in sentence and "null on" in sentence


def test_equal_programs_do_not_differ() -> None:
    assert difference_of(described(optimizer=decayed(0.9)), described(optimizer=decayed(0.9))) == ""


SOURCE = """
from torch import nn

class Base(nn.Module):
    pass

class Layer(Base):
    def forward(self, inputs):
        return inputs

class Loss:
    def __call__(self, outputs, labels):
        return (outputs - labels).abs().mean()

def loss(outputs, labels):
    return (outputs - labels).abs().mean()

def model_fn():
    pass
"""


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports a module of the user's, with a line of text at its end."""
    monkeypatch.syspath_prepend(tmp_path)

    def module(line: str) -> ModuleType:
        (tmp_path / "users_own.py").write_text(f"{SOURCE}\n{line}\n")
        sys.modules.pop("users_own", None)
        importlib.invalidate_caches()
        return importlib.import_module("users_own")

    yield module
    sys.modules.pop("users_own", None)


@pytest.mark.parametrize(
    "given",
    [
        lambda own: {"module": nn.Sequential(nn.Linear(3, 1), own.Layer(), nn.Flatten(0))},
        lambda own: {"loss": own.loss},
        lambda own: {"loss": own.Loss()},
        lambda own: {"model_fn": functools.partial(own.model_fn)},
    ],
)
def test_another_source_file_of_a_module_a_loss_or_a_model_fn_is_named(
    given: Callable[[ModuleType], dict[str, Any]], edited: Callable[[str], ModuleType]
) -> None:
    before = described(**given(edited("# before")))
    assert difference_of(described(**given(edited("# before"))), before) == ""
    assert 'the source files: users_own is "' in difference_of(described(**given(edited("# after"))), before)


def test_a_schedule_is_described_as_it_began() -> None:
    begun = described(optimizer=decayed(0.9))
    assert begun["the optimizers"]["schedule 0.last_epoch"] == 0
    assert begun["the optimizers"][f"lr of Adagrad {_OF}"] == 0.1


def test_the_description_of_a_huge_model_is_bounded_and_still_shows_differences() -> None:
    def of(*widths: int) -> dict[str, Any]:
        module = nn.Sequential(nn.Linear(3, 1), *(nn.BatchNorm1d(width, track_running_stats=False) for width in widths))
        return described(module=module)

    even, late = [1] * 2100, [*[1] * 2099, 2]
    assert len(of(*even)["the variables"]) == 4097
    assert 'the variables: 1.weight is [[2], "torch.float32"] on worker 0, and [[1], ' in difference_of(
        of(*[2] * 2100), of(*even)
    )
    assert "the variables: what follows the first 4096 is" in difference_of(of(*late), of(*even))
