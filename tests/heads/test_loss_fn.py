from functools import partial

import pytest
import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.heads import RegressionHead


def scaled(labels, logits, scale):
    return scale * (labels - logits)


def test_other_arguments_may_be_bound():
    head = RegressionHead(loss_fn=partial(scaled, scale=3.0))
    assert head.loss(torch.zeros(2, 1), torch.ones(2, 1)).item() == 3.0


def test_other_arguments_are_refused():
    with pytest.raises(InvalidValueError, match=r"loss_fn has unexpected args: \['scale'\]; it may take labels"):
        RegressionHead(loss_fn=scaled)


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda labels: labels, "loss_fn must contain argument: logits; given arguments: labels"),
        (lambda logits: logits, "loss_fn must contain argument: labels"),
        (lambda: 0, "given arguments: none"),
    ],
)
def test_labels_and_logits_are_required(loss_fn, message):
    with pytest.raises(InvalidValueError, match=message):
        RegressionHead(loss_fn=loss_fn)


def test_features_are_given_to_a_function_that_names_them():
    head = RegressionHead(loss_fn=lambda labels, logits, features: (labels - logits) * features["by"])
    assert head.wants_features
    assert not RegressionHead().wants_features
    features = {"by": torch.tensor([[2.0], [4.0]])}
    assert head.loss(torch.zeros(2, 1), torch.ones(2, 1), None, features).item() == 3.0
    metrics = head.metrics()
    metrics.update(torch.zeros(2, 1), torch.ones(2, 1), None, features)
    assert metrics.compute()["average_loss"] == 3.0


def test_missing_features_are_an_error():
    head = RegressionHead(loss_fn=lambda labels, logits, features: labels - logits)
    with pytest.raises(InvalidValueError, match="loss_fn takes features, but the head was called without them"):
        head.loss(torch.zeros(2, 1), torch.ones(2, 1))
