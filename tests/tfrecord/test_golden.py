"""tf.Examples and TFRecord files that TensorFlow 2.15 wrote and parsed; see make_golden.py."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_estimator as te
from torch_estimator.data import (
    Dataset,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from torch_estimator.errors import DataError
from torch_estimator.tfrecord.features import as_feature_lists
from torch_estimator.tfrecord.parser import Examples
from torch_estimator.tfrecord.records import record

pytestmark = pytest.mark.usefixtures("each_engine")

GOLDEN = Path(__file__).with_name("golden")
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "cases.json").read_text())
EXAMPLES = [base64.b64decode(case["example"]) for case in CASES]
SPEC = {
    "number": FixedLenFeature([], "float32", 1.5),
    "matrix": FixedLenFeature([2, 2], "float32", [[1.0, 2.0], [3.0, 4.0]]),
    "count": FixedLenFeature([1], "int64", -7),
    "word": FixedLenFeature([], "string", "none"),
    "needed": FixedLenFeature([], "int64"),
    "words": VarLenFeature("string"),
    "ids": VarLenFeature("int64"),
    "weights": VarLenFeature("float32"),
    "ragged": RaggedFeature("int64", value_key="pieces"),
    "sparse": SparseFeature("at", "value", "float32", 5),
    "pairs": FixedLenSequenceFeature([2], "float32", allow_missing=True),
}

SEQUENCES: list[dict[str, Any]] = json.loads((GOLDEN / "sequences.json").read_text())
CONTEXT_SPEC = {"id": FixedLenFeature([], "int64"), "tags": VarLenFeature("string")}
SEQUENCE_SPEC = {
    "clicks": FixedLenSequenceFeature([], "int64"),
    "points": FixedLenSequenceFeature([2, 2], "float32", allow_missing=True),
    "names": FixedLenSequenceFeature([2], "string", allow_missing=True),
    "words": VarLenFeature("string"),
    "weights": RaggedFeature("float32", value_key="parts"),
}

# TensorFlow reads a list of floats of 3 bytes as an empty one; here the record counts as damaged.
STRICTER = {base64.b64encode(one).decode() for one in EXAMPLES if one.endswith(b"\x12\x05\x0a\x03\x00\x00\x80")}


def expected() -> list[dict[str, Any] | None]:
    return [None if case["example"] in STRICTER else case["parsed"] for case in CASES]


def check_row(features: dict[str, Any], row: int, wanted: dict[str, Any]) -> None:
    """Compare one row of a batch, whose lists are padded, with what TensorFlow parsed."""
    for name, values in wanted.items():
        kind = SPEC[name].dtype
        found = np.ravel(features[name][row])
        if kind == "string":
            assert found.tolist()[: len(values)] == values, name
        else:
            np.testing.assert_array_equal(found[: len(values)], np.array(values, kind))
            assert found.dtype == kind
        assert not any(found[len(values) :])


def test_the_files_hold_what_tensorflow_parsed() -> None:
    wanted = [case["parsed"] for case in CASES if case["parsed"] is not None and case["example"] not in STRICTER]
    for name in ("plain", "gzip", "zlib"):
        data = Dataset.from_tfrecord(GOLDEN / name, schema=SPEC, ignore_errors=True)
        (features,) = data.batch(1000)
        assert len(features["number"]) == len(wanted)
        assert features["matrix"].shape == (len(wanted), 2, 2)
        for row, values in enumerate(wanted):
            check_row(features, row, values)


def test_it_parses_and_refuses_the_examples_that_tensorflow_does(tmp_path: Path) -> None:
    path = tmp_path / "one"
    data = Dataset.from_tfrecord(path, schema=SPEC)
    for serialized, wanted in zip(EXAMPLES, expected(), strict=True):
        path.write_bytes(record(serialized))
        if wanted is None:
            with pytest.raises(DataError, match="one, byte 0: "):
                list(data.batch(1))
        else:
            (features,) = data.batch(1)
            check_row(features, 0, wanted)


def sequences(path: Path, **options: Any) -> Dataset:
    return Dataset.from_tfrecord(path, schema=CONTEXT_SPEC, sequence_schema=SEQUENCE_SPEC, **options)


def check_sequence(features: dict[str, Any], row: int, wanted: dict[str, Any]) -> None:
    """Compare one row of a padded batch with what TensorFlow parsed."""
    for name, values in wanted.items():
        found = features[name][row]
        if name != "id":
            assert features[f"{name}_length"][row] == len(values)
            assert not any(np.ravel(found[len(values) :]))
        for value, step in zip(values if name != "id" else [values], np.atleast_1d(found), strict=False):
            shown = step.tolist() if isinstance(step, np.ndarray) else step
            width = len(value) if isinstance(value, list) else None
            assert (shown if width is None else shown[:width]) == value, name
            assert width is None or not any(shown[width:])


def test_sequence_examples_hold_what_tensorflow_parses(tmp_path: Path) -> None:
    path = tmp_path / "sequences"
    path.write_bytes(b"".join(record(base64.b64decode(case["example"])) for case in SEQUENCES))
    good = [case["parsed"] for case in SEQUENCES if case["parsed"] is not None]
    assert 10 < len(good) < len(SEQUENCES) - 10
    (features,) = sequences(path, ignore_errors=True).padded_batch(100)
    assert features["points"].shape[2:] == (2, 2)
    assert [features[name].dtype.name for name in ("clicks", "points", "weights")] == ["int64", "float32", "float32"]
    for row, wanted in enumerate(good):
        check_sequence(features, row, wanted)
    assert len(features["id"]) == len(good)


def test_a_sequence_example_that_tensorflow_refuses_is_named(tmp_path: Path) -> None:
    path = tmp_path / "one"
    problems = []
    for case in SEQUENCES:
        if case["parsed"] is None:
            path.write_bytes(record(base64.b64decode(case["example"])))
            with pytest.raises(DataError, match="one, byte 0: ") as error:
                list(sequences(path).batch(1))
            problems.append(str(error.value).removeprefix(f"{path}, byte 0: "))
    assert len(problems) > 10
    missing = "column 'clicks': the feature is missing; give its FixedLenSequenceFeature allow_missing=True."
    assert problems.count(missing) == 2
    assert "column 'clicks': step 1: it has no values; VarLenFeature reads any number." in problems
    assert "column 'weights': step 1: the values are string, but the schema reads float32." in problems
    assert (
        "column 'points': step 1: there are 3 values, but the schema reads 4; VarLenFeature reads any number."
        in problems
    )


def damaged(whole: bytes, features: dict[str, Any]) -> Examples:
    """Parse many damaged copies of an example, and leave those out that cannot be used."""
    draw = random.Random(1)
    copies = [whole[: draw.randrange(len(whole))] for _ in range(100)]
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(whole))] = draw.randrange(256)
        copies.append(bytes(changed))
    starts = np.cumsum([0, *map(len, copies)])[:-1]
    examples = Examples(features, b"".join(copies), starts, np.array(list(map(len, copies))))
    wrong = examples.wrong()
    assert 100 < np.count_nonzero(wrong) < 400
    assert all(examples.problem(row).text for row in np.flatnonzero(wrong))
    examples.drop(wrong)
    assert len(examples) == np.count_nonzero(~wrong)
    return examples


def test_no_damage_of_an_example_ends_the_process() -> None:
    examples = damaged(EXAMPLES[0], {**SPEC, "number": VarLenFeature("float32")})
    assert len(examples.numbers("matrix")) == len(examples)
    assert len(examples.numbers("weights")) == examples.counts("weights").sum()
    assert len(examples.texts("words")[1]) == examples.counts("words").sum() + 1


def test_no_damage_of_a_sequence_example_ends_the_process() -> None:
    whole = base64.b64decode(SEQUENCES[0]["example"])
    examples = damaged(whole, {**CONTEXT_SPEC, **as_feature_lists(SEQUENCE_SPEC)})
    for name in SEQUENCE_SPEC:
        counts, steps = examples.steps(name)
        assert len(counts) == len(examples)
        assert len(steps) == counts.sum()
    assert len(examples.steps("points")[1].numbers("")) == examples.steps("points")[0].sum()
    words = examples.steps("words")[1]
    assert len(words.texts("")[1]) == words.counts("").sum() + 1


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    rows = [case["parsed"] for case in CASES if case["parsed"] is not None]
    names = ("number", "matrix", "count", "word", "needed", "words", "ids", "weights", "pairs")
    written = [{name: row[name] for name in names} for row in rows]
    path = tmp_path / "rows.tfrecord.gz"
    assert te.data.write_tfrecord(path, written) == len(rows)
    (features,) = Dataset.from_tfrecord(path, schema={name: SPEC[name] for name in names}).batch(1000)
    for row, values in enumerate(written):
        check_row(features, row, values)


def test_sequences_that_are_written_are_read_again(tmp_path: Path) -> None:
    rows = [case["parsed"] for case in SEQUENCES if case["parsed"] is not None]
    written = [{**{name: row[name] for name in row if name != "weights"}, "parts": row["weights"]} for row in rows]
    path = tmp_path / "sequences"
    te.data.write_tfrecord(path, written, sequence_columns=["clicks", "points", "names", "words", "parts"])
    (features,) = sequences(path).padded_batch(100)
    for row, values in enumerate(rows):
        check_sequence(features, row, values)
