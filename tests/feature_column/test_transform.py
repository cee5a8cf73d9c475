from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch

from torch_estimator import feature_column as fc
from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.hashing import fingerprint_cat64, hash_strings

MISSING = -1


def ids_of(column: Any, columns: dict[str, Any]) -> list[list[int]]:
    """Return a column's ids in each row, by the transform of a linear model; -1 is missing."""
    transform = fc.FeatureTransform([column])
    ids = transform(columns)["linear/ids"]
    return np.where(ids == column.num_buckets, MISSING, ids).tolist()  # type: ignore[no-any-return]


def flat(ids: list[list[int]]) -> list[int]:
    return [one for row in ids for one in row]


def test_census_ids_equal_those_of_tensorflow(golden: Callable[[str], Any], census_columns: Any) -> None:
    reference = golden("census_feature_ids")
    rows = {key: np.array(values) for key, values in reference["rows"].items()}
    wide, _ = census_columns("farmhash")
    assert {column.name: ids_of(column, rows) for column in wide} == reference["ids"]


def test_crosses_of_strings_and_ids_equal_those_of_tensorflow(golden: Callable[[str], Any]) -> None:
    reference = golden("hash")["cross_1000"]
    bucket = fc.bucketized_column(fc.numeric_column("n"), [0.0])
    raw = {"x": np.array(["a"]), "y": np.array(["q"]), "n": np.array([5.0])}
    mixed = fc.crossed_column(["x", bucket, "y"], 1000, hash_function="farmhash")
    assert ids_of(mixed, raw) == [[reference["[1,a,q]"]]]
    strings = fc.crossed_column(["x", "y"], 1000, hash_key=12345, hash_function="farmhash")
    assert ids_of(strings, raw) == [[reference["[a,q] key=12345"]]]


@pytest.mark.parametrize("rows", [1, 7, 500])
def test_a_cross_does_not_depend_on_how_many_rows_are_given(rows: int) -> None:
    generator = np.random.default_rng(0)
    raw = {
        "a": np.array([f"a{i}" for i in generator.integers(0, 9, 500)]),
        "b": np.array([f"b{i}" for i in generator.integers(0, 9, 500)]),
        "n": generator.normal(size=500),
        "v": np.array(["", "x", "other"])[generator.integers(0, 3, 500)],
    }
    cross = fc.crossed_column(
        [
            "a",
            fc.bucketized_column(fc.numeric_column("n"), [0.0, 0.5]),
            "b",
            fc.categorical_column_with_vocabulary_list("v", ["x"]),
        ],
        1000,
    )
    whole = ids_of(cross, raw)
    parts = [
        ids_of(cross, {key: values[start : start + rows] for key, values in raw.items()})
        for start in range(0, 500, rows)
    ]
    assert [row for part in parts for row in part] == whole
    assert [row == [MISSING] for row in whole] == [value == "" for value in raw["v"]]


def test_an_empty_raw_string_is_a_value_in_a_cross() -> None:
    cross = fc.crossed_column(["a", "b"], 10**6)
    ids = flat(ids_of(cross, {"a": np.array(["", "", "x"]), "b": np.array(["", "y", ""])}))
    assert len(set(ids)) == 3
    assert MISSING not in ids


def test_a_missing_vocabulary_value_has_no_cross_but_an_unknown_one_has() -> None:
    vocabulary = fc.categorical_column_with_vocabulary_list("a", ["x"])
    ids = flat(
        ids_of(fc.crossed_column([vocabulary, "b"], 10**6), {"a": np.array(["", "?"]), "b": np.array(["y", "y"])})
    )
    assert ids[0] == MISSING
    assert ids[1] >= 0


def test_a_cross_of_several_numbers_has_their_product_the_last_fastest() -> None:
    x = fc.bucketized_column(fc.numeric_column("x", shape=2), [0.0])
    y = fc.bucketized_column(fc.numeric_column("y", shape=3), [0.0])
    cross = fc.crossed_column([x, y], 10**9)
    assert cross.slots == 6
    raw = {"x": np.array([[-1.0, 1.0]]), "y": np.array([[-1.0, 1.0, 1.0]])}
    got = ids_of(cross, raw)[0]
    expected = []
    for left in (0, 3):
        for right in (0, 3, 5):
            h = fingerprint_cat64(np.uint64(cross.start), np.array([left], np.uint64))
            expected.append(int(fingerprint_cat64(h, np.array([right], np.uint64))[0] % np.uint64(10**9)))
    assert got == expected
    many = {key: np.repeat(values, 100, axis=0) for key, values in raw.items()}
    assert ids_of(cross, many) == [expected] * 100


