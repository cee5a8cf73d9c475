"""Sequence columns: what `SequenceFeatures` makes of them, compared with TensorFlow, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import torch_estimator as te
from tests.feature_column.tensorflow_sequences import CASES, DENSE, DENSE_CASES, RAW, REFERENCE, VOCABULARY, columns
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, RowError

EXPECTED = json.loads(REFERENCE.read_text())
WORDS = fc.sequence_categorical_column_with_vocabulary_list("words", VOCABULARY)
NUMBERS = fc.sequence_numeric_column("numbers")


def fill(rows: torch.Tensor) -> None:
    rows.copy_(torch.arange(1, len(rows) + 1).unsqueeze(1).expand_as(rows))


def outputs(made: list[Any], raw: dict[str, Any]) -> tuple[list[Any], list[int]]:
    transform = fc.FeatureTransform(sequence_columns=made)
    assert transform.sequence is not None
    features = {key: torch.from_numpy(value) for key, value in transform.padded(transform(raw)).items()}
    inputs, lengths = fc.SequenceFeatures(transform.sequence)(features)
    return inputs.tolist(), lengths.tolist()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    return columns(fc, "int64", fill, str(path), hash_function="farmhash")


@pytest.mark.parametrize(
    ("kind", "case"), [*(("lists", case) for case in CASES), *(("dense", case) for case in DENSE_CASES)]
)
def test_features_are_those_of_tensorflow(made: dict[str, Any], kind: str, case: str) -> None:
    raw: dict[str, Any] = (
        {key: pa.array(lists) for key, lists in RAW.items()}
        if kind == "lists"
        else {key: np.array(rows) for key, rows in DENSE.items()}
    )
    inputs, lengths = outputs([made[one] for one in CASES[case]], raw)
    expected, expected_lengths = EXPECTED[kind][case]
    assert np.allclose(inputs, expected, rtol=1e-6, atol=1e-6)
    assert lengths == expected_lengths


def test_missing_numbers_get_the_default_and_do_not_count_at_the_end() -> None:
    column = fc.sequence_numeric_column("numbers", default_value=9.0, normalizer_fn=lambda one: one + 1)
    inputs, lengths = outputs([column], {"numbers": pa.array([[1.0, None, 2.0, None], [3.0, 4.0, 5.0, 6.0]])})
    assert np.squeeze(inputs).tolist() == [[2.0, 9.0, 3.0, 9.0], [4.0, 5.0, 6.0, 7.0]]
    assert lengths == [3, 4]


def test_the_length_is_the_longest_of_all_columns() -> None:
    raw = {"words": np.array([["a", ""], ["", ""]]), "numbers": np.array([[1.0, 2.0], [np.nan, np.nan]])}
    assert outputs([fc.indicator_column(WORDS), NUMBERS], raw)[1] == [2, 0]


def test_columns_of_other_lengths_in_a_row_are_an_error() -> None:
    raw = {"words": pa.array([["a"], ["a", "b"]]), "numbers": pa.array([[1.0], [1.0, 2.0, 3.0]])}
    with pytest.raises(RowError, match=r"the sequence has 2 steps, but that of 'numbers' has 3; .* one len") as caught:
        outputs([fc.indicator_column(WORDS), NUMBERS], raw)
    assert (caught.value.row, caught.value.column) == (1, "words")
    estimator = te.Estimator.from_module(
        torch.nn.Identity(),
        loss=torch.nn.MSELoss(),
        transform=fc.FeatureTransform(sequence_columns=[fc.indicator_column(WORDS), NUMBERS]),
        model_dir="memory://lengths",
    )
    with pytest.raises(DataError, match=r"row 1.*'words'.*the sequence has 2 steps"):
        next(estimator.predict(lambda: Dataset.from_arrays(raw).batch(2)))


def test_lists_that_are_no_whole_steps_are_an_error() -> None:
    pairs = fc.sequence_numeric_column("pairs", shape=2)
    with pytest.raises(RowError, match=r"a list of 3 numbers is not made of steps of 2 \(shape \(2,\)\)") as caught:
        outputs([pairs], {"pairs": pa.array([[1.0, 2.0], [1.0, 2.0, 3.0]])})
    assert caught.value.row == 1


def test_shared_embeddings_serve_sequences_and_chunks_join() -> None:
    words = [fc.sequence_categorical_column_with_vocabulary_list(key, VOCABULARY) for key in ("x", "y")]
    made = fc.shared_embeddings(words, 2, initializer=fill)
    inputs, _ = outputs(list(made), {"x": pa.array([["a", "b"]]), "y": pa.array([["c", "a"]])})
    assert inputs == [[[1, 1, 3, 3], [2, 2, 1, 1]]]
    transform = fc.FeatureTransform(sequence_columns=made)
    one, other = (transform({key: pa.array([lists]) for key in "xy"}) for lists in (["a"], ["b", "z", "c"]))
    joined = {
        key: pa.concat_arrays([one[key], other[key]]) if isinstance(one[key], pa.Array) else np.r_[one[key], other[key]]
        for key in one
    }
    padded = transform.padded(joined)
    assert padded["sequence/embedding_ids/x_shared_embedding"].tolist() == [[0, 3, 3], [1, 3, 2]]


def test_batches_without_a_step_have_one_step_of_padding() -> None:
    raw = {"words": pa.array([[], []], pa.list_(pa.string())), "numbers": pa.array([[], []], pa.list_(pa.float32()))}
    assert outputs([fc.indicator_column(WORDS), NUMBERS], raw) == ([[[0.0] * 4]] * 2, [0, 0])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: fc.FeatureTransform([WORDS]), InvalidValueError, "linear columns cannot be sequences, but 'words' is"),
        (
            lambda: fc.FeatureTransform(dnn_columns=[fc.indicator_column(WORDS)]),
            InvalidValueError,
            "'words_indicator' is a sequence column, which only a recurrent network takes.*RNNClassifier.*multivalent",
        ),
        (
            lambda: fc.FeatureTransform(sequence_columns=[fc.numeric_column("x")]),
            InvalidValueError,
            "'x' is not a sequence column; make it by .*sequence_numeric_column.*context",
        ),
        (lambda: fc.FeatureTransform(sequence_columns=[WORDS]), InvalidValueError, "wrap it in embedding_column"),
        (lambda: fc.crossed_column([WORDS, "x"], 10), InvalidValueError, "sequence column 'words' cannot be crossed"),
        (lambda: fc.weighted_categorical_column(WORDS, "w"), InvalidValueError, "'words' cannot have weights"),
        (lambda: fc.bucketized_column(NUMBERS, [1]), InvalidValueError, "must be made by numeric_column"),
        (lambda: fc.sequence_numeric_column("x", (0,)), InvalidValueError, "shape of sequence column 'x' .* got .0,."),
        (
            lambda: fc.sequence_numeric_column("x", default_value="a"),
            InvalidValueError,
            "must be a number, but got 'a'",
        ),
        (lambda: fc.sequence_numeric_column("x", dtype=str), InvalidValueError, "dtype of sequence column 'x' must be"),
        (lambda: fc.sequence_numeric_column("x", normalizer_fn=1), InvalidTypeError, "must be callable, but got 1"),
        (lambda: fc.sequence_categorical_column_with_identity("x", 0), InvalidValueError, "at least 1, but got 0"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_schemas_have_lists_and_examples_values_of_any_number() -> None:
    columns = [fc.indicator_column(WORDS), fc.sequence_numeric_column("numbers", dtype=int)]
    assert [str(field.type) for field in fc.schema(columns)] == ["list<item: float>", "list<item: string>"]
    assert [str(one) for one in fc.make_parse_example_spec(columns).values()] == [
        "VarLenFeature(dtype='float32')",
        "VarLenFeature(dtype='string')",
    ]


def test_columns_in_place_of_the_layout_are_said() -> None:
    columns = [fc.sequence_numeric_column("x")]
    with pytest.raises(TypeError, match=r"takes the layout FeatureTransform\(.*\.sequence, but"):
        fc.SequenceFeatures(columns)  # type: ignore[arg-type]
