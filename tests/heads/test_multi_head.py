import copy
import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError
from torch_estimator.heads import (
    BinaryClassHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
    Signature,
)

BUYS = BinaryClassHead(name="buys", label_vocabulary=["no", "yes"], weight_column="w")
COLOUR = MultiClassHead(3, name="colour")
VISITS = PoissonRegressionHead(name="visits")


def batch(rows: int = 12):
    random = torch.Generator().manual_seed(3)
    labels = {
        "buys": torch.randint(2, (rows, 1), generator=random).float(),
        "colour": torch.randint(3, (rows, 1), generator=random),
        "visits": torch.randint(5, (rows, 1), generator=random).float(),
    }
    return torch.randn(rows, 5, generator=random), labels, {"buys": torch.rand(rows, 1, generator=random)}


def by_head(logits):
    return {"buys": logits[:, :1], "colour": logits[:, 1:4], "visits": logits[:, 4:]}


def test_the_loss_is_the_weighted_sum_of_the_heads_losses():
    logits, labels, weights = batch()
    each = [
        head.loss(by_head(logits)[head.name], labels[head.name], weights.get(head.name))
        for head in (BUYS, COLOUR, VISITS)
    ]
    heads = [BUYS, COLOUR, VISITS]
    assert MultiHead(heads).loss(logits, labels, weights).item() == pytest.approx(sum(each).item())
    weighted = MultiHead(heads, head_weights=[1, 0.5, 3]).loss(logits, labels, weights)
    assert weighted.item() == pytest.approx((each[0] + 0.5 * each[1] + 3 * each[2]).item())


def test_logits_may_be_a_dict_in_any_order_with_more_in_it():
    logits, labels, weights = batch()
    head = MultiHead([BUYS, COLOUR, VISITS])
    given = {"embedding": torch.zeros(12, 2), **dict(reversed(by_head(logits).items()))}
    assert head.logits_dimension == 5
    torch.testing.assert_close(head.loss(given, labels, weights), head.loss(logits, labels, weights))
    torch.testing.assert_close(head.joined(given), logits)
    for key, value in head.predictions(logits).items():
        torch.testing.assert_close(value, head.predictions(given)[key])


def test_predictions_have_the_heads_names_in_their_keys():
    logits, _, _ = batch(2)
    head = MultiHead([BUYS, VISITS])
    predictions = head.decode({key: value.numpy() for key, value in head.predictions(logits[:, :2]).items()})
    assert tuple(predictions) == head.prediction_keys
    assert list(predictions)[-2:] == [("visits", "predictions"), ("visits", "logits")]
    assert predictions["buys", "all_classes"].tolist() == [["no", "yes"]] * 2


def test_metrics_are_those_of_the_heads_and_their_mean_losses():
    logits, labels, weights = batch()
    head = MultiHead([BUYS, COLOUR, VISITS], head_weights=[7, 7, 7])
    metrics, alone = head.metrics(), {one.name: one.metrics() for one in head.heads}
    losses = {one.name: [] for one in head.heads}
    for rows in torch.arange(12).split(5):
        cut = {name: values[rows] for name, values in labels.items()}
        metrics.update(logits[rows], cut, {"buys": weights["buys"][rows]})
        for one in head.heads:
            own = weights["buys"][rows] if one is BUYS else None
            arguments = (by_head(logits[rows])[one.name], cut[one.name], own)
            alone[one.name].update(*arguments)
            losses[one.name].append(one.loss(*arguments).item())
    expected = {key: value for one in alone.values() for key, value in one.compute().items()}
    expected |= {f"loss/{name}": float(np.mean(values)) for name, values in losses.items()}
    measured = metrics.compute()
    assert measured == pytest.approx(expected)
    assert {"loss/colour", "accuracy/colour", "label/mean/visits", "auc/buys"} <= set(measured)


def test_metrics_of_no_batches_are_zero():
    assert set(MultiHead([COLOUR, VISITS]).metrics().compute().values()) == {0.0}


