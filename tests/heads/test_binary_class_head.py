import pickle

import numpy as np
import pytest
import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError, UserError
from torch_estimator.heads import BinaryClassHead, LossReduction, Signature


def test_predictions_have_tensorflows_shapes_and_dtypes():
    predictions = BinaryClassHead().predictions(torch.zeros(4, 1))
    assert {key: (list(tensor.shape), tensor.dtype) for key, tensor in predictions.items()} == {
        "logits": ([4, 1], torch.float32),
        "logistic": ([4, 1], torch.float32),
        "probabilities": ([4, 2], torch.float32),
        "class_ids": ([4, 1], torch.int64),
        "all_class_ids": ([4, 2], torch.int32),
    }


def test_decoding_names_the_classes():
    head = BinaryClassHead(label_vocabulary=("no", "yes"))
    numeric = head.predictions(torch.tensor([[-1.0], [2.0]]))
    predictions = head.decode({key: tensor.numpy() for key, tensor in numeric.items()})
    assert predictions["classes"].tolist() == [["no"], ["yes"]]
    assert predictions["all_classes"].tolist() == [["no", "yes"], ["no", "yes"]]
    assert predictions["classes"].dtype == object


def test_decoding_no_rows_gives_no_rows():
    head = BinaryClassHead()
    numeric = head.predictions(torch.zeros(0, 1))
    predictions = head.decode({key: tensor.numpy() for key, tensor in numeric.items()})
    assert predictions["classes"].shape == (0, 1)
    assert predictions["all_classes"].shape == (0, 2)


def test_a_tie_is_class_zero_in_predictions_and_metrics():
    head = BinaryClassHead()
    assert head.predictions(torch.zeros(1, 1))["class_ids"].tolist() == [[0]]
    metrics = head.metrics()
    metrics.update(torch.tensor([[0.0], [1e-9]]), torch.tensor([[0.0], [1.0]]))
    assert metrics.compute()["accuracy"] == 1.0


def test_the_loss_is_stable_for_huge_logits():
    logits = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    loss = BinaryClassHead(loss_reduction="sum").loss(logits, torch.tensor([[0.0], [0.0]]))
    loss.backward()
    assert loss.item() == 200.0
    assert logits.grad.tolist() == [[1.0], [0.0]]


def test_metrics_of_no_batches_are_zero_and_named_after_the_head():
    metrics = BinaryClassHead(name="clicks", thresholds=[0.3]).metrics().compute()
    assert set(metrics) == {
        f"{key}/clicks"
        for key in (
            "average_loss",
            "accuracy",
            "precision",
            "recall",
            "prediction/mean",
            "label/mean",
            "accuracy_baseline",
            "auc",
            "auc_precision_recall",
            "accuracy/positive_threshold_0.3",
            "precision/positive_threshold_0.3",
            "recall/positive_threshold_0.3",
        )
    }
    (baseline,) = [metrics.pop(key) for key in [*metrics] if key.startswith("accuracy_baseline")]
    assert baseline == 1.0
    assert set(metrics.values()) == {0.0}


def test_the_baseline_of_zero_weights_is_that_of_tensorflow() -> None:
    metrics = BinaryClassHead().metrics()
    metrics.update(torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0], [0.0]]), torch.zeros(2))
    computed = metrics.compute()
    assert (computed["accuracy_baseline"], computed["accuracy"], computed["label/mean"]) == (1.0, 0.0, 0.0)


def test_metrics_do_not_depend_on_the_batches():
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(10_000, 1))).float()
    labels = torch.from_numpy(rng.integers(0, 2, size=(10_000, 1))).float()
    weights = torch.from_numpy(rng.uniform(size=(10_000, 1))).float()
    head = BinaryClassHead(thresholds=[0.7, 0.2])
    whole, parts = head.metrics(), head.metrics()
    whole.update(logits, labels, weights)
    for start in range(0, len(logits), 999):
        rows = slice(start, start + 999)
        parts.update(logits[rows], labels[rows], weights[rows, 0])
    assert parts.compute() == pytest.approx(whole.compute(), rel=1e-12)


