"""The premade models have the defaults of TF 1.x in ``te`` and of TF 2.x in ``te.v2``, and say so."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch

import torch_estimator as te
from tests.models.tensorflow_defaults import CLASSES, REFERENCE, arguments
from torch_estimator import feature_column as fc

TENSORFLOW = json.loads(REFERENCE.read_text(encoding="utf-8"))
GENERATIONS: dict[str, Any] = {"v1": te, "v2": te.v2}
X = fc.numeric_column("x")


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", CLASSES)
def test_arguments_and_their_defaults_are_tensorflows(generation: str, name: str) -> None:
    ours = arguments(getattr(GENERATIONS[generation], name))
    theirs = TENSORFLOW[generation][name]
    # Parameter servers hold rows of every variable, so that nothing has to be partitioned.
    theirs = {one: value for one, value in theirs.items() if one not in ("input_layer_partitioner", "partitioner")}
    known = {one: te.LossReduction.of(value) if one == "loss_reduction" else value for one, value in theirs.items()}
    assert {one: ours[one] for one in known} == known
    assert set(ours) - set(known) <= {"warm_start_from"}
    # Code that gives arguments by position means the same ones.
    assert [one for one in ours if one in known] == list(known)


@pytest.mark.parametrize(("generation", "loss"), [("v1", "is their sum"), ("v2", "divides their sum by their number")])
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_found_by_pickle_and_documents_its_own_defaults(generation: str, loss: str, name: str) -> None:
    model = getattr(GENERATIONS[generation], name)
    assert pickle.loads(pickle.dumps(model)) is model
    text = " ".join(model.__doc__.split())
    assert (f"the default {loss}." in text) == ("loss_reduction" in arguments(model))
    deep_rate = {"v1": 0.05, "v2": 0.001}[generation]
    assert (f" optimizer: Adagrad with learning rate {deep_rate};" in text) == (name in CLASSES[:3])


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda: te.DNNClassifier([2], [X]),
            "Optimizer: Adagrad(lr=0.05), loss_reduction='sum' (TF 1.x; te.v2: Adagrad(lr=0.001), "
            "loss_reduction='sum_over_batch_size').",
        ),
        (
            lambda: te.v2.DNNRegressor([2], [X], optimizer="SGD", loss_reduction="mean"),
            "Optimizer: SGD(lr=0.01) (TF 2.x; te: SGD(lr=0.05)).",
        ),
        (
            lambda: te.v2.LinearClassifier([X], optimizer=None),
            "Optimizer: Ftrl(lr=0.2), loss_reduction='sum_over_batch_size' (TF 2.x; te: loss_reduction='sum').",
        ),
        (
            lambda: te.DNNLinearCombinedEstimator(
                te.BinaryClassHead(), linear_feature_columns=[X], dnn_feature_columns=[X], dnn_hidden_units=[2]
            ),
            "Optimizer: Ftrl(lr=0.005), Adagrad(lr=0.001) (TF 1.x and TF 2.x).",
        ),
        (
            lambda: te.v2.BaselineEstimator(te.BinaryClassHead()),
            "Optimizer: Ftrl(lr=0.3) (TF 1.x and TF 2.x).",
        ),
    ],
)
def test_one_line_names_a_default_optimizer_and_that_of_the_other_generation(
    make: Any, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    make()
    assert [record.message for record in caplog.records if "Optimizer" in record.message] == [line]


def test_an_optimizer_that_is_given_needs_no_line(caplog: pytest.LogCaptureFixture) -> None:
    te.DNNClassifier([2], [X], optimizer=te.optim.Adagrad(lr=0.1))
    te.v2.LinearRegressor([X], optimizer=torch.optim.Adam)
    assert "Optimizer" not in caplog.text


def test_v2_knows_the_names_of_tf_2() -> None:
    message = r"Unknown optimizer 'AdamW'; the names in te.v2 are 'Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD'"
    with pytest.raises(te.UserError, match=message):
        te.v2.DNNClassifier([2], [X], optimizer="AdamW")