def test_buckets_include_their_lower_end_and_nan_is_in_the_last() -> None:
    column = fc.bucketized_column(fc.numeric_column("x"), [0.0, 10.0])
    values = np.array([-1, 0, 9.99, 10, np.inf, -np.inf, np.nan])
    assert flat(ids_of(column, {"x": values})) == [0, 1, 1, 2, 2, 0, 2]


def test_boundaries_are_compared_as_float32() -> None:
    column = fc.bucketized_column(fc.numeric_column("x"), [0.1])
    assert flat(ids_of(column, {"x": np.array([np.float32(0.1), 0.1])})) == [1, 1]


@pytest.mark.parametrize("count", [1, 64, 65, 300])
def test_few_and_many_boundaries_make_the_same_buckets(count: int) -> None:
    boundaries = np.sort(np.random.default_rng(count).normal(size=count).astype(np.float32))
    column = fc.bucketized_column(fc.numeric_column("x"), boundaries.tolist())
    x = np.concatenate([boundaries, np.linspace(-4, 4, 100, dtype=np.float32), np.float32([np.nan, np.inf, -np.inf])])
    assert flat(ids_of(column, {"x": x})) == np.searchsorted(boundaries, x, side="right").tolist()


def test_every_number_of_a_bucketized_shape_has_its_own_ids() -> None:
    column = fc.bucketized_column(fc.numeric_column("x", shape=2), [0.0, 1.0])
    assert ids_of(column, {"x": np.array([[-1, 5], [0.5, -1]])}) == [[0, 5], [1, 3]]


def test_vocabulary_ids_of_missing_and_unknown_values() -> None:
    raw = {"x": np.array(["b", "", "c", "a", ""])}
    make = fc.categorical_column_with_vocabulary_list
    assert flat(ids_of(make("x", ["a", "b"]), raw)) == [1, MISSING, MISSING, 0, MISSING]
    assert flat(ids_of(make("x", ["a", "b"], default_value=0), raw)) == [1, MISSING, 0, 0, MISSING]
    assert flat(ids_of(make("x", ["", "b"]), raw)) == [1, MISSING, MISSING, MISSING, MISSING]
    bucket = int(hash_strings(["c"], "farmhash")[0] % np.uint64(3))
    column = make("x", ["a", "b"], num_oov_buckets=3, hash_function="farmhash")
    assert flat(ids_of(column, raw)) == [1, MISSING, 2 + bucket, 0, MISSING]


def test_integer_keys_are_hashed_as_decimal_strings_and_minus_one_is_missing() -> None:
    raw = {"x": np.array([5, -7, -1, 123456789012])}
    hashed = fc.categorical_column_with_hash_bucket("x", 97, dtype="int64", hash_function="farmhash")
    assert flat(ids_of(hashed, raw)) == [5, 92, MISSING, 84]
    vocabulary = fc.categorical_column_with_vocabulary_list("x", [-7, 5], num_oov_buckets=97, hash_function="farmhash")
    assert flat(ids_of(vocabulary, raw)) == [1, 0, MISSING, 2 + 84]


def test_an_empty_string_is_missing_in_a_hash_bucket() -> None:
    column = fc.categorical_column_with_hash_bucket("x", 1)
    assert flat(ids_of(column, {"x": np.array(["", "a", "True"])})) == [MISSING, 0, 0]


