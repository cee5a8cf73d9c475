"""Columns whose rows have lists of values: their ids, and what models make of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_estimator import feature_column as fc
from torch_estimator.errors import InvalidValueError, RowError
from torch_estimator.feature_column.hashing import fingerprint_cat64, hash_strings

TAGS = fc.categorical_column_with_vocabulary_list("tags", ["a", "b", "c"], multivalent=True)
RAW = {"tags": pa.array([["b", "a", "b"], [], ["z", "", "c"], None])}
WEIGHTS = {"w": pa.array([[1.0, 2.0, 0.5], [], [7.0, 7.0, -2.0], None])}
WEIGHTED = fc.weighted_categorical_column(TAGS, "w")


def ids_of(column: Any, raw: dict[str, Any]) -> list[list[int]]:
    return fc.FeatureTransform([column])(raw)[f"linear/ids/{column.name}"].to_pylist()  # type: ignore[no-any-return]


def tensors(transform: fc.FeatureTransform, raw: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(value) for key, value in transform.padded(transform(raw)).items()}


def dense(column: Any, raw: dict[str, Any]) -> list[list[float]]:
    transform = fc.FeatureTransform((), [column])
    assert transform.dnn is not None
    return fc.InputLayer(transform.dnn)(tensors(transform, raw)).tolist()  # type: ignore[no-any-return]


def count_up(rows: torch.Tensor) -> None:
    """Fill row i with (i + 1, 10 * (i + 1))."""
    rows.copy_(torch.arange(1, len(rows) + 1).unsqueeze(1) * torch.tensor([1, 10]))


def test_ids_are_in_the_lists_order_without_missing_and_unknown_values() -> None:
    assert ids_of(TAGS, RAW) == [[1, 0, 1], [], [2], []]
    hashed = fc.categorical_column_with_hash_bucket("tags", 100, hash_function="farmhash", multivalent=True)
    a, b, c, z = (int(hash_strings([one], "farmhash")[0] % np.uint64(100)) for one in "abcz")
    assert ids_of(hashed, RAW) == [[b, a, b], [], [z, c], []]
    numbers = fc.categorical_column_with_hash_bucket("n", 97, dtype=int, hash_function="farmhash", multivalent=True)
    assert ids_of(numbers, {"n": np.array([[5, -1], [-7, 5]])}) == [[5], [92, 5]]


def test_lists_are_padded_to_powers_of_two() -> None:
    transform = fc.FeatureTransform([TAGS])
    assert transform.padded(transform(RAW))["linear/ids/tags"].tolist() == [
        [1, 0, 1, 3],
        [3] * 4,
        [2, 3, 3, 3],
        [3] * 4,
    ]
    for longest, width in ((0, 1), (1, 1), (2, 2), (4, 4), (5, 8), (9, 16)):
        ids = transform.padded(transform({"tags": pa.array([["a"] * longest], pa.list_(pa.string()))}))
        assert ids["linear/ids/tags"].shape == (1, width)
    assert transform.padded(transform({"tags": pa.array([], pa.list_(pa.string()))}))["linear/ids/tags"].shape == (0, 1)


def test_lists_stay_the_same_when_sliced_and_joined() -> None:
    transform = fc.FeatureTransform([WEIGHTED])
    features = transform({**RAW, **WEIGHTS})
    for name, array in features.items():
        joined = pa.concat_arrays([array.slice(2), array.slice(0, 2)])
        again = joined.take(pa.array([2, 3, 0, 1]))
        assert again.to_pylist() == array.to_pylist()
        parts = [transform.padded({**features, name: again})[name], transform.padded(features)[name]]
        np.testing.assert_array_equal(*parts)


def test_a_weighted_column_keeps_each_values_weight() -> None:
    features = fc.FeatureTransform([WEIGHTED])({**RAW, **WEIGHTS})
    assert features["linear/ids/tags_weighted_by_w"].to_pylist() == [[1, 0, 1], [], [2], []]
    assert features["linear/ids/tags_weighted_by_w/weights"].to_pylist() == [[1, 2, 0.5], [], [-2], []]


def test_one_weighted_value_a_row() -> None:
    city = fc.weighted_categorical_column(fc.categorical_column_with_vocabulary_list("city", ["x", "y"]), "w", int)
    features = fc.FeatureTransform([city])({"city": np.array(["y", "", "x"]), "w": np.array([3, 5, 0])})
    assert features["linear/ids/city_weighted_by_w"].to_pylist() == [[1], [], [0]]
    assert features["linear/ids/city_weighted_by_w/weights"].to_pylist() == [[3], [], [0]]
    pair = fc.weighted_categorical_column(fc.bucketized_column(fc.numeric_column("p", 2), [0]), "w")
    assert dense(fc.indicator_column(pair), {"p": np.array([[-1, 1]]), "w": np.array([[2, np.nan]])}) == [[2, 0, 0, 0]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (pa.array([[1.0], [], [1, 2, 3.0], []]), "row 0 .*: 1 weights for the 3 values of 'tags'"),
        (pa.array([[1.0, 2, 3], [], [1, 2, 3.0], [1]]), "row 3 .*: 1 weights for the 0 values"),
        (np.ones(4), "row 0 .*: 1 weights for the 3 values"),
    ],
)
def test_another_number_of_weights_than_of_values_names_the_row(weights: Any, message: str) -> None:
    with pytest.raises(RowError, match=message) as caught:
        fc.FeatureTransform([WEIGHTED])({**RAW, "w": weights})
    assert caught.value.column == "w"


def test_an_indicator_counts_or_adds_weights_up() -> None:
    assert dense(fc.indicator_column(TAGS), RAW) == [[1, 2, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert dense(fc.indicator_column(WEIGHTED), {**RAW, **WEIGHTS}) == [[2, 1.5, 0], [0] * 3, [0, 0, -2], [0] * 3]


@pytest.mark.parametrize(
    ("combiner", "plain", "first", "third"),
    [
        ("sum", 5.0, 2 * 1.5 + 1 * 2, 3 * -2),
        ("mean", 5 / 3, (2 * 1.5 + 1 * 2) / 3.5, 0),
        ("sqrtn", 5 / math.sqrt(3), (2 * 1.5 + 1 * 2) / math.sqrt(1 + 4 + 0.25), 0),
    ],
)
def test_embeddings_combine_by_weight_and_skip_weights_that_are_not_positive(
    combiner: Any, plain: float, first: float, third: float
) -> None:
    column = fc.embedding_column(TAGS, 2, combiner=combiner, initializer=count_up)
    assert np.allclose(dense(column, RAW), [[plain, 10 * plain], [0, 0], [3, 30], [0, 0]])
    column = fc.embedding_column(WEIGHTED, 2, combiner=combiner, initializer=count_up)
    assert np.allclose(dense(column, {**RAW, **WEIGHTS}), [[first, 10 * first], [0, 0], [third, 10 * third], [0, 0]])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_linear_model_combines_each_columns_values_and_adds_columns_up(combiner: Any) -> None:
    city = fc.categorical_column_with_vocabulary_list("city", ["x", "y"])
    pair = fc.bucketized_column(fc.numeric_column("p", 2), [0])
    transform = fc.FeatureTransform([TAGS, WEIGHTED, city, pair])
    assert transform.linear is not None
    model = fc.LinearModel(transform.linear, 1, combiner)
    (table,) = [module for module in model.modules() if isinstance(module, fc.Table)]
    with torch.no_grad():
        for number, piece in enumerate(table.pieces):
            count = torch.arange(1, piece.rows + 1).unsqueeze(1)
            table.weight[piece.offset : piece.offset + piece.rows] = 100**number * count
    assert [piece.name.split("/")[2] for piece in table.pieces] == [
        "city",
        "p_bucketized",
        "tags",
        "tags_weighted_by_w",
    ]
    raw = {**RAW, **WEIGHTS, "city": np.array(["y", "", "x", ""]), "p": np.array([[-1, 1]] * 4)}
    logits = model(tensors(transform, raw)).ravel().tolist()

    def combined(values: list[float], weights: list[float]) -> float:
        if combiner != "sum":
            weights = [max(weight, 0) for weight in weights]
        total = sum(value * weight for value, weight in zip(values, weights, strict=True))
        if combiner == "mean":
            return total / (sum(weights) or 1)
        return total / (math.sqrt(sum(weight**2 for weight in weights)) or 1) if combiner == "sqrtn" else total

    pairs = 100 * combined([1, 4], [1, 1])
    expected = [
        2 + pairs + 100**2 * combined([2, 1, 2], [1] * 3) + 100**3 * combined([2, 1, 2], [1, 2, 0.5]),
        pairs,
        1 + pairs + 100**2 * 3 + 100**3 * combined([3], [-2]),
        pairs,
    ]
    assert logits == pytest.approx(expected, rel=1e-6)


def cross_reference(start: int, rows: list[list[list[Any]]], buckets: int) -> list[list[int]]:
    """Return the ids of a cross, computed combination by combination from the values of its leaves in each row."""

    def number(value: Any) -> int:
        return int(hash_strings([value], "murmur3")[0]) if isinstance(value, str) else value % 2**64

    result: list[list[int]] = []
    for leaves in rows:
        states = [start]
        for leaf in leaves:
            states = [
                int(fingerprint_cat64(np.uint64(state), np.array([number(value)], np.uint64))[0])
                for state in states
                for value in leaf
            ]
        result.append([state % buckets for state in states])
    return result


def test_a_cross_of_lists_has_every_combination_the_last_leaf_fastest() -> None:
    pair = fc.bucketized_column(fc.numeric_column("p", 2), [0])
    cross = fc.crossed_column(["dense", pair, TAGS, "words"], 10**6, multivalent=["words"])
    assert [getattr(leaf, "name", leaf) for leaf in cross.leaves] == ["p_bucketized", "tags", "words", "dense"]
    raw = {
        **RAW,
        "p": np.array([[-1, 1]] * 4),
        "words": pa.array([["u", "", "v"], ["u"], ["w"], ["w"]]),
        "dense": np.array(["d", "e", "", "f"]),
    }
    expected = cross_reference(
        cross.start,
        [
            [[0, 3], [1, 0, 1], ["u", "v"], ["d"]],
            [[0, 3], [], ["u"], ["e"]],
            [[0, 3], [-1, 2], ["w"], [""]],
            [[0, 3], [], ["w"], ["f"]],
        ],
        10**6,
    )
    assert ids_of(cross, raw) == expected
    assert [len(row) for row in expected] == [12, 0, 4, 0]


def test_lists_of_strings_are_combined_where_they_are_declared(golden: Any) -> None:
    reference = golden("hash")["cross_1000"]
    bucket = fc.bucketized_column(fc.numeric_column("n"), [0.0])
    raw = {"x": np.array([["a"]]), "y": pa.array([["q"]]), "n": np.array([5.0])}

    def ids(keys: list[Any], **arguments: Any) -> list[list[int]]:
        return ids_of(fc.crossed_column(keys, 1000, hash_function="farmhash", **arguments), raw)

    assert ids(["x", bucket, "y"], multivalent=["x", "y"]) == [[reference["[a,1,q]"]]]
    assert ids(["x", "y"], multivalent=["x", "y"], hash_key=12345) == [[reference["[a,q] key=12345"]]]
    nested = fc.crossed_column(["x", bucket], 7, multivalent="x")
    assert ids([nested, "y"], multivalent=["y"]) == [[reference["[a,1,q]"]]]


def test_lists_of_a_nested_cross_are_lists_of_the_outer_cross() -> None:
    inner = fc.crossed_column(["x", "y"], 7, multivalent=["x"])
    outer = fc.crossed_column([inner, "x"], 7)
    assert outer.multivalent
    assert [(one.key, one.multivalent) for one in outer.raw_features] == [("x", True), ("x", True), ("y", False)]


def test_lists_without_multivalent_raise_an_error_with_the_cure() -> None:
    plain = fc.categorical_column_with_vocabulary_list("tags", ["a"])
    for column in (RAW["tags"], np.array([["a", "b"]] * 4), pa.array([["a"]] * 4, pa.large_list(pa.string()))):
        with pytest.raises(InvalidValueError, match=r"raw column 'tags' .*give .* multivalent=True"):
            fc.FeatureTransform([plain])({"tags": column})
    objects = np.empty(1, object)
    objects[0] = ["a", "b"]
    with pytest.raises(RowError, match="where rows hold lists, give the feature column multivalent=True"):
        fc.FeatureTransform([plain])({"tags": objects})


def test_one_raw_column_cannot_hold_both_lists_and_single_values() -> None:
    with pytest.raises(InvalidValueError, match="holds lists for one feature column and one value per row for another"):
        fc.FeatureTransform([TAGS, fc.crossed_column(["tags", "b"], 5)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fc.weighted_categorical_column(WEIGHTED, "v"), "without weights, but got"),
        (lambda: fc.weighted_categorical_column(fc.numeric_column("x"), "w"), "without weights, but got"),  # type: ignore[arg-type]
        (lambda: fc.weighted_categorical_column(TAGS, ""), "key must be a non-empty string"),
        (lambda: fc.weighted_categorical_column(TAGS, "tags"), "both the values and the weights"),
        (lambda: fc.weighted_categorical_column(TAGS, "w", str), "integer or floating-point type, but got 'string'"),
        (
            lambda: fc.weighted_categorical_column(fc.crossed_column([TAGS, "b"], 5), "w"),
            "give weights to a column that is not crossed",
        ),
        (
            lambda: fc.crossed_column([WEIGHTED, "b"], 5),
            "'tags_weighted_by_w' cannot be crossed; cross its categorical",
        ),  # type: ignore[list-item]
        (lambda: fc.crossed_column(["a", "b"], 5, multivalent=["c"]), "has 'c', which is not a raw string column"),
        (lambda: fc.crossed_column([TAGS, "b"], 5, multivalent=["tags"]), "'tags', which is not a raw string column"),
    ],
)
def test_invalid_values_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make()


def test_required_types_are_lists_for_multivalent_columns() -> None:
    number = fc.categorical_column_with_identity("n", 5, multivalent=True)
    transform = fc.FeatureTransform([WEIGHTED, number, fc.numeric_column("x")])
    assert transform.required == {
        "n": pa.list_(pa.int64()),
        "tags": pa.list_(pa.string()),
        "w": pa.list_(pa.float32()),
        "x": pa.float32(),
    }
