from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_estimator import feature_column as fc
from torch_estimator.errors import InvalidTypeError, InvalidValueError

SEEN = fc.categorical_column_with_identity("seen", 4, multivalent=True)
BOUGHT = fc.categorical_column_with_identity("bought", 4)
RAW = {"seen": pa.array([[3, 1], [1]]), "bought": np.array([1, 3])}


def layer_of(columns: list[Any], raw: dict[str, Any]) -> tuple[fc.InputLayer, dict[str, torch.Tensor]]:
    transform = fc.FeatureTransform((), columns)
    assert transform.dnn is not None
    features = {key: torch.from_numpy(value) for key, value in transform.padded(transform(raw)).items()}
    return fc.InputLayer(transform.dnn), features


def pieces(layer: fc.InputLayer) -> list[str]:
    tables = [module for module in layer.modules() if isinstance(module, fc.Table)]
    return [piece.name.rpartition("input_layer/")[2] for table in tables for piece in table.pieces]


def test_columns_look_up_the_same_vectors_and_are_ordered_by_name() -> None:
    columns = fc.shared_embeddings([SEEN, BOUGHT], 2, combiner="sum")
    assert [column.name for column in columns] == ["seen_shared_embedding", "bought_shared_embedding"]
    own = fc.embedding_column(BOUGHT, 2)
    layer, features = layer_of([*columns, own], RAW)
    assert pieces(layer) == ["bought_embedding/embedding_weights", "bought_seen_shared_embedding/embedding_weights"]
    (table,) = layer.tables
    shared = table.weight[4:8]
    output = layer(features)
    assert output.shape == (2, 6)
    torch.testing.assert_close(output[:, :2], table.weight[:4][[1, 3]])
    torch.testing.assert_close(output[:, 2:4], shared[[1, 3]])
    torch.testing.assert_close(output[:, 4:], torch.stack([shared[3] + shared[1], shared[1]]))


def test_gradients_of_all_uses_are_added_up() -> None:
    layer, features = layer_of(list(fc.shared_embeddings([SEEN, BOUGHT], 2, combiner="sum")), RAW)
    layer(features).sum().backward()
    (table,) = layer.tables
    assert table.weight.grad[:, 0].tolist() == [0, 3, 0, 2, 0]  # type: ignore[union-attr,index]


def test_the_variable_can_be_named_and_the_function_of_v1_is_the_same() -> None:
    columns = fc.shared_embedding_columns([SEEN, BOUGHT], 2, shared_embedding_collection_name="items")
    layer, _ = layer_of(list(columns), RAW)
    assert pieces(layer) == ["items/embedding_weights"]


def test_vectors_longer_than_max_norm_are_shortened_where_they_are_looked_up() -> None:
    def fill(rows: torch.Tensor) -> None:
        rows.copy_(torch.tensor([[0.0, 0], [3, 4], [0.3, 0.4], [6, 8]]))

    column = fc.embedding_column(SEEN, 2, combiner="sum", initializer=fill, max_norm=1.0)
    one = fc.embedding_column(BOUGHT, 2, initializer=fill, max_norm=1.0)
    raw = {"seen": pa.array([[3, 1, 2], [0], []]), "bought": np.array([3, 0, 2])}
    layer, features = layer_of([column, one, fc.indicator_column(BOUGHT)], raw)
    output = layer(features)
    torch.testing.assert_close(output[:, :2], torch.tensor([[0.6, 0.8], [0, 0], [0.3, 0.4]]))
    torch.testing.assert_close(output[:, 6:], torch.tensor([[1.5, 2.0], [0, 0], [0, 0]]))
    (table,) = layer.tables
    assert table.weight[3].tolist() == [6, 8]
    output.sum().backward()
    gradient = table.weight.grad
    assert gradient is not None
    assert torch.isfinite(gradient).all()
    # The length of a clipped vector has no effect, so its gradient is orthogonal to it.
    assert abs(float(gradient[3] @ torch.tensor([0.6, 0.8]))) < 1e-6
    assert gradient[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fc.shared_embeddings([], 2), "one or more categorical columns, but got none"),
        (
            lambda: fc.shared_embeddings([SEEN, fc.categorical_column_with_identity("x", 5)], 2),
            "'seen' has 4 and 'x' 5",
        ),
        (
            lambda: fc.shared_embeddings([SEEN, fc.categorical_column_with_hash_bucket("x", 4)], 2),
            "'seen' is a IdentityCategoricalColumn and 'x' a HashedCategoricalColumn",
        ),
        (lambda: fc.shared_embeddings([SEEN, fc.numeric_column("x")], 2), "shared_embeddings takes a categorical"),  # type: ignore[list-item]
        (lambda: fc.shared_embeddings([SEEN], 0), "must be a positive integer, but got 0"),
        (lambda: fc.shared_embeddings([SEEN], 2, max_norm=-1), "must be None or a positive number, but got -1"),
        (
            lambda: layer_of(
                [
                    *fc.shared_embeddings([SEEN], 2, shared_embedding_collection_name="v"),
                    *fc.shared_embeddings([BOUGHT], 3, shared_embedding_collection_name="v"),
                ],
                RAW,
            ),
            "share the variable 'v', but differ",
        ),
    ],
)
def test_invalid_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make()


@pytest.mark.parametrize("columns", ["seen", SEEN, [SEEN, "bought"]])
def test_shared_embeddings_refuse_anything_but_a_list_of_columns(columns: Any) -> None:
    with pytest.raises(InvalidTypeError, match="but got"):
        fc.shared_embeddings(columns, 2)


def test_a_weighted_column_has_the_kind_of_its_categorical_column() -> None:
    columns = fc.shared_embeddings([fc.weighted_categorical_column(SEEN, "w"), BOUGHT], 2, combiner="sum")
    layer, features = layer_of(list(columns), {**RAW, "w": pa.array([[2.0, 0.0], [1.0]])})
    output = layer(features)
    (table,) = layer.tables
    torch.testing.assert_close(output[0, 2:], 2 * table.weight[3])
