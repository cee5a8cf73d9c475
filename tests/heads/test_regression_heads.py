"""RegressionHead, PoissonRegressionHead and LogisticRegressionHead."""

import math

import numpy as np
import pytest
import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError
from torch_estimator.heads import LogisticRegressionHead, PoissonRegressionHead, RegressionHead, Signature


def test_the_loss_is_the_mean_squared_error_over_examples_and_targets():
    head = RegressionHead(label_dimension=2)
    loss = head.loss(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 3.0], [1.0, 1.0]]))
    assert loss.item() == 2.5


def test_an_inverse_link_is_applied_to_predictions_and_their_mean_only():
    head = RegressionHead(inverse_link_fn=torch.exp)
    logits, labels = torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [1.0]])
    predictions = head.predictions(logits)
    assert tuple(predictions) == head.prediction_keys == ("predictions", "logits")
    torch.testing.assert_close(predictions["predictions"], logits.exp())
    metrics = head.metrics()
    metrics.update(logits, labels)
    measured = metrics.compute()
    assert measured["average_loss"] == 0.5
    assert measured["prediction/mean"] == pytest.approx(logits.exp().mean().item())


def test_metrics_of_no_batches_are_zero_and_named_after_the_head():
    assert RegressionHead(name="kg").metrics().compute() == {
        "average_loss/kg": 0.0,
        "prediction/mean/kg": 0.0,
        "label/mean/kg": 0.0,
    }


def test_weights_may_differ_by_target():
    head = RegressionHead(label_dimension=2, loss_reduction="sum")
    weights = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert head.loss(torch.ones(2, 2), torch.zeros(2, 2), weights).item() == 3.0


def test_signatures_describe_the_export():
    regress = Signature(method="regress", outputs={"outputs": "predictions"})
    predict = Signature(method="predict", outputs={"predictions": "predictions"})
    assert RegressionHead().signatures() == {
        "serving_default": regress,
        "regression": regress,
        "predict": predict,
    }


def test_it_has_no_classes_to_decode():
    head = RegressionHead()
    predictions = {"predictions": torch.zeros(2, 1).numpy()}
    assert head.class_names is None
    assert head.decode(predictions) == predictions


def test_bad_arguments_are_refused():
    with pytest.raises(InvalidValueError, match="label_dimension must be at least 1, but got 0"):
        RegressionHead(0)
    with pytest.raises(InvalidTypeError, match=r"label_dimension must be an integer, but got 1\.5"):
        RegressionHead(1.5)
    with pytest.raises(InvalidTypeError, match="inverse_link_fn must be a function of logits, but got 'exp'"):
        RegressionHead(inverse_link_fn="exp")


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("label", [0.0, 1.0, 4.0])
def test_the_poisson_loss_is_the_negative_log_likelihood(label, full):
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


def test_poisson_predictions_are_means_and_logits():
    head = PoissonRegressionHead(name="visits")
    predictions = head.predictions(torch.tensor([[2.0]]))
    assert tuple(predictions) == head.prediction_keys == ("predictions", "logits")
    assert predictions["predictions"].item() == pytest.approx(math.exp(2.0))
    regress = Signature(method="regress", outputs={"outputs": "predictions"})
    assert head.signatures()["serving_default"] == head.signatures()["regression"] == regress
    assert list(head.metrics().compute()) == ["average_loss/visits", "prediction/mean/visits", "label/mean/visits"]


def test_bad_arguments_of_a_poisson_head_are_refused():
    with pytest.raises(InvalidTypeError, match="compute_full_loss must be True or False, but got 1"):
        PoissonRegressionHead(compute_full_loss=1)
    with pytest.raises(InvalidTypeError, match="label_dimension must be an integer"):
        PoissonRegressionHead("2")


def test_the_logistic_loss_is_the_cross_entropy_of_a_probability():
    label, probability = 0.25, torch.sigmoid(torch.tensor(1.5))
    expected = -(label * probability.log() + (1 - label) * (1 - probability).log())
    loss = LogisticRegressionHead().loss(torch.tensor([[1.5]]), torch.tensor([[label]]))
    assert loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("label", [-0.1, 1.1])
def test_logistic_labels_outside_of_zero_to_one_are_refused(label):
    with pytest.raises(RowError, match=f"label {label:g} is out of range; expected a number from 0 to 1"):
        LogisticRegressionHead().prepare_labels(np.array([0.5, label]))


def test_logistic_predictions_are_probabilities_and_logits():
    predictions = LogisticRegressionHead(weight_column="w", loss_reduction="sum").predictions(torch.zeros(2, 1))
    assert {key: value.tolist() for key, value in predictions.items()} == {
        "predictions": [[0.5], [0.5]],
        "logits": [[0.0], [0.0]],
    }
