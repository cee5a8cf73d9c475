"""Recurrent estimators: trained as TensorFlow's, with padding that changes nothing, and their arguments."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.models.tensorflow_rnn import (
    CASES,
    CONTEXT,
    GROUPS,
    PAIRS,
    REFERENCE,
    STEP_WEIGHTS,
    STEPS,
    TOKENS,
    WEIGHTS,
    columns,
    digest,
    initial,
    labels_of,
)
from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.variables import named_parameters
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError
from torch_estimator.experimental import RNNClassifier, RNNEstimator
from torch_estimator.heads import SequentialHeadWrapper

EXPECTED = json.loads(REFERENCE.read_text())
SPEED = fc.sequence_numeric_column("speed")


class Initial(te.Hook):
    """Sets the variables to the initial values of TensorFlow's run, and notes the losses."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def begin(self, context: Any) -> None:
        for number, (_, variable) in enumerate(sorted(named_parameters(context.module).items())):
            with torch.no_grad():
                variable.copy_(torch.from_numpy(initial(variable.shape, number)))

    def after_step(self, context: Any) -> None:
        self.losses.append(float(context.loss))


def batch(case: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    features = {
        "tokens": pa.array(TOKENS),
        "pairs": pa.array(PAIRS),
        "context": np.array(CONTEXT, np.float32),
        "group": np.array(GROUPS),
        "w": np.array(WEIGHTS, np.float32),
    }
    labels = labels_of(case)
    if case.get("return_sequences"):
        features["w"] = pa.array(STEP_WEIGHTS)
        return features, pa.array(labels)
    return features, np.array(labels)


def trained(case: dict[str, Any], hook: te.Hook | None = None, **config: Any) -> RNNClassifier:
    sequence, context = columns(fc)
    settings = te.RunConfig(model_dir=f"memory://rnn{id(case)}", random_seed=1, **config)
    estimator = RNNClassifier(sequence, context, config=settings, **case)
    data = Dataset.from_arrays(*batch(case)).repeat().batch(4)
    return estimator.train(lambda: data, steps=STEPS, hooks=[hook] if hook is not None else [])


@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_tensorflow(name: str) -> None:
    case, expected, hook = CASES[name], EXPECTED[name], Initial()
    estimator = trained(case, hook)
    assert np.allclose(hook.losses, expected["losses"], rtol=2e-5)
    made = {one: digest(estimator.get_variable_value(one)) for one in expected["variables"]}
    assert made == pytest.approx(expected["variables"], rel=1e-4, abs=2e-5)

    data = Dataset.from_arrays(*batch(case)).batch(4)
    predictions = list(estimator.predict(lambda: data))
    assert np.allclose([one["logits"] for one in predictions], expected["logits"], rtol=1e-4, atol=2e-5)
    assert sorted(predictions[0]) == expected["keys"]
    metrics = estimator.evaluate(lambda: data)
    assert {key: metrics[key] for key in expected["metrics"]} == pytest.approx(expected["metrics"], rel=1e-4, abs=2e-5)
    if "mask" in expected:
        assert [one["sequence_mask"].tolist() for one in predictions] == expected["mask"]
        assert {key: list(value.shape) for key, value in predictions[0].items()} == expected["shapes"]


def test_training_says_that_it_is_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    trained({"units": 3}, compile=True)
    assert "Training uncompiled, because a compiled step takes sequences of one length only." in caplog.text


def test_layers_may_be_a_module_of_the_user() -> None:
    case = {"rnn_cell_fn": lambda width: nn.GRU(width, 3, num_layers=2, batch_first=True), "n_classes": 3}
    estimator = trained(case)
    assert "rnn_model/rnn/weight_ih_l1" in estimator.get_variable_names()
    whole = [one["logits"] for one in estimator.predict(lambda: Dataset.from_arrays(*batch(case)).batch(4))]
    apart = [one["logits"] for one in estimator.predict(lambda: Dataset.from_arrays(*batch(case)).batch(1))]
    assert np.allclose(whole, apart, atol=1e-6)


def test_rows_padded_with_missing_values_are_sequences() -> None:
    case = {"units": [3], "cell_type": "lstm"}
    estimator = trained(case)
    features, labels = batch(case)
    width = max(map(len, TOKENS))
    features["tokens"] = np.array([row + [-1] * (width - len(row)) for row in TOKENS])
    features["pairs"] = np.array([row + [np.nan] * (2 * width - len(row)) for row in PAIRS])
    padded = [one["logits"] for one in estimator.predict(lambda: Dataset.from_arrays(features, labels).batch(4))]
    lists = [one["logits"] for one in estimator.predict(lambda: Dataset.from_arrays(*batch(case)).batch(4))]
    assert np.array_equal(padded, lists)


def test_labels_of_padded_rows_may_be_anything() -> None:
    case = {"units": [3], "return_sequences": True, "label_vocabulary": ["no", "yes"]}
    names = [["no" if one % 2 else "yes" for one in row] for row in labels_of(case)]
    width = max(map(len, TOKENS))
    rows = np.array([row + [""] * (width - len(row)) for row in names])
    features = batch(case)[0]
    results = []
    for labels in (pa.array(names, pa.list_(pa.string())), rows):
        data = Dataset.from_arrays(features, labels).batch(4)
        estimator = RNNClassifier(*columns(fc), model_dir="memory://named", config=te.RunConfig(random_seed=1), **case)
        results.append(estimator.evaluate(lambda data=data: data))
    assert results[0] == results[1]


def test_labels_and_weights_of_another_length_are_an_error() -> None:
    case = {"units": [3], "return_sequences": True, "weight_column": "w"}
    features, labels = batch(case)
    estimator = RNNClassifier(*columns(fc), model_dir="memory://lengths", **case)
    short = pa.array([[1], *labels_of(case)[1:]])
    with pytest.raises(DataError, match=r"row 0.*there are 1 labels, but the sequence has 4 steps"):
        estimator.evaluate(lambda: Dataset.from_arrays(features, short).batch(4))
    features["w"] = pa.array([*STEP_WEIGHTS[:3], [1.0]])
    with pytest.raises(DataError, match=r"row 3.*there are 1 weights, but the sequence has 3 steps"):
        estimator.evaluate(lambda: Dataset.from_arrays(features, labels).batch(4))
    with pytest.raises(InvalidValueError, match="takes labels for each step"):
        estimator.evaluate(lambda: Dataset.from_arrays(batch(case)[0], np.zeros(4)).batch(4))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, InvalidValueError, r"needs units, such as units=\[32\], or rnn_cell_fn"),
        ({"units": []}, InvalidValueError, r"units must be positive integers, but got \[\]"),
        ({"units": [3], "cell_type": "peephole"}, InvalidValueError, "cell_type must be one of .*'peephole'"),
        ({"units": 3, "rnn_cell_fn": nn.GRU}, InvalidValueError, "Give units and cell_type, or rnn_cell_fn, not both"),
        ({"rnn_cell_fn": 3}, InvalidTypeError, "rnn_cell_fn must be a function"),
        ({"rnn_cell_fn": lambda width: nn.GRUCell(width, 3)}, InvalidTypeError, "takes whole sequences"),
        ({"rnn_cell_fn": lambda width: nn.GRU(width, 3)}, InvalidValueError, "batch_first=True"),
        ({"units": 3, "sequence_feature_columns": []}, InvalidValueError, "sequence_feature_columns is empty"),
        ({"units": 3, "context_feature_columns": [SPEED]}, InvalidValueError, "'speed' is a sequence column"),
        ({"units": 3, "optimizer": "Adadelta"}, InvalidValueError, "Unknown optimizer 'Adadelta'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RNNClassifier(**{"sequence_feature_columns": [SPEED], **arguments})


def test_heads_fit_what_is_returned() -> None:
    head = te.RegressionHead()
    with pytest.raises(InvalidValueError, match="return_sequences is True, but the head is a RegressionHead"):
        RNNEstimator(head, [SPEED], units=3, return_sequences=True)
    with pytest.raises(InvalidValueError, match="return_sequences is False, but the head is a SequentialHeadWrapper"):
        RNNEstimator(SequentialHeadWrapper(head), [SPEED], units=3)
    with pytest.raises(InvalidValueError, match=r"by 'w', which is not among feature_columns \[\]"):
        SequentialHeadWrapper(te.RegressionHead(weight_column="w"))
    with pytest.raises(InvalidValueError, match="does not take a MultiHead"):
        SequentialHeadWrapper(te.MultiHead([te.RegressionHead(name="a")]))
    wrapper = SequentialHeadWrapper(te.MultiLabelHead(2))
    with pytest.raises(InvalidValueError, match=r"te.heads.SequenceLogits, .* but the model gave Tensor"):
        wrapper.loss(torch.zeros(1, 2, 2), torch.zeros(1, 2))


def test_a_regression_at_each_step_learns() -> None:
    speeds = pa.array([[0.1, 0.5, 0.2], [0.4], [0.3, 0.1]])
    data = Dataset.from_arrays({"speed": speeds}, speeds)
    head = SequentialHeadWrapper(te.RegressionHead(), "there")
    estimator = RNNEstimator(
        head,
        [SPEED],
        units=[4],
        return_sequences=True,
        optimizer=te.optim.Adam(lr=0.05),
        config=te.RunConfig(model_dir="memory://steps", random_seed=1),
    )
    before = estimator.train(lambda: data.repeat().batch(3), steps=1).evaluate(lambda: data.batch(2))
    after = estimator.train(lambda: data.repeat().batch(3), steps=60).evaluate(lambda: data.batch(2))
    assert after["average_loss"] < 0.3 * before["average_loss"]
    assert before["label/mean"] == pytest.approx(1.6 / 6)
