import math

import numpy as np
import pytest
import torch

from torch_estimator.errors import InvalidTypeError, RowError
from torch_estimator.heads import PoissonRegressionHead, Signature


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("label", [0.0, 1.0, 4.0])
def test_the_loss_is_the_negative_log_likelihood(label, full):
    head = PoissonRegressionHead(compute_full_loss=full)
    expected = math.exp(0.5) - label * 0.5
    if full and label > 1:
        expected += label * math.log(label) - label + 0.5 * math.log(2 * math.pi * label)
    assert head.loss(torch.tensor([[0.5]]), torch.tensor([[label]])).item() == pytest.approx(expected)


def test_negative_counts_are_refused():
    with pytest.raises(RowError, match="label -1 is out of range; expected a number that is not negative") as caught:
        PoissonRegressionHead(2).prepare_labels(np.array([[0.0, 3.0], [1.0, -1.0]]))
    assert caught.value.row == 1
    assert PoissonRegressionHead().prepare_labels(np.array([0, 7])).tolist() == [[0.0], [7.0]]


def test_predictions_are_means_beside_logits():
    head = PoissonRegressionHead(name="visits")
    predictions = head.predictions(torch.tensor([[2.0]]))
    assert tuple(predictions) == head.prediction_keys == ("predictions", "logits")
    assert predictions["predictions"].item() == pytest.approx(math.exp(2.0))
    regress = Signature(method="regress", outputs={"outputs": "predictions"})
    assert head.signatures()["serving_default"] == head.signatures()["regression"] == regress
    assert list(head.metrics().compute()) == ["average_loss/visits", "prediction/mean/visits", "label/mean/visits"]


def test_bad_arguments_are_refused():
    with pytest.raises(InvalidTypeError, match="compute_full_loss must be True or False, but got 1"):
        PoissonRegressionHead(compute_full_loss=1)
    with pytest.raises(InvalidTypeError, match="label_dimension must be an integer"):
        PoissonRegressionHead("2")
