"""A model is spread over servers, and read back from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torch_estimator import optim
from torch_estimator.feature_column import Table
from torch_estimator.feature_column.table import Piece
from torch_estimator.parameter_server.placement import Placement
from torch_estimator.train.step import TrainStep


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table([Piece(name="wide", rows=10, initializer=nn.init.normal_)], 3)
        self.layers = nn.ModuleList(nn.Linear(width, 1) for width in (50, 3, 20))


def step(*optimizers: torch.optim.Optimizer, module: nn.Module) -> TrainStep:
    def loss(*given: Any) -> torch.Tensor:
        raise AssertionError

    return TrainStep(module, loss, optimizers)


def test_a_model_is_spread_over_servers_and_read_back() -> None:
    net = Net()
    placement = Placement(step(optim.Adam(net.parameters()), module=net), 3, "float32")
    loads = [plan.dense_size for plan in placement.plans]
    assert sorted(loads) == [6, 20, 50]
    assert [plan.tables[0].rows for plan in placement.plans] == [4, 3, 3]
    names = sorted(one.name for plan in placement.plans for one in plan.dense)
    assert names == sorted(name for name, _ in net.named_parameters() if name != "table.weight")
    assert placement.plans[1].from_json(placement.plans[1].as_json()) == placement.plans[1]
    before = {name: one.clone() for name, one in net.state_dict().items()}
    arrays = [{key: one.copy() + 1 for key, one in placement.read_state(server).items()} for server in range(3)]
    for server, given in enumerate(arrays):
        placement.write_state(server, given)
    for name, one in net.state_dict().items():
        # The row of missing values is on no server.
        added = (torch.arange(11) < 10).float()[:, None] if name == "table.weight" else 1.0
        torch.testing.assert_close(one, before[name] + added)
    for server, given in enumerate(arrays):
        for key, one in placement.read_state(server).items():
            np.testing.assert_array_equal(one, given[key])


def test_changing_settings_are_in_the_order_of_the_plan() -> None:
    net = Net()
    wide = optim.Ftrl([net.table.weight], lr=torch.tensor(0.25))
    deep = torch.optim.AdamW(net.layers.parameters(), lr=0.5, weight_decay=0.125)
    placement = Placement(step(wide, deep, module=net), 1, "float32")
    assert [group.rule for group in placement.plans[0].groups] == ["Ftrl", "torch.optim.AdamW"]
    assert [group.changing for group in placement.plans[0].groups] == [("lr",), ("lr", "weight_decay")]
    deep.param_groups[0]["lr"] = 2.0
    assert placement.changing_settings().tolist() == [0.25, 2.0, 0.125]


def test_an_optimizer_of_the_users_own_is_named() -> None:
    class Own(torch.optim.SGD):
        pass

    net = Net()
    with pytest.raises(TypeError, match=r"^Parameter servers can have .*, but the model has .*Own; use"):
        Placement(step(Own(net.parameters(), lr=0.1), module=net), 1, "float32")


def test_parameters_of_other_dtypes_are_named() -> None:
    net = Net()
    net.layers[1].bfloat16()
    with pytest.raises(TypeError, match=r"hold float32 and float64, but layers.1.weight is torch.bfloat16"):
        Placement(step(optim.Adagrad(net.parameters(), lr=0.1), module=net), 1, "float32")
