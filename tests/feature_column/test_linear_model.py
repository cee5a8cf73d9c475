from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torch_estimator import feature_column as fc


def tensors(transform: fc.FeatureTransform, raw: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(value) for key, value in transform(raw).items()}


COLOR = fc.categorical_column_with_vocabulary_list("color", ["red", "green"])
SIZE = fc.bucketized_column(fc.numeric_column("size", shape=2), [0.0])


def test_the_logit_is_the_sum_of_weights_of_ids_and_numbers_and_the_bias() -> None:
    transform = fc.FeatureTransform([COLOR, SIZE, fc.numeric_column("x", shape=2), fc.numeric_column("type")])
    assert transform.linear is not None
    model = fc.LinearModel(transform.linear, units=2)
    raw = {
        "color": np.array(["green", ""]),
        "size": np.array([[-1.0, 1.0], [1.0, 1.0]]),
        "x": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "type": np.array([5.0, 6.0]),
    }
    features = tensors(transform, raw)
    assert model(features).tolist() == [[0, 0], [0, 0]]
    parameters = dict(model.named_parameters())
    (table,) = [module for module in model.modules() if isinstance(module, fc.Table)]
    with torch.no_grad():
        table.weight[:-1] = torch.tensor([[1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60]])
        parameters["x.weights"].copy_(torch.tensor([[100, 0], [0, 100]]))
        parameters["type.weights"].copy_(torch.tensor([[1000, 2000]]))
        parameters["bias_weights"].copy_(torch.tensor([0.5, 0.25]))
    assert model(features).tolist() == [
        [2 + 3 + 6 + 100 + 5000 + 0.5, 20 + 30 + 60 + 200 + 10_000 + 0.25],
        [4 + 6 + 300 + 6000 + 0.5, 40 + 60 + 400 + 12_000 + 0.25],
    ]


def test_variables_have_the_names_of_tensorflow() -> None:
    transform = fc.FeatureTransform([COLOR, SIZE, fc.numeric_column("x"), fc.numeric_column("train")])
    assert transform.linear is not None
    model = fc.LinearModel(transform.linear, units=1)
    (table,) = [module for module in model.modules() if isinstance(module, fc.Table)]
    assert [piece.name for piece in table.pieces] == [
        "linear/linear_model/color/weights",
        "linear/linear_model/size_bucketized/weights",
    ]
    others = {name: p.shape for name, p in model.named_parameters() if p is not table.weight}
    assert others == {"bias_weights": (1,), "x.weights": (1, 1), "train.weights": (1, 1)}
    assert model.eval().training is False


@pytest.mark.parametrize("columns", [[COLOR], [fc.numeric_column("x")]])
def test_one_kind_of_column_alone(columns: list[Any]) -> None:
    transform = fc.FeatureTransform(columns)
    assert transform.linear is not None
    features = tensors(transform, {"color": np.array(["red"] * 3), "x": np.zeros(3)})
    assert fc.LinearModel(transform.linear, units=4)(features).shape == (3, 4)


def test_the_numbers_of_indicators_and_embeddings_have_weights_whatever_the_combiner() -> None:
    indicator, embedding = fc.indicator_column(SIZE), fc.embedding_column(COLOR, 2, initializer=torch.nn.init.ones_)
    transform = fc.FeatureTransform([indicator, embedding, COLOR])
    assert transform.linear is not None
    model = fc.LinearModel(transform.linear, units=1, sparse_combiner="mean")
    names = [piece.name for module in model.modules() if isinstance(module, fc.Table) for piece in module.pieces]
    assert names == ["linear/linear_model/color/weights", "linear/linear_model/color_embedding/embedding_weights"]
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        parameters["color_embedding.weights"].copy_(torch.tensor([[1.0], [2.0]]))
        parameters["size_bucketized_indicator.weights"].copy_(torch.tensor([[10.0], [20.0], [30.0], [40.0]]))
    raw = {"color": np.array(["green", ""]), "size": np.array([[-1.0, 1.0], [1.0, 1.0]])}
    assert model(tensors(transform, raw)).tolist() == [[3 + 10 + 40], [20 + 40]]
