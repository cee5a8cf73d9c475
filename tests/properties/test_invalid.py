"""Any argument and any data give either a result or a `UserError`, never another exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torch_estimator as te
from tests.properties import columns as drawn
from tests.properties.trials import tried
from torch_estimator import feature_column as fc
from torch_estimator.errors import UserError

JUNK: list[Any] = [
    *(None, True, -1, 0, 1, 3, 2.5, float("nan"), 2**70),
    *("", "a", "murmur3", b"a", "int64", "float32", "\ud800"),
    *([], [1], [2, 1], ["a", "b"], ["a", "a"], [None], [[1]], {}, {"a": 1}, ()),
    *(object(), int, str, lambda x: x, np.zeros(2), np.int64(3), np.array("a")),
]
NUMBER = fc.numeric_column("x0")
ID = fc.categorical_column_with_identity("i0", 3)
MAKERS: dict[Callable[..., Any], dict[str, Any]] = {
    fc.numeric_column: {"key": "k", "shape": 1, "default_value": None, "dtype": "float32", "normalizer_fn": None},
    fc.bucketized_column: {"source_column": NUMBER, "boundaries": [1, 2]},
    fc.categorical_column_with_hash_bucket: {
        "key": "k", "hash_bucket_size": 3, "dtype": "string", "hash_function": "murmur3", "multivalent": False,
    },
    fc.categorical_column_with_identity: {"key": "k", "num_buckets": 4, "default_value": None, "multivalent": True},
    fc.categorical_column_with_vocabulary_list: {
        "key": "k", "vocabulary_list": ["a", "b"], "dtype": None, "default_value": -1, "num_oov_buckets": 0,
        "hash_function": "murmur3", "multivalent": False,
    },
    fc.categorical_column_with_vocabulary_file: {
        "key": "k", "vocabulary_file": "none.txt", "vocabulary_size": None, "num_oov_buckets": 0, "default_value": None,
        "dtype": "string", "hash_function": "murmur3", "multivalent": True,
    },
    fc.crossed_column: {
        "keys": ["a", "b"], "hash_bucket_size": 4, "hash_key": None, "hash_function": "murmur3", "multivalent": ["a"],
    },
    fc.weighted_categorical_column: {"categorical_column": ID, "weight_feature_key": "w", "dtype": "float32"},
    fc.indicator_column: {"categorical_column": ID},
    fc.embedding_column: {
        "categorical_column": ID, "dimension": 2, "combiner": "mean", "initializer": None, "max_norm": None,
        "trainable": True,
    },
    fc.shared_embeddings: {
        "categorical_columns": [ID], "dimension": 2, "combiner": "mean", "initializer": None,
        "shared_embedding_collection_name": None, "max_norm": None, "trainable": True,
    },
}  # fmt: skip


def anything() -> st.SearchStrategy[Any]:
    """Draw junk, columns of every kind, and lists of both."""
    numeric = st.sampled_from([fc.numeric_column("x0"), fc.numeric_column("x1", 2), fc.numeric_column("s0", dtype=int)])
    one = st.one_of(
        st.sampled_from(JUNK), drawn.categorical(), drawn.weighted(), drawn.embeddings(), drawn.indicators(), numeric
    )
    return st.one_of(one, st.lists(one, min_size=1, max_size=3))


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_argument_is_accepted_or_refused_with_a_user_error(make: Callable[..., Any]) -> None:
    for name in MAKERS[make]:
        for junk in [*JUNK, NUMBER, ID, [NUMBER], [ID], fc.indicator_column(ID)]:
            taken_or_refused(make, {**MAKERS[make], name: junk})


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_arguments_together_are_accepted_or_refused_with_a_user_error(make: Callable[..., Any]) -> None:
    @tried(25)
    @given(st.fixed_dictionaries({}, optional=dict.fromkeys(MAKERS[make], anything())))
    def check(changes: dict[str, Any]) -> None:
        taken_or_refused(make, {**MAKERS[make], **changes})

    check()


def taken_or_refused(make: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Assert that `make` returns a usable column or raises a UserError."""
    try:
        made = make(**arguments)
    except UserError as error:
        assert_one_sentence(error)
        return
    for column in made if isinstance(made, list) else [made]:
        assert column.raw_features and column.name.encode()
        assert hash(column) == hash(column)


@tried(80)
@given(st.lists(anything(), max_size=4), st.lists(anything(), max_size=4))
def test_a_transform_is_made_or_refused_with_a_user_error(wide: list[Any], deep: list[Any]) -> None:
    for use in (
        lambda: fc.FeatureTransform(wide, deep),
        lambda: fc.schema([*wide, *deep]),
        lambda: te.serving_input.raw_features([*wide, *deep]),
        lambda: te.LinearClassifier(wide, "unused"),
        lambda: te.DNNClassifier([2], deep, "unused"),
    ):
        try:
            use()
        except UserError as error:
            assert_one_sentence(error)


def lists_of(values: list[Any]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


RAW: list[Any] = [
    *(np.zeros(2), np.zeros((2, 3)), np.zeros((2, 2, 2)), np.array([1, -1]), np.array([True, False]), np.array(["a"])),
    *(np.array([2**63, 0], np.uint64), np.array([1 + 2j, 0]), np.array(["2020-01-01", "NaT"], "datetime64[D]")),
    *(np.array(["a", ""]), np.array(["a", None], object), np.array([["a", "b"]] * 2), np.array([b"\xff", b"a"])),
    *(lists_of(["a", 1]), lists_of([["a"], [1]]), lists_of([["a"], "b"]), lists_of([["a"], [["b"]]])),
    *(lists_of([[1], [2, 3]]), lists_of([[], None]), lists_of([{"a": 1}, {}]), lists_of([2**70, 1])),
    *(lists_of([object(), object()]), lists_of([[object()], []]), lists_of([[2**70], [1]])),
    *(lists_of(["\ud800", "a"]), lists_of([["\ud800"], ["a"]]), pa.array([1, None]), pa.array([1.5, None])),
    *(pa.array(["a", None]), pa.array([["a"], None]), pa.array([[1, None], []]), pa.array([[1.5], [2]])),
    *(pa.array([[["a"]], []]), pa.array([None, None]), pa.array([{"a": 1}, None]), pa.array([b"\xff", b"a"])),
    *(pa.array([2**63, 0], pa.uint64()), pa.array([[2**63], []], pa.list_(pa.uint64())), pa.array([True, None])),
    *(pa.array(["a", "b"]).dictionary_encode(), pa.array([1, 2]).dictionary_encode(), pa.array([], pa.string())),
    *(pa.array([["a"], []], pa.large_list(pa.string())), pa.array([["a", "b"]] * 2, pa.list_(pa.string(), 2))),
    *(np.array(3), [1, 2], "a", None),
]


@tried(150)
@given(st.data())
def test_data_of_any_kind_is_accepted_or_refused_with_a_user_error(data: st.DataObject) -> None:
    columns = data.draw(drawn.wide())
    transform = fc.FeatureTransform(columns)
    raw = {key: data.draw(st.sampled_from(RAW), label=key) for key in transform.raw_features}
    if len(raw) > 1 and data.draw(st.booleans()):
        del raw[next(iter(raw))]
    try:
        features = transform.padded(transform(raw))
    except UserError as error:
        assert_one_sentence(error)
    else:
        assert all(len(value) in (0, 1, 2) for value in features.values())


def assert_one_sentence(error: UserError) -> None:
    """Assert that an error message is one line, and not empty."""
    message = str(error)
    assert len(message) > 10
    assert "\n" not in message