def test_metrics_of_nan_logits_are_reported_and_not_refused():
    metrics = BinaryClassHead().metrics()
    metrics.update(torch.tensor([[float("nan")]]), torch.tensor([[1.0]]))
    assert np.isnan(metrics.compute()["average_loss"])


def test_fractional_labels_count_as_positive_but_never_as_right():
    metrics = BinaryClassHead().metrics()
    metrics.update(torch.tensor([[2.0], [-2.0]]), torch.tensor([[0.5], [0.0]]))
    measured = metrics.compute()
    assert (measured["accuracy"], measured["precision"], measured["recall"]) == (0.5, 1.0, 1.0)


def test_a_loss_fn_replaces_the_loss_and_gets_the_reduction():
    seen = []

    def hinge(labels, logits, loss_reduction):
        seen.append(loss_reduction)
        return torch.relu(1 - (2 * labels - 1) * logits)

    head = BinaryClassHead(loss_fn=hinge, loss_reduction="SUM")
    logits, labels = torch.tensor([[0.5], [3.0]]), torch.tensor([[1.0], [0.0]])
    assert head.loss(logits, labels).item() == 4.5
    metrics = head.metrics()
    metrics.update(logits, labels)
    assert metrics.compute()["average_loss"] == 2.25
    assert set(seen) == {LossReduction.SUM}


def test_signatures_describe_the_export():
    predict = {key: key for key in BinaryClassHead().prediction_keys}
    classify = Signature(method="classify", outputs={"scores": "probabilities", "classes": "all_classes"})
    assert BinaryClassHead().signatures() == {
        "serving_default": classify,
        "classification": classify,
        "regression": Signature(method="regress", outputs={"outputs": "logistic"}),
        "predict": Signature(method="predict", outputs=predict),
    }


def test_a_head_is_a_value():
    head = BinaryClassHead(thresholds=[0.5], label_vocabulary=["a", "b"], loss_reduction="sum")
    assert pickle.loads(pickle.dumps(head)) == head
    assert head.logits_dimension == 1
    assert head.class_names == ["a", "b"]
    assert BinaryClassHead().class_names == ["0", "1"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"thresholds": [0.5, 1.0]}, InvalidValueError, r"thresholds must be in \(0, 1\), but got 1\."),
        ({"thresholds": ["0.5"]}, InvalidTypeError, "thresholds must be numbers .* got '0.5'"),
        ({"label_vocabulary": "ab"}, InvalidTypeError, "label_vocabulary should be a list or a tuple"),
        ({"label_vocabulary": ["a"]}, InvalidValueError, "each of the 2 classes, but it has 1"),
        ({"label_vocabulary": ["a", "a"]}, InvalidValueError, "must not repeat a label"),
        ({"label_vocabulary": [0, 1]}, InvalidTypeError, "must hold strings, but it has 0"),
        ({"loss_reduction": "none"}, InvalidValueError, "Invalid loss_reduction 'none'"),
        ({"loss_fn": 3}, InvalidTypeError, "loss_fn must be a function"),
        ({"weight_column": 3}, InvalidTypeError, "weight_column must be the name of a feature"),
        ({"name": ""}, InvalidValueError, "name must not be empty"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        BinaryClassHead(**arguments)


@pytest.mark.parametrize(
    ("logits", "labels", "weights", "message"),
    [
        ((4, 2), (4, 1), None, r"takes logits of shape \[N, 1\], but the model gave \[4, 2\]"),
        ((4,), (4, 1), None, r"the model gave \[4\]"),
        ((4, 1), (4,), None, r"takes labels of shape \[4, 1\] here, but got \[4\]"),
        ((4, 1), (4, 1), (3, 1), r"weights must have shape \[4, 1\] .* but got \[3, 1\]"),
        ((4, 1), (4, 1), (1,), r"but got \[1\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(logits, labels, weights, message):
    with pytest.raises(UserError, match=message):
        BinaryClassHead().loss(torch.zeros(logits), torch.zeros(labels), weights and torch.ones(weights))