def test_the_normalizer_works_before_bucketizing_and_cannot_change_the_data() -> None:
    def halve(x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.float32
        return x.mul_(0.5)

    number = fc.numeric_column("x", normalizer_fn=halve)
    raw = {"x": np.array([2, 4], np.float32)}
    raw["x"].flags.writeable = False
    result = fc.FeatureTransform([fc.bucketized_column(number, [1.5])], [number])(raw)
    assert result["linear/ids"].tolist() == [[0], [1]]
    assert result["dnn/numeric"].tolist() == [[1], [2]]
    assert raw["x"].tolist() == [2, 4]


def test_a_normalizer_that_changes_the_shape_is_refused() -> None:
    column = fc.numeric_column("x", normalizer_fn=lambda x: x.sum())
    with pytest.raises(InvalidValueError, match=r"normalizer_fn of numeric column 'x' must return .* returned \(\)"):
        fc.FeatureTransform([column])({"x": np.zeros(3)})


def test_global_ids_follow_name_order_and_padding_is_the_row_count() -> None:
    b = fc.categorical_column_with_vocabulary_list("b", ["x", "y"])
    upper = fc.categorical_column_with_vocabulary_list("Z", ["x", "y", "z"])
    x = fc.bucketized_column(fc.numeric_column("a", shape=2), [0.0])
    transform = fc.FeatureTransform([x, b, upper])
    assert transform.linear is not None
    assert [(p.name, p.start, p.stop, p.offset, p.rows) for p in transform.linear.categorical] == [
        ("Z", 0, 1, 0, 3),
        ("a_bucketized", 1, 3, 3, 4),
        ("b", 3, 4, 7, 2),
    ]
    result = transform({"b": np.array(["y", ""]), "Z": np.array(["", "z"]), "a": np.array([[-1.0, 1.0], [1.0, -1.0]])})
    assert result["linear/ids"].tolist() == [[9, 3, 6, 8], [2, 4, 5, 9]]
    assert result["linear/ids"].dtype == np.int64


def test_features_appear_only_where_columns_need_them() -> None:
    job = fc.categorical_column_with_hash_bucket("job", 5)
    frozen = fc.embedding_column(fc.categorical_column_with_hash_bucket("city", 4), 3, trainable=False)
    deep = [fc.embedding_column(job, 3), frozen, fc.indicator_column(job), fc.numeric_column("x", shape=(2, 2))]
    raw = {"job": pa.array(["a", ""]), "city": pa.array(["", "b"]), "x": np.zeros((2, 2, 2))}
    result = fc.FeatureTransform((), deep)(raw)
    assert {key: (value.shape, value.dtype.name) for key, value in result.items()} == {
        "dnn/indicator_ids": ((2, 1), "int64"),
        "dnn/embedding_ids_3": ((2, 1), "int64"),
        "dnn/embedding_ids_3_frozen": ((2, 1), "int64"),
        "dnn/numeric": ((2, 4), "float32"),
    }
    assert result["dnn/embedding_ids_3"][1, 0] == 5
    assert result["dnn/embedding_ids_3_frozen"][0, 0] == 4
    assert list(fc.FeatureTransform([fc.numeric_column("x")])({"x": np.zeros(2)})) == ["linear/numeric"]


def test_no_rows_give_empty_features(census_columns: Any) -> None:
    transform = fc.FeatureTransform(*census_columns("murmur3"))
    empty = {
        key: pa.array([], pa.string()) if feature.dtype == "string" else np.zeros(0, np.float32)
        for key, feature in transform.raw_features.items()
    }
    assert {key: len(value) for key, value in transform(empty).items()} == dict.fromkeys(
        ("linear/ids", "dnn/indicator_ids", "dnn/embedding_ids_8", "dnn/numeric"), 0
    )


def test_raw_features_list_everything_to_parse() -> None:
    age = fc.numeric_column("age", default_value=30)
    transform = fc.FeatureTransform(
        [fc.bucketized_column(fc.numeric_column("age"), [18]), fc.crossed_column(["job", "zip"], 9)],
        [age, fc.indicator_column(fc.categorical_column_with_vocabulary_list("zip", ["a"]))],
    )
    assert list(transform.raw_features.values()) == [
        fc.RawFeature(key="age", dtype="float32", default=(30.0,)),
        fc.RawFeature(key="job", dtype="string"),
        fc.RawFeature(key="zip", dtype="string"),
    ]
    assert transform.required == {"age": pa.float32(), "job": pa.string(), "zip": pa.string()}


def test_a_key_read_as_two_types_raises_an_error() -> None:
    with pytest.raises(InvalidValueError, match=r"raw column 'x' is read as float32 .* and as string"):
        fc.FeatureTransform([fc.numeric_column("x")], [fc.indicator_column(_vocabulary("x", ["a"]))])
    with pytest.raises(InvalidValueError, match=r"of shape \(1,\) .* of shape \(2,\)"):
        fc.FeatureTransform([fc.numeric_column("x")], [fc.numeric_column("x", shape=2)])
    with pytest.raises(InvalidValueError, match=r"default \(1.0,\) .* \(2.0,\)"):
        fc.FeatureTransform([fc.numeric_column("x", default_value=1)], [fc.numeric_column("x", default_value=2)])


def _vocabulary(key: str, values: list[Any]) -> Any:
    return fc.categorical_column_with_vocabulary_list(key, values)


@pytest.mark.parametrize(
    ("linear", "dnn", "message"),
    [
        ([_vocabulary("x", ["a"]), _vocabulary("x", ["b"])], [], "two linear columns have the name 'x'"),
        ([], [fc.numeric_column("x"), fc.numeric_column("x")], "two network columns have the name 'x'"),
        ([], [_vocabulary("x", ["a"])], r"'x'; wrap it in embedding_column\(\) or indicator_column\(\)"),
        ([fc.numeric_column("x"), _vocabulary("x", ["a"])], [], "two linear columns have the name 'x'"),
    ],
)
def test_columns_of_the_wrong_kind_are_refused(linear: list[Any], dnn: list[Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        fc.FeatureTransform(linear, dnn)


def test_missing_and_uneven_raw_columns_are_named() -> None:
    transform = fc.FeatureTransform([fc.numeric_column("x"), fc.numeric_column("y")])
    with pytest.raises(InvalidValueError, match=r"raw column 'y' is needed .* has only \['x'\]"):
        transform({"x": np.zeros(2)})
    with pytest.raises(InvalidValueError, match=r"same number of rows, but have \{'x': 2, 'y': 3\}"):
        transform({"x": np.zeros(2), "y": np.zeros(3)})


def test_seen_strings_are_those_hashed_with_farmhash_while_recording() -> None:
    def make() -> fc.FeatureTransform:
        return fc.FeatureTransform(
            [
                fc.categorical_column_with_hash_bucket("a", 9, hash_function="farmhash"),
                fc.crossed_column(["a", "b"], 9, hash_function="farmhash"),
                fc.categorical_column_with_hash_bucket("c", 9),
            ]
        )

    transform = make()
    raw = {key: np.array([f"{key}2", f"{key}1"]) for key in "abc"}
    transform(raw)
    assert transform.seen_strings() == {"a": [], "b": []}
    assert not transform.recording
    transform.recording = True
    assert transform.recording
    transform(raw)
    assert transform.seen_strings() == {"a": ["a1", "a2"], "b": ["b1", "b2"]}
    restored = make()
    restored.restore_seen_strings({**transform.seen_strings(), "gone": ["x"]})
    assert restored.seen_strings() == transform.seen_strings()


def _census_file(shared_data: Path) -> Iterator[dict[str, Any]]:
    names = (
        "age workclass fnlwgt education education_num marital_status occupation relationship race gender "
        "capital_gain capital_loss hours_per_week native_country income_bracket"
    )
    table = pyarrow.csv.read_csv(
        shared_data / "census" / "adult.test.csv",
        read_options=pyarrow.csv.ReadOptions(column_names=names.split()),
    ).combine_chunks()
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    yield {name: c if pa.types.is_string(c.type) else c.to_numpy() for name, c in columns.items()}
    yield {
        name: c.dictionary_encode() if pa.types.is_string(c.type) else c.to_numpy().astype(np.float32)
        for name, c in columns.items()
    }
    yield {
        name: np.array(c.to_pylist(), object) if pa.types.is_string(c.type) else c.to_numpy()
        for name, c in columns.items()
    }


def test_real_rows_give_the_same_ids_in_any_container_and_any_slices(shared_data: Path, census_columns: Any) -> None:
    transform = fc.FeatureTransform(*census_columns("murmur3"))
    results = [transform(columns) for columns in _census_file(shared_data)]
    first, *others = results
    for other in others:
        assert all(np.array_equal(first[key], other[key]) for key in first)
    columns = next(_census_file(shared_data))
    for start in (0, 5000, 16_200):
        part = transform({name: column[start : start + 40] for name, column in columns.items()})
        assert all(np.array_equal(first[key][start : start + 40], part[key]) for key in first)
