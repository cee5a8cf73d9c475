import numpy as np
import pytest
import torch

from torch_estimator.errors import RowError
from torch_estimator.heads import LogisticRegressionHead


def test_the_loss_is_the_cross_entropy_of_a_probability():
    label, probability = 0.25, torch.sigmoid(torch.tensor(1.5))
    expected = -(label * probability.log() + (1 - label) * (1 - probability).log())
    loss = LogisticRegressionHead().loss(torch.tensor([[1.5]]), torch.tensor([[label]]))
    assert loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("label", [-0.1, 1.1])
def test_labels_outside_of_zero_to_one_are_refused(label):
    with pytest.raises(RowError, match=f"label {label:g} is out of range; expected a number from 0 to 1"):
        LogisticRegressionHead().prepare_labels(np.array([0.5, label]))


def test_predictions_are_probabilities_beside_logits():
    predictions = LogisticRegressionHead(weight_column="w", loss_reduction="sum").predictions(torch.zeros(2, 1))
    assert {key: value.tolist() for key, value in predictions.items()} == {
        "predictions": [[0.5], [0.5]],
        "logits": [[0.0], [0.0]],
    }
