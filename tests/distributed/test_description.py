"""What must be alike in processes that train together is described alike in all, and each difference is named."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.distributed.description import describe_training, difference, digest_of
from torch_estimator.specs import EstimatorSpec
from torch_estimator.train.model import Model

SHARPNESS = 1.5


class Net(nn.Module):
    depth = 2

    def __init__(self, rate: float = 0.1, activation: Callable[[Tensor], Tensor] = torch.relu, **own: Any) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.dropout = nn.Dropout(rate)
        self.last = nn.Linear(4, 1)
        self.activation = activation
        for name, value in own.items():
            setattr(self, name, value)

    def forward(self, inputs: Tensor) -> Tensor:
        return flat(self.last(self.dropout(self.activation(self.first(inputs))))) * SHARPNESS


def flat(outputs: Tensor) -> Tensor:
    return outputs.flatten(0)


def mean_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels).abs().mean()


def weighted(weight: int) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return weight * mean_error(outputs, labels)

    return loss


class Squared:
    """A loss with a setting, and no module."""

    def __init__(self, scale: int) -> None:
        self.scale = scale

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.scale * (outputs - labels).square().mean()


def sgd(**settings: Any) -> Any:
    return functools.partial(torch.optim.SGD, **{"lr": 0.1, **settings})


def decayed(gamma: float) -> Any:
    return lambda named: ExponentialLR(te.optim.Adagrad(lr=0.1)(named), gamma)


def by_epoch(decay: Callable[[int], float]) -> Any:
    return lambda named: LambdaLR(torch.optim.SGD(named, lr=0.1), decay)


def described(*, module: nn.Module | None = None, **given: Any) -> dict[str, Any]:
    """As the others get it."""
    spec = {"loss": mean_error, "optimizer": sgd(), **given}
    model = Model(EstimatorSpec(mode=te.ModeKeys.TRAIN, module=module or Net(), **spec), "cpu")
    described: dict[str, Any] = json.loads(json.dumps(describe_training(model, model.make_optimizers())))
    return described


def told(one: dict[str, Any], other: dict[str, Any]) -> str:
    assert (digest_of(one) == digest_of(other)) == (one == other)
    sentence = difference("worker 0", one, "chief 0", other)
    before, after = "worker 0 and chief 0 must run the same program, but differ in ", "; start them with the same code"
    if sentence:
        assert sentence.startswith(before) and after in sentence
    return sentence.removeprefix(before).partition(after)[0]


BINARY, SUM = te.BinaryClassHead, te.LossReduction.SUM
_OF = "of first.weight and 3 more"


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({"module": Net(0.3)}, {}, "the model: module.dropout.p is 0.3 on worker 0, and 0.1 on chief 0"),
        (
            {"module": Net(activation=torch.tanh)},
            {"module": Net(activation=nn.Tanh())},
            'the model: module.activation is "tanh" on worker 0, and "Tanh" on chief 0',
        ),
        ({"module": Net(sizes=[1, 2])}, {}, 'the model: module.sizes is "[1, 2]" on worker 0, and absent on chief 0'),
        ({"module": Net().double()}, {}, 'the variables: first.weight is [[4, 3], "torch.float64"] on worker 0'),
        ({"loss": Squared(2)}, {"loss": Squared(3)}, "the model: loss.scale is 2 on worker 0, and 3 on chief 0"),
        ({"loss": weighted(2)}, {"loss": weighted(3)}, "the model: loss.weight is 2 on worker 0, and 3 on chief 0"),
        (
            {"loss": nn.L1Loss()},
            {"loss": nn.L1Loss(reduction="sum")},
            'loss.reduction is "mean" on worker 0, and "sum"',
        ),
        (
            {"head": BINARY(), "loss": None},
            {"head": BINARY(loss_reduction=SUM), "loss": None},
            'the model: head.loss_reduction is "SUM_OVER_BATCH_SIZE" on worker 0, and "SUM" on chief 0',
        ),
        ({"optimizer": sgd(lr=0.2)}, {}, f"the optimizers: lr of SGD {_OF} is 0.2 on worker 0, and 0.1 on chief 0"),
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
            {"optimizer": by_epoch(lambda epoch: 0.9**epoch)},
            {"optimizer": by_epoch(lambda epoch: 0.8**epoch)},
            "the code under Python ",
        ),
    ],
)
def test_what_differs_is_named(one: dict[str, Any], other: dict[str, Any], named: str) -> None:
    assert named in told(described(**one), described(**other))


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("SHARPNESS", 2.5, "SHARPNESS of Net.forward is 2.5 on worker 0, and 1.5 on chief 0"),
        ("flat", lambda outputs: outputs.squeeze(1), "flat is absent on worker 0, and "),
        ("mean_error", lambda outputs, labels: outputs.sum(), "<lambda> is "),
    ],
)
def test_code_and_floats_that_it_reads_are_named(
    name: str, value: Any, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = described(loss=weighted(1))
    monkeypatch.setitem(globals(), name, value)
    assert named in told(described(loss=weighted(1)), before) + told(before, described(loss=weighted(1)))


def test_words_and_buckets_of_columns_are_compared() -> None:
    def of(words: list[str], edge: float) -> dict[str, Any]:
        columns = [
            fc.embedding_column(fc.categorical_column_with_vocabulary_list("word", words), 2),
            fc.bucketized_column(fc.numeric_column("age"), [edge]),
        ]
        estimator = te.Estimator.from_module(
            nn.Linear(4, 1),
            loss=mean_error,
            optimizer="Adam",
            columns=columns,
            config=te.RunConfig(),
            model_dir="unused",
        )
        model = estimator._build(te.ModeKeys.TRAIN)
        return describe_training(model, model.make_optimizers())

    assert told(of(["a", "b"], 1.0), of(["a", "b"], 1.0)) == ""
    assert """vocabulary_list is "['a', 'b']" on worker 0, and "['b', 'a']" on""" in told(
        of(["a", "b"], 1), of(["b", "a"], 1)
    )
    assert 'boundaries is "[1.0]" on worker 0, and "[2.0]" on chief 0' in told(of(["a"], 1.0), of(["a"], 2.0))


class Excused(Net):
    not_in_fingerprint = ("seed", "made")
    made = 0

    def __init__(self, **own: Any) -> None:
        super().__init__(**own)
        Excused.made += 1


def test_what_is_a_process_own_is_not_compared() -> None:
    def of(rank: int) -> dict[str, Any]:
        module = Excused(
            local_rank=rank,
            is_chief=rank == 0,
            log_dir=f"run{rank}",
            device="cpu" if rank else "cuda:0",
            cache=f"/tmp/{rank}",
            writer=None if rank else object(),
            begun=np.zeros(rank),
            started=time.time(),
            config=te.RunConfig(model_dir=f"runs of {rank}"),
            options={"rank": rank, "depth": 3},
            parts={object(), ("a", 1), flat},
            seed=rank,
        )
        module.register_forward_hook(lambda *_: None) if rank else None
        return described(module=module)

    assert told(of(0), of(1)) == ""
    assert of(0)["the model"]["module.options['depth']"] == 3


def test_a_schedule_is_described_as_it_began() -> None:
    begun = described(optimizer=decayed(0.9))
    assert begun["the optimizers"]["schedule 0.last_epoch"] == 0
    assert begun["the optimizers"][f"lr of Adagrad {_OF}"] == 0.1


def test_the_description_of_a_huge_model_is_bounded_and_still_tells() -> None:
    def of(*rates: float) -> dict[str, Any]:
        return described(module=nn.Sequential(*map(nn.Dropout, rates), nn.Linear(3, 1)))

    even, late = [0.1] * 1400, [*[0.1] * 1399, 0.3]
    assert len(of(*even)["the model"]) == 4097
    assert "module.0.p is 0.2 on worker 0, and 0.1 on chief 0" in told(of(*[0.2] * 1400), of(*even))
    assert "the model: what follows the first 4096 is" in told(of(*late), of(*even))
