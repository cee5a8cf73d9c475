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
from torch_estimator.data import Dataset, FixedLenFeature, RaggedFeature, SparseFeature, VarLenFeature
from torch_estimator.errors import DataError
from torch_estimator.tfrecord.parser import Examples
from torch_estimator.tfrecord.records import record

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


def test_no_damage_of_an_example_ends_the_process() -> None:
    draw = random.Random(1)
    whole = EXAMPLES[0]
    features = {**SPEC, "number": VarLenFeature("float32")}
    damaged = [whole[: draw.randrange(len(whole))] for _ in range(100)]
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(whole))] = draw.randrange(256)
        damaged.append(bytes(changed))
    starts = np.cumsum([0, *map(len, damaged)])[:-1]
    examples = Examples(features, b"".join(damaged), starts, np.array(list(map(len, damaged))))
    wrong = examples.wrong()
    assert 100 < np.count_nonzero(wrong) < 400
    assert all(examples.problem(row).text for row in np.flatnonzero(wrong))
    examples.drop(wrong)
    assert len(examples.numbers("matrix")) == np.count_nonzero(~wrong)
    assert len(examples.numbers("weights")) == examples.counts("weights").sum()
    assert len(examples.texts("words")[1]) == examples.counts("words").sum() + 1


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    rows = [case["parsed"] for case in CASES if case["parsed"] is not None]
    names = ("number", "matrix", "count", "word", "needed", "words", "ids", "weights")
    written = [{name: row[name] for name in names} for row in rows]
    path = tmp_path / "rows.tfrecord.gz"
    assert te.data.write_tfrecord(path, written) == len(rows)
    (features,) = Dataset.from_tfrecord(path, schema={name: SPEC[name] for name in names}).batch(1000)
    for row, values in enumerate(written):
        check_row(features, row, values)
