import math

import pytest
import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads import MultiClassHead, Signature


def test_predictions_have_tensorflows_shapes_and_dtypes():
    predictions = MultiClassHead(3).predictions(torch.zeros(4, 3))
    assert {key: (list(tensor.shape), tensor.dtype) for key, tensor in predictions.items()} == {
        "logits": ([4, 3], torch.float32),
        "probabilities": ([4, 3], torch.float32),
        "class_ids": ([4, 1], torch.int64),
        "all_class_ids": ([4, 3], torch.int32),
    }
    assert predictions["class_ids"].tolist() == [[0]] * 4


def test_the_loss_is_softmax_cross_entropy():
    loss = MultiClassHead(3).loss(torch.zeros(2, 3), torch.tensor([[0], [2]]))
    assert loss.item() == pytest.approx(math.log(3))


def test_metrics_of_no_batches_are_zero_and_named_after_the_head():
    assert MultiClassHead(3, name="kind").metrics().compute() == {"average_loss/kind": 0, "accuracy/kind": 0}


def test_a_loss_fn_gets_ids_and_must_return_one_loss_per_example():
    head = MultiClassHead(3, loss_fn=lambda labels, logits: labels.float() + logits[:, :1])
    assert head.loss(torch.zeros(2, 3), torch.tensor([[1], [2]])).item() == 1.5
    wrong = MultiClassHead(3, loss_fn=lambda labels, logits: logits)
    with pytest.raises(InvalidValueError, match=r"of shape \[2, 1\], but it returned shape \[2, 3\]"):
        wrong.loss(torch.zeros(2, 3), torch.tensor([[1], [2]]))


def test_signatures_describe_the_export():
    head = MultiClassHead(3)
    classify = Signature(method="classify", outputs={"scores": "probabilities", "classes": "all_classes"})
    assert head.signatures() == {
        "serving_default": classify,
        "classification": classify,
        "predict": Signature(method="predict", outputs={key: key for key in head.prediction_keys}),
    }


def test_class_names_are_the_vocabulary_or_the_ids():
    assert MultiClassHead(3).class_names == ["0", "1", "2"]
    assert MultiClassHead(3, label_vocabulary=["a", "b", "c"]).class_names == ["a", "b", "c"]
    assert MultiClassHead(3).logits_dimension == 3


def test_the_number_of_classes_must_be_an_integer_above_two():
    with pytest.raises(InvalidValueError, match="n_classes must be at least 3, but got 2; BinaryClassHead"):
        MultiClassHead(2)
    with pytest.raises(InvalidTypeError, match="n_classes must be an integer of at least 3, but got None"):
        MultiClassHead(None)
    with pytest.raises(InvalidValueError, match="each of the 3 classes, but it has 2"):
        MultiClassHead(3, label_vocabulary=["a", "b"])
