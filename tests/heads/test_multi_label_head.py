import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError
from torch_estimator.heads import MultiLabelHead, Signature
from torch_estimator.metrics import AreaUnderCurves

VOCABULARY = ["cat", "dog", "fox"]
HOT = [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def objects(rows):
    column = np.empty(len(rows), dtype=object)
    column[:] = rows
    return column


@pytest.mark.parametrize(
    "labels",
    [
        np.array(HOT),
        np.array(HOT, dtype=bool),
        np.array(HOT, dtype=np.float32),
        np.array(HOT).astype(object),
        pa.array(HOT, pa.list_(pa.float32())),
        pa.array([[bool(x) for x in row] for row in HOT]),
        pa.array(HOT, pa.list_(pa.int64(), 3)),
        pa.array([[0, 2], [], [1]]),
        pa.array([[0, 2], [], [1]], pa.large_list(pa.int32())),
        pa.array([[9], [2, 0], [-1], [1, None]]).slice(1),
        objects([[0, 2], [], [1]]),
        objects([np.array([0, 2]), np.array([], dtype=int), np.array([1])]),
        np.array([[2, 0], [-1, -1], [1, -1]]),
        np.array([[2, 0, -1, -1], [-1, -1, -1, -1], [-1, 1, -1, -1]]),
    ],
    ids=[
        *(
            "array",
            "booleans",
            "floats",
            "objects",
            "list of floats",
            "list of booleans",
            "fixed lists",
            "ids",
            "large",
        ),
        *("sliced", "object lists", "object arrays", "padded", "padded wide"),
    ],
)
def test_numbers_are_multi_hot_or_class_ids(labels):
    prepared = MultiLabelHead(3).prepare_labels(labels)
    assert prepared.tolist() == HOT
    assert prepared.dtype in (np.uint8, np.float32)


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([["fox", "cat"], [], ["dog"]]),
        pa.array([["fox", "cat", "cat"], [""], ["dog", None]]),
        pa.array([["fox", "cat"], [], ["dog"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        objects([["fox", "cat"], [], ["dog"]]),
        np.array([["fox", "cat"], ["", ""], ["dog", ""]]),
        np.array([["fox", "cat", ""], ["", "", ""], ["dog", "", ""]], dtype=object),
    ],
    ids=["lists", "odd lists", "dictionary", "object lists", "padded", "padded objects"],
)
def test_strings_are_looked_up_in_the_vocabulary(labels):
    assert MultiLabelHead(3, label_vocabulary=VOCABULARY).prepare_labels(labels).tolist() == HOT


def test_a_class_may_be_named_twice():
    assert MultiLabelHead(4).prepare_labels(pa.array([[2, 2, 0], [3, 3]])).tolist() == [[1, 0, 1, 0], [0, 0, 0, 1]]


def test_one_label_per_row_is_a_set_of_one():
    assert MultiLabelHead(3).prepare_labels(np.array([2, -1, 0])).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    strings = pa.array(["fox", "", "cat"]).dictionary_encode()
    hot = MultiLabelHead(3, label_vocabulary=VOCABULARY).prepare_labels(strings)
    assert hot.tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_labels_may_be_probabilities():
    prepared = MultiLabelHead(2).prepare_labels(np.array([[0.25, 1.0]]))
    assert prepared.dtype == np.float32
    assert prepared.tolist() == [[0.25, 1.0]]


@pytest.mark.parametrize("labels", [np.zeros(0), np.zeros((0, 5)), np.zeros(0, dtype=object), pa.array([[1]]).slice(1)])
def test_no_rows_give_no_rows(labels):
    assert MultiLabelHead(3).prepare_labels(labels).shape == (0, 3)


@pytest.mark.parametrize(
    ("labels", "row", "problem"),
    [
        (pa.array([[0], [3]]), 1, "label 3 is out of range; expected class ids from 0 to 2, or -1 for none"),
        (np.array([[0, -1], [1, -2]]), 1, "label -2 is out of range"),
        (np.array([[0, 1, 0], [0, 2, 0]]), 1, r"label 2 is out of range; labels of shape \[N, 3\] are multi-hot"),
        (np.array([[-1, 1, 1]]), 0, "label -1 is out of range; .* class ids need an array of another width, or lists"),
        (np.array([[0.0, np.nan, 1.0]]), 0, "label nan is out of range"),
        (pa.array([[0.0, 1.0, 0.0], [1.0]]), 1, "the list has 1 values, but multi-hot labels have one for each of"),
        (pa.array([[0], None]), 1, "the label is missing; give an empty list where no class applies"),
        (pa.array([[2], [0, 1, 0]]), 1, r"class ids \[0, 1, 0\] repeat 0 or 1, as multi-hot labels would, which must"),
        (np.array([[0, 1, 0, 0]]), 0, r"class ids \[0, 1, 0, 0\] repeat 0 or 1"),
    ],
)
def test_a_bad_label_is_named_with_its_row(labels, row, problem):
    with pytest.raises(RowError, match=problem) as caught:
        MultiLabelHead(3).prepare_labels(labels)
    assert caught.value.row == row


def test_an_unknown_string_is_named_with_its_row():
    head = MultiLabelHead(3, label_vocabulary=VOCABULARY)
    with pytest.raises(RowError, match="unknown label 'owl'; expected one of 'cat', 'dog', 'fox'") as caught:
        head.prepare_labels(pa.array([["cat"], [], ["dog", "owl"]]))
    assert caught.value.row == 2


@pytest.mark.parametrize(
    ("head", "labels", "error", "message"),
    [
        (MultiLabelHead(3), np.zeros((2, 4)), InvalidValueError, r"must be multi-hot of shape \[N, 3\].* \[2, 4\]"),
        (MultiLabelHead(3), np.zeros((2, 3, 1)), InvalidValueError, r"but got shape \[2, 3, 1\]"),
        (MultiLabelHead(3), pa.array([["cat"]]), InvalidTypeError, "lists of strings .*'cat'.*; give label_vocabulary"),
        (MultiLabelHead(3), np.array([["cat", ""]]), InvalidTypeError, "labels are strings .* give label_vocabulary"),
        (MultiLabelHead(3, label_vocabulary=VOCABULARY), pa.array([[1]]), InvalidTypeError, "labels are int64, but"),
        (MultiLabelHead(3), {"a": [1]}, InvalidTypeError, "labels are a dict with a, but the model's head takes one"),
        (MultiLabelHead(3), objects([[1], ["cat"]]), InvalidTypeError, "labels must be lists of class ids or of str"),
    ],
)
def test_other_labels_are_refused(head, labels, error, message):
    with pytest.raises(error, match=message):
        head.prepare_labels(labels)


def test_the_loss_is_averaged_over_the_classes_and_weighted_by_example():
    logits, labels = torch.tensor([[0.0, 2.0], [1.0, -1.0]]), torch.tensor([[1, 0], [1, 1]], dtype=torch.uint8)
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(1)
    head = MultiLabelHead(2, weight_column="w", loss_reduction="sum")
    assert head.unweighted_loss(logits, labels).shape == (2, 1)
    assert head.loss(logits, labels, torch.tensor([2.0, 3.0])).item() == pytest.approx(float(2 * each[0] + 3 * each[1]))


def test_a_loss_fn_gets_multi_hot_floats():
    def loss_fn(labels, logits):
        assert labels.dtype == torch.float32
        return (labels - logits).abs().sum(-1, keepdim=True)

    head = MultiLabelHead(2, loss_fn=loss_fn)
    assert head.loss(torch.zeros(3, 2), torch.tensor([[1, 1], [0, 1], [0, 0]])).item() == 1.0


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_a_class_are_those_of_that_class_alone(weighted):
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(101, 5, generator=random)
    labels = (torch.rand(101, 5, generator=random) < 0.4).to(torch.uint8)
    weights = torch.rand(101, 1, generator=random) if weighted else None
    head = MultiLabelHead(5, classes_for_class_based_metrics=[3, 0], name="h")
    metrics = head.metrics()
    for rows in torch.arange(101).split(20):
        metrics.update(logits[rows], labels[rows], None if weights is None else weights[rows])
    measured = metrics.compute()
    assert [key for key in measured if "class" in key] == [
        f"{key}/class{one}/h" for one in (3, 0) for key in ("probability_mean", "auc", "auc_precision_recall")
    ]
    for one in (3, 0):
        areas = AreaUnderCurves()
        own = torch.ones(101, dtype=torch.float64) if weights is None else weights[:, 0].double()
        areas.update(logits[:, one].sigmoid(), labels[:, one].float(), own)
        assert measured[f"auc/class{one}/h"] == pytest.approx(areas.roc())
        assert measured[f"auc_precision_recall/class{one}/h"] == pytest.approx(areas.precision_recall())
        mean = (logits[:, one].sigmoid() * own).sum() / own.sum()
        assert measured[f"probability_mean/class{one}/h"] == pytest.approx(mean.item())


def test_classes_with_metrics_are_called_as_in_the_vocabulary():
    for chosen in (["fox"], [2]):
        head = MultiLabelHead(3, label_vocabulary=VOCABULARY, classes_for_class_based_metrics=chosen)
        keys = list(head.metrics().compute())
        assert keys[3:] == ["probability_mean/fox", "auc/fox", "auc_precision_recall/fox"]


def test_thousands_of_classes_are_counted_together():
    classes, rows = 20_000, 8
    labels = MultiLabelHead(classes).prepare_labels(pa.array([[i, classes - 1 - i] for i in range(rows)]))
    assert labels.shape == (rows, classes)
    assert labels.sum() == 2 * rows
    head = MultiLabelHead(classes, classes_for_class_based_metrics=[0, classes - 1])
    metrics = head.metrics()
    metrics.update(torch.from_numpy(labels * 10.0 - 5.0).float(), torch.from_numpy(labels))
    measured = metrics.compute()
    assert measured["auc"] == pytest.approx(1.0)
    assert measured[f"auc/class{classes - 1}"] == pytest.approx(1.0)


def test_predictions_name_all_classes():
    head = MultiLabelHead(3, label_vocabulary=VOCABULARY)
    numeric = head.predictions(torch.zeros(2, 3))
    predictions = head.decode({key: value.numpy() for key, value in numeric.items()})
    assert tuple(predictions) == head.prediction_keys
    assert predictions["classes"].tolist() == [VOCABULARY, VOCABULARY]
    assert head.signatures()["serving_default"] == Signature(
        method="classify", outputs={"scores": "probabilities", "classes": "classes"}
    )
    assert list(head.signatures()) == ["serving_default", "classification", "predict"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_classes": 1}, InvalidValueError, "n_classes must be at least 2, but got 1"),
        ({"n_classes": "3"}, InvalidTypeError, "n_classes must be an integer of at least 2, but got '3'"),
        ({"thresholds": [0.5, 1.0]}, InvalidValueError, r"thresholds must be in \(0, 1\), but got 1"),
        ({"thresholds": 0.5}, InvalidTypeError, r"thresholds must be a list of numbers between 0 and 1, but got 0\.5"),
        ({"classes_for_class_based_metrics": [3]}, InvalidValueError, "must be from 0 to 2, but has 3"),
        ({"classes_for_class_based_metrics": ["cat"]}, InvalidValueError, "'cat', which needs a label_vocabulary"),
        ({"classes_for_class_based_metrics": [1, 1]}, InvalidValueError, "must not repeat a class"),
        ({"classes_for_class_based_metrics": [1.5]}, InvalidTypeError, r"must hold class ids or strings, but has 1\.5"),
        ({"classes_for_class_based_metrics": 1}, InvalidTypeError, "must be a list, but got 1"),
        (
            {"classes_for_class_based_metrics": ["owl"], "label_vocabulary": VOCABULARY},
            InvalidValueError,
            "'owl', which is not in label_vocabulary",
        ),
        ({"label_vocabulary": ["a"]}, InvalidValueError, "label_vocabulary must have one string for each of the 3"),
        ({"loss_reduction": "none"}, InvalidValueError, "Invalid loss_reduction 'none'"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        MultiLabelHead(**{"n_classes": 3, **arguments})
