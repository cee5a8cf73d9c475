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
