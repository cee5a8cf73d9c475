"""Optimizer arguments of the premade models: names, settings, classes, functions of named parameters, schedules."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import torch_estimator as te
from tests.line_jobs import assert_same_variables
from torch_estimator import feature_column as fc

X = fc.numeric_column("x")
CITY = fc.categorical_column_with_vocabulary_list("city", ["Oslo", "Rome", "Lima"])


def people() -> te.data.Dataset:
    random = np.random.default_rng(5)
    city = random.choice(["Oslo", "Rome", "Lima"], 60).astype(object)
    x = random.uniform(-1, 1, 60).astype(np.float32)
    return te.data.Dataset.from_arrays({"city": city, "x": x}, (city == "Rome").astype(np.int64)).batch(10).repeat()


def combined(model_dir: object, **optimizers: Any) -> te.Estimator:
    return te.DNNLinearCombinedClassifier(
        str(model_dir),
        linear_feature_columns=[CITY],
        dnn_feature_columns=[fc.embedding_column(CITY, 3), X],
        dnn_hidden_units=[6],
        config=te.RunConfig(random_seed=3, save_checkpoints_steps=1000),
        **optimizers,
    )


def one_cycle(named: te.optim.NamedParameters) -> lr_scheduler.LRScheduler:
    return lr_scheduler.OneCycleLR(te.optim.AdamW(named, weight_decay=0.1), max_lr=0.05, total_steps=20)


def decayed_by_part(named: te.optim.NamedParameters) -> torch.optim.Optimizer:
    """Return an optimizer without weight decay for biases, selected by the names of the parameters."""
    named = list(named)
    groups = [
        {"params": [(name, one) for name, one in named if "bias" not in name]},
        {"params": [(name, one) for name, one in named if "bias" in name], "weight_decay": 0.0},
    ]
    return te.optim.AdamW(groups, lr=0.01, weight_decay=0.2)


def several(named: te.optim.NamedParameters) -> list[torch.optim.Optimizer]:
    """Return Adam for the dense layers and Adagrad for the embeddings."""
    named = list(named)
    tables = [(name, one) for name, one in named if "tables" in name]
    dense = [(name, one) for name, one in named if "tables" not in name]
    return [te.optim.Adagrad(tables, lr=0.1), torch.optim.Adam(dense, lr=0.01)]


OPTIMIZERS: dict[str, Any] = {
    "name": "AdamW",
    "settings": te.optim.AdamW(learning_rate=0.01, weight_decay=0.1),
    "partial": partial(torch.optim.AdamW, lr=0.01),
    "class": torch.optim.Adam,
    "class of ours": te.optim.Adam,
    "schedule": one_cycle,
    "schedule, clipped": te.optim.clip_gradients_by_norm(one_cycle, 0.1),
    "groups": decayed_by_part,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_both_parts_and_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    optimizers = dict.fromkeys(("linear_optimizer", "dnn_optimizer"), OPTIMIZERS[name])
    whole = combined(tmp_path / "whole", **optimizers).train(people, max_steps=20)
    combined(tmp_path / "resumed", **optimizers).train(people, max_steps=20, hooks=[te.StopAtStepHook(num_steps=7)])
    resumed = combined(tmp_path / "resumed", **optimizers).train(people, max_steps=20)
    assert_same_variables(resumed, whole)
    start = combined(tmp_path / "start", **optimizers).train(people, steps=1).evaluate(people, steps=6)
    assert whole.evaluate(people, steps=6)["loss"] < start["loss"]


def test_one_factory_may_make_several_optimizers_of_a_part(tmp_path: Path) -> None:
    whole = combined(tmp_path / "whole", dnn_optimizer=several).train(people, steps=8)
    combined(tmp_path / "resumed", dnn_optimizer=several).train(people, steps=3)
    assert_same_variables(combined(tmp_path / "resumed", dnn_optimizer=several).train(people, steps=5), whole)
    slots = {name.rpartition("/")[2] for name in whole.get_variable_names() if name.startswith("dnn/")}
    assert {"Adagrad", "exp_avg", "exp_avg_sq"} <= slots


def test_each_part_may_have_a_decay_of_its_own(tmp_path: Path) -> None:
    # The gradients are almost zero, so the decay remains.
    decays = {"linear_optimizer": te.optim.AdamW(lr=0.1, weight_decay=0.0), "dnn_optimizer": decayed_by_part}
    estimator = combined(tmp_path, **decays)
    optimizers, _ = estimator.job.builder.build(te.ModeKeys.TRAIN, estimator.config).make_optimizers()
    assert [[group["weight_decay"] for group in one.param_groups] for one in optimizers] == [[0.0], [0.2, 0.0]]
    names = [name for group in optimizers[1].param_groups for name in group["param_names"]]
    assert "dnn.logits.bias" in names and "dnn.hiddenlayer_0.kernel" in names


def test_the_error_for_an_optimizer_with_parameters_says_what_to_write() -> None:
    bound = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.02)
    with pytest.raises(te.UserError, match=r"write functools\.partial\(torch\.optim\.Adam, lr=0\.02\)\.$"):
        combined("unused", dnn_optimizer=bound)
