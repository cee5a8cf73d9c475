"""One evaluate() and predict() of every head equals TensorFlow's."""

import numpy as np
import pytest
import torch

from torch_estimator.heads import (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)

HEADS = {
    "binary": BinaryClassHead(),
    "binary_weighted_thresholds": BinaryClassHead(weight_column="w", thresholds=[0.25, 0.5, 0.75]),
    "binary_vocabulary": BinaryClassHead(label_vocabulary=["<=50K", ">50K"]),
    "multi_class": MultiClassHead(3),
    "multi_class_weighted": MultiClassHead(3, weight_column="w"),
    "multi_label": MultiLabelHead(3),
    "multi_label_thresholds": MultiLabelHead(3, thresholds=[0.3, 0.6]),
    "regression": RegressionHead(label_dimension=2),
    "regression_weighted": RegressionHead(weight_column="w"),
    "poisson": PoissonRegressionHead(),
    "logistic_regression": LogisticRegressionHead(),
}
every_head = pytest.mark.parametrize(("entry", "head"), HEADS.items(), ids=HEADS)


def test_every_reference_has_a_head_here(golden):
    assert set(HEADS) == set(golden("heads"))


@every_head
def test_metrics_and_loss_equal_tensorflows(golden, entry, head):
    reference = golden("heads")[entry]
    logits = torch.tensor(reference["logits"])
    labels = torch.from_numpy(head.prepare_labels(raw_labels(reference)))
    weights = reference["weights"] and torch.tensor(reference["weights"])

    metrics, losses = head.metrics(), []
    for start in range(0, len(logits), reference["batch_size"]):
        rows = slice(start, start + reference["batch_size"])
        batch = (logits[rows], labels[rows], None if weights is None else weights[rows])
        losses.append(head.loss(*batch).item())
        metrics.update(*batch)
    measured = {**metrics.compute(), "loss": float(np.mean(losses))}

    expected = reference["metrics"]
    assert measured.keys() == expected.keys()
    for key, value in expected.items():
        assert measured[key] == pytest.approx(value, abs=1e-4 if key.startswith("auc") else 1e-5), key


@every_head
def test_predictions_equal_tensorflows(golden, entry, head):
    reference = golden("heads")[entry]
    expected = reference["predictions"]
    count = len(next(iter(expected.values())))
    numeric = head.predictions(torch.tensor(reference["logits"][:count]))
    predictions = head.decode({key: tensor.numpy() for key, tensor in numeric.items()})
    assert tuple(predictions) == tuple(expected) == head.prediction_keys
    for key, values in expected.items():
        if key in ("classes", "all_classes"):
            assert predictions[key].tolist() == values
        else:
            np.testing.assert_allclose(predictions[key], values, atol=1e-5)


def raw_labels(reference):
    labels = np.array(reference["labels"])
    return labels.astype(object) if labels.dtype.kind == "U" else labels