def test_labels_are_prepared_by_head():
    head = MultiHead([BUYS, MultiLabelHead(3, name="tags")])
    raw = {"tags": pa.array([[0, 2], []]), "more": np.zeros(2), "buys": pa.array(["no", "yes"])}
    prepared = head.prepare_labels(raw)
    assert {name: values.tolist() for name, values in prepared.items()} == {
        "buys": [[0.0], [1.0]],
        "tags": [[1, 0, 1], [0, 0, 0]],
    }


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (np.zeros(3), InvalidTypeError, "takes labels as a dict with buys, visits, but got one column"),
        (
            {"buys": pa.array(["no"])},
            InvalidValueError,
            "no labels for the head 'visits': the labels are those of",
        ),
        (
            {"buys": pa.array(["no"]), "visits": np.zeros((1, 2))},
            InvalidValueError,
            r"label 'visits': labels must have shape \[N\] or \[N, 1\], but got \[1, 2\]",
        ),
        ({"buys": np.zeros(1), "visits": np.zeros(1)}, InvalidTypeError, "label 'buys': labels are float64, but"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, error, message):
    with pytest.raises(error, match=message):
        MultiHead([BUYS, VISITS]).prepare_labels(labels)


def test_a_bad_label_is_named_with_its_head_and_row():
    with pytest.raises(RowError, match="label 'buys', row 1 of the batch: unknown label 'maybe'") as caught:
        MultiHead([BUYS, VISITS]).prepare_labels({"buys": pa.array(["no", "maybe"]), "visits": np.zeros(2)})
    assert (caught.value.label, caught.value.row) == ("buys", 1)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (
            torch.zeros(2, 4),
            r"heads buys, visits take logits of shape \[N, 2\], or a dict by head, but .* \[2, 4\]",
        ),
        ({"buys": torch.zeros(2, 1)}, "The model gave no logits for the head 'visits': it gave buys"),
        ((torch.zeros(2, 1), torch.zeros(2, 1)), "but the model gave tuple"),
    ],
)
def test_logits_that_do_not_fit_are_refused(logits, message):
    with pytest.raises(InvalidValueError, match=message):
        MultiHead([BUYS, VISITS]).predictions(logits)


def test_signatures_are_those_of_the_heads_and_one_for_all_heads():
    head = MultiHead([VISITS, COLOUR])
    signatures = head.signatures()
    assert list(signatures) == [
        *("serving_default", "visits", "visits/regression", "visits/predict"),
        *("colour", "colour/classification", "colour/predict", "predict"),
    ]
    assert signatures["serving_default"] == Signature(method="regress", outputs={"outputs": "visits/predictions"})
    assert signatures["serving_default"] == signatures["visits"] == signatures["visits/regression"]
    assert signatures["colour"].outputs == {"scores": "colour/probabilities", "classes": "colour/all_classes"}
    assert list(signatures["predict"].outputs)[:3] == ["visits/predictions", "visits/logits", "colour/logits"]
    raw = head.raw_signatures()
    assert list(raw) == ["serving_default", "visits", "visits/predict", "colour", "colour/predict", "predict"]
    assert raw["serving_default"] == raw["visits/predict"] == signatures["visits/predict"]
    assert raw["colour"] == raw["colour/predict"] == signatures["colour/predict"]


def test_weight_columns_are_those_of_the_heads():
    head = MultiHead([BUYS, COLOUR, RegressionHead(name="pays", weight_column="v")])
    assert head.weight_columns == {"buys": "w", "pays": "v"}
    assert BUYS.weight_columns == {None: "w"}
    assert COLOUR.weight_columns == {}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), InvalidValueError, "heads must hold at least one head"),
        ((BUYS,), InvalidTypeError, "heads must be a list of heads"),
        ((["buys"],), InvalidTypeError, "heads must hold heads such as .* but one is 'buys'"),
        (([BUYS, RegressionHead()],), InvalidValueError, "Every head of a MultiHead needs a name"),
        (([BUYS, RegressionHead(name="buys")],), InvalidValueError, "distinct names, but two are called 'buys'"),
        (([RegressionHead(name="predict")],), InvalidValueError, "must not be called 'predict', which is a signature"),
        (([MultiHead([BUYS])],), InvalidTypeError, "heads must not hold a MultiHead"),
        (([BUYS, RegressionHead(name="r", loss_reduction="sum")],), InvalidValueError, "must have the same loss_red"),
        (([BUYS, VISITS], [1.0]), InvalidValueError, r"one number for each of the 2 heads, but it has 1: \[1.0\]"),
        (([BUYS], ["1"]), InvalidTypeError, "head_weights must hold numbers, but has '1'"),
        (([BUYS], 1.0), InvalidTypeError, r"head_weights must be a list with a number per head, but got 1\.0"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        MultiHead(*arguments)


def test_it_can_be_copied_and_pickled():
    head = MultiHead([BUYS, COLOUR], head_weights=[1, 2])
    assert copy.deepcopy(head) == head == pickle.loads(pickle.dumps(head))
    assert head.loss_reduction == BUYS.loss_reduction
