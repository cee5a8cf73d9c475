"""`DenseFeatures` and `LinearModel` made of columns: the Estimator converts the columns of each by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from torch_estimator import feature_column as fc

TOWN = fc.categorical_column_with_vocabulary_list("town", ["Ulm", "Bonn", "Jena"])
SIZE = fc.numeric_column("size")
DEEP = [SIZE, fc.embedding_column(TOWN, 2), fc.indicator_column(TOWN)]
WIDE = [TOWN, fc.bucketized_column(SIZE, [0.0]), fc.embedding_column(TOWN, 3)]
FEATURES = {"size": np.linspace(-1, 1, 24, dtype=np.float32), "town": np.array(["Ulm", "Bonn", "", "Jena"] * 6)}
ROWS = te.data.Dataset.from_arrays(FEATURES, (np.arange(24) % 3).astype(np.float32)).batch(8)


class Towers(nn.Module):
    """Two towers with an embedding each of the same column, and a linear model beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.left = fc.DenseFeatures(DEEP)
        self.right = nn.ModuleList([fc.DenseFeatures(DEEP[1:2], name="right")])
        self.wide = fc.LinearModel(WIDE, units=1)
        self.out = nn.Linear(self.left.width, 2)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        both = self.out(self.left(features)) * self.right[0](features)
        return both.sum(1, keepdim=True) + self.wide(features)


def towers(model_dir: str) -> te.Estimator:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode, module=Towers(), head=te.RegressionHead(), optimizer=te.optim.Adagrad(lr=0.1)
        )

    return te.Estimator(model_fn, model_dir, te.RunConfig(random_seed=1))


def test_each_layer_has_variables_of_its_own_which_are_trained_and_saved(tmp_path: Path) -> None:
    estimator = towers(str(tmp_path / "job")).train(lambda: ROWS, steps=2)
    names = [name for name in estimator.get_variable_names() if "Adagrad" not in name]
    assert names == [
        "dense_features/town_embedding/embedding_weights",
        "global_step",
        "linear_model/size_bucketized/weights",
        "linear_model/town/weights",
        "linear_model/town_embedding/embedding_weights",
        "out.bias",
        "out.weight",
        "right/town_embedding/embedding_weights",
        "wide.bias_weights",
        "wide.town_embedding.weights",
    ]
    left, right = (
        estimator.get_variable_value(f"{name}/town_embedding/embedding_weights") for name in ("dense_features", "right")
    )
    assert left.shape == right.shape and not np.allclose(left, right)
    before = {name: estimator.get_variable_value(name) for name in names}
    estimator.train(lambda: ROWS, steps=3)
    assert all((estimator.get_variable_value(name) != before[name]).any() for name in names)
    predicted = np.concatenate([row["predictions"] for row in estimator.predict(lambda: ROWS)])
    again = np.concatenate([row["predictions"] for row in towers(str(tmp_path / "job")).predict(lambda: ROWS)])
    np.testing.assert_array_equal(predicted, again)
    path = estimator.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features([SIZE, TOWN]))
    exported = te.ExportedModel.load(path).predict(FEATURES, "predict")["predictions"]
    np.testing.assert_allclose(exported[:, 0], predicted, atol=1e-5)


def test_they_train_as_layers_of_a_transform_do(tmp_path: Path) -> None:
    transform = fc.FeatureTransform(WIDE, DEEP)
    assert transform.linear is not None and transform.dnn is not None
    made: dict[str, Callable[[], tuple[Any, Any]]] = {
        "columns": lambda: (fc.DenseFeatures(DEEP), fc.LinearModel(WIDE)),
        # Initial values depend on the names of the variables.
        "layouts": lambda: (
            fc.InputLayer(transform.dnn, "dense_features"),
            fc.LinearModel(transform.linear, name="linear_model"),
        ),
    }
    losses = []
    for name, make in made.items():
        torch.manual_seed(3)
        deep, wide = make()
        estimator = te.Estimator.from_module(
            Sum(deep, wide),
            loss=lambda outputs, labels: (outputs[:, 0] - labels).square().mean(),
            optimizer=te.optim.Adam(lr=0.1),
            transform=transform if name == "layouts" else None,
            model_dir=str(tmp_path / name),
            config=te.RunConfig(random_seed=1),
        )
        losses.append(estimator.train(lambda: ROWS, steps=3).evaluate(lambda: ROWS)["loss"])
    assert losses[0] == losses[1]


class Sum(nn.Module):
    def __init__(self, deep: Any, wide: Any) -> None:
        super().__init__()
        self.deep, self.wide = deep, wide

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return self.deep(features).sum(1, keepdim=True) + self.wide(features)


def spec(module: nn.Module, **settings: Any) -> te.EstimatorSpec:
    return te.EstimatorSpec(mode="infer", module=module, **settings)


def test_layers_of_one_name_are_an_error() -> None:
    layers = nn.ModuleList([fc.DenseFeatures(DEEP), fc.DenseFeatures([SIZE])])
    with pytest.raises(te.UserError, match=r"'dense_features'; .*: DenseFeatures\(columns, name=.dense_features_1"):
        spec(layers)


def test_another_transform_is_an_error() -> None:
    with pytest.raises(te.UserError, match=r"'linear_model' made of columns, .*; give no transform, or"):
        spec(fc.LinearModel(WIDE), transform=fc.FeatureTransform(WIDE))


def test_a_layer_that_is_no_part_of_the_module_is_an_error() -> None:
    hidden = [fc.DenseFeatures(DEEP)]

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 1)

        def forward(self, features: dict[str, Tensor]) -> Tensor:
            return self.out(hidden[0](features))

    estimator = te.Estimator.from_module(Hidden(), head=te.RegressionHead(), optimizer="SGD")
    with pytest.raises(te.UserError, match=r"layer 'dense_features' are not converted, .* as an attribute"):
        estimator.train(lambda: te.data.Dataset.from_arrays({"size": [1.0]}, [1.0]).batch(1), steps=1)


@pytest.mark.parametrize("layer", [fc.DenseFeatures, fc.LinearModel])
def test_wrong_columns_and_names_are_errors(layer: Any) -> None:
    with pytest.raises(te.UserError, match=r"columns of a \w+ must hold at least one feature column"):
        layer([])
    with pytest.raises(te.UserError, match=r"columns of a \w+ must be a list, but got 'size'"):
        layer("size")
    with pytest.raises(te.UserError, match=r"name of a \w+ must be a non-empty string, but got ''"):
        layer(DEEP, name="")
    with pytest.raises(te.UserError, match="columns must be feature columns, but got 5"):
        layer([5])
