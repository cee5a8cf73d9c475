import pytest
import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads import RegressionHead, Signature


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
