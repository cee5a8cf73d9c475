"""TFRecord files as a source of rows: ranges, shuffling, damage, types and errors."""

from __future__ import annotations

import functools
import logging
import operator
import os
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import torch_estimator as te
from tests.data.positions import check_every_position, numbers
from torch_estimator import feature_column as fc
from torch_estimator.data import (
    Dataset,
    FixedLenFeature,
    FixedLenSequenceFeature,
    SparseFeature,
    VarLenFeature,
    write_tfrecord,
)
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError
from torch_estimator.tfrecord.encoder import encode_example
from torch_estimator.tfrecord.records import masked_crc32c, record

ROWS = 4000
SPEC = {"x": FixedLenFeature([], "int64")}


def write_many(folder: Path, files: int = 2) -> list[Path]:
    """Write rows of very different sizes, some of which are longer than a range of 64 KiB."""
    draw = random.Random(1)
    paths = []
    for number in range(files):
        rows = [
            {"x": i, "filler": draw.randbytes(draw.choice([0, 10, 200, 3000, 200_000 if i % 100 == 0 else 50]))}
            for i in range(number, ROWS, files)
        ]
        paths.append(folder / f"part-{number}.tfrecord")
        write_tfrecord(paths[-1], rows)
    return paths


def positions(path: Path) -> list[int]:
    """Return where each record of a file begins."""
    content, found, at = path.read_bytes(), [], 0
    while at < len(content):
        found.append(at)
        at += 16 + int.from_bytes(content[at : at + 8], "little")
    return found


def damage(path: Path, at: int, by: bytes = b"\xff") -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(by)] = bytes(one ^ other for one, other in zip(content[at:], by, strict=False))
    path.write_bytes(content)


def test_every_record_comes_once_in_order_and_shuffled(tmp_path: Path) -> None:
    write_many(tmp_path)
    data = Dataset.from_tfrecord(tmp_path / "*.tfrecord", schema=SPEC)
    assert numbers(data.batch(100)) == [*range(0, ROWS, 2), *range(1, ROWS, 2)]
    twice = numbers(data.shuffle(10, seed=1).repeat(2).batch(100))
    assert sorted(twice[:ROWS]) == sorted(twice[ROWS:]) == list(range(ROWS))
    assert twice[:ROWS] != twice[ROWS:]
    share = [numbers(data.shard(3, part).batch(100)) for part in range(3)]
    assert sorted(functools.reduce(operator.iadd, share, [])) == list(range(ROWS))


def test_it_resumes_at_every_position_of_many_windows(tmp_path: Path) -> None:
    write_many(tmp_path)

    def make() -> Dataset:
        return Dataset.from_tfrecord(tmp_path / "*.tfrecord", schema=SPEC).shuffle(300, seed=3).batch(500)

    assert check_every_position(make, compared=2) == ROWS // 500


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (3, "no record begins here, since the checksum of its length is wrong"),
        (14, "the record is damaged, since the checksum of its content is wrong"),
    ],
)
def test_a_damaged_record_is_named_or_left_out(
    tmp_path: Path, shuffled: bool, part: int, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = write_many(tmp_path)
    places = positions(path)
    # Also the first and the last record, and the first one of a range.
    at_range = next(place for place, at in enumerate(places) if at >= 3 * 2**16)
    whole = path.read_bytes()
    for place in (0, at_range, 700, len(places) - 1):
        path.write_bytes(whole)
        damage(path, places[place] + part)
        data = Dataset.from_tfrecord(path, schema=SPEC)
        kept = Dataset.from_tfrecord(path, schema=SPEC, ignore_errors=True)
        if shuffled:
            data, kept = data.shuffle(10, seed=1), kept.shuffle(10, seed=1)
        with pytest.raises(DataError) as error:
            numbers(data.batch(50))
        assert str(error.value) == (
            f"{path}, byte {places[place]}: {problem}; from_tfrecord(ignore_errors=True) leaves it out."
        )
        caplog.clear()
        with caplog.at_level(logging.WARNING, "torch_estimator"):
            assert sorted(numbers(kept.repeat(2).batch(50))) == sorted(
                2 * [2 * i for i in range(len(places)) if i != place]
            )
        assert caplog.messages == [
            f"Left out 1 damaged record, 1 so far; the first of these is {path}, byte {places[place]}: {problem}."
        ]


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path, _ = write_many(tmp_path)
    last = positions(path)[-1]
    content = path.read_bytes()
    for size in (last + 5, last + 12, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match=rf"byte {last}: the file ends within the record"):
            numbers(Dataset.from_tfrecord(path, schema=SPEC).batch(50))
        rows = numbers(Dataset.from_tfrecord(path, schema=SPEC, ignore_errors=True).batch(50))
        assert rows == list(range(0, ROWS - 2, 2))


def test_a_record_longer_than_an_example_can_be_is_refused_unread(tmp_path: Path) -> None:
    path, _ = write_many(tmp_path)
    size = path.stat().st_size
    length = struct.pack("<Q", 2**32)
    with path.open("ab") as file:
        file.write(length + struct.pack("<I", masked_crc32c(length)))
    os.truncate(path, size + 2**32 + 16)  # A sparse file.
    with pytest.raises(DataError, match=rf"byte {size}: the record is longer than 2 GiB, which no tf.Example is;"):
        numbers(Dataset.from_tfrecord(path, schema=SPEC).batch(50))


def test_records_that_hold_records_are_no_records(tmp_path: Path) -> None:
    inner = b"".join(record(encode_example({"x": -1})) for _ in range(1500))
    path = tmp_path / "nested.tfrecord"
    write_tfrecord(path, [{"x": i, "filler": bytes(30_000) + inner[: 50 * i]} for i in range(100)])
    data = Dataset.from_tfrecord(path, schema=SPEC)
    assert numbers(data.batch(10)) == list(range(100))
    assert sorted(numbers(data.shuffle(10, seed=1).batch(10))) == list(range(100))


def test_a_file_that_is_not_a_tfrecord_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("age,job\n31,clerk\n")
    with pytest.raises(DataError, match=r"people.csv, byte 0: no record begins here"):
        list(Dataset.from_tfrecord(path).batch(1))
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"people.csv has no records"):
        list(Dataset.from_tfrecord(path).batch(1))
    path.write_bytes(record(b"not an example"))
    with pytest.raises(DataError, match=r"people.csv, byte 0: the record is not a tf.Example"):
        list(Dataset.from_tfrecord(path).batch(1))


def test_without_a_schema_the_first_records_tell(tmp_path: Path) -> None:
    path = tmp_path / "rows.tfrecord"
    rows: list[dict[str, Any]] = [
        {"x": 1.5, "n": 3, "word": "a", "tags": ["a", "b"], "y": 1},
        {"x": 2.5, "word": "b", "tags": "c", "y": 0},
    ]
    write_tfrecord(path, rows)
    data = Dataset.from_tfrecord(path, label="y")
    with pytest.raises(DataError, match=r"byte 0|column 'n': the feature is missing and has no default"):
        list(data.batch(2))
    ((features, labels),) = Dataset.from_tfrecord(path, schema={"tags": VarLenFeature("string")}, label="y").batch(2)
    assert features["tags"].tolist() == [["a", "b"], ["c", ""]]
    assert labels.tolist() == [1, 0]
    with pytest.raises(DataError, match=r"'z' is not in the first records of .*; the columns there are n, tags, word"):
        list(Dataset.from_tfrecord(path, schema=SPEC, label="z").batch(2))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"x": FixedLenFeature([], "float32")}, "column 'x': the values are int64, but the schema reads float32."),
        ({"x": FixedLenFeature([2], "int64")}, "column 'x': there are 1 values, but the schema reads 2; VarLenFeature"),
        ({"z": FixedLenFeature([], "int64")}, "column 'z': the feature is missing and has no default; give"),
        ({"raw": FixedLenFeature([], "string")}, "column 'raw': a value is not UTF-8 text; read it with the dtype"),
        ({"raw": VarLenFeature("string")}, "column 'raw': a value is not UTF-8 text; read it with the dtype 'bytes'"),
        ({"s": SparseFeature("x", "w", "float32", 3)}, "column 's': an index in 'x' is not from 0 to 2."),
    ],
)
def test_a_record_that_does_not_fit_the_schema_is_named_or_left_out(
    tmp_path: Path, schema: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "rows.tfrecord"
    good = {"x": 1, "z": 5, "raw": b"abc", "w": 0.5}
    write_tfrecord(path, [good, {"x": 3, "raw": b"\xff\xd8", "w": 1.5}])
    with pytest.raises(DataError) as error:
        list(Dataset.from_tfrecord(path, schema=schema).batch(2))
    assert problem in str(error.value)
    kept = Dataset.from_tfrecord(path, schema=schema, ignore_errors=True)
    if schema.keys() & {"z", "raw", "s"}:
        assert str(error.value).startswith(f"{path}, byte {positions(path)[1]}: ")
        assert len(list(kept.batch(1))) == 1
    else:
        assert list(kept.batch(1)) == []


def test_bytes_reach_a_map_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "images.tfrecord"
    write_tfrecord(path, {"image": [b"\xff\xd8\x00", b"", b"\x89PNG"], "y": [0, 1, 0]})

    def sizes(features: dict[str, Any], labels: Any) -> Any:
        return {"size": np.array([len(image) for image in features["image"]])}, labels

    schema = {"image": FixedLenFeature([], "bytes"), "y": FixedLenFeature([], "int64")}
    data = Dataset.from_tfrecord(path, schema=schema, label="y")
    ((features, _labels),) = data.shuffle(3, seed=1).batch(3)
    assert sorted(features["image"]) == [b"", b"\x89PNG", b"\xff\xd8\x00"]
    ((features, _labels),) = data.map(sizes).batch(3)
    assert features["size"].tolist() == [3, 0, 4]


def test_sparse_features_become_dense(tmp_path: Path) -> None:
    path = tmp_path / "rows.tfrecord"
    write_tfrecord(path, {"i": [[2, 0], [], [1]], "v": [[1.0, 2.0], [], [3.0]]})
    (features,) = Dataset.from_tfrecord(path, schema={"s": SparseFeature("i", "v", "float32", 3)}).batch(3)
    assert features["s"].tolist() == [[2, 0, 1], [0, 0, 0], [0, 3, 0]]


def test_feature_lists_are_found_without_a_schema_and_resume_and_cache(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tfrecord"
    rows: list[dict[str, Any]] = [
        {"x": i, "bought": i % 2, "shop": list(range(i % 4)), "seen": [["a"] * (i % 3), ["b"]][: i % 3]}
        for i in range(50)
    ]
    rows[1]["note"] = "rare"
    write_tfrecord(path, rows, sequence_columns=["shop", "seen"])

    def make() -> Dataset:
        return Dataset.from_tfrecord(path, label="bought").shuffle(20, seed=1).padded_batch(4)

    features, labels = next(iter(make()))
    assert labels.tolist() == [x % 2 for x in features["x"]]
    assert features["shop_length"].tolist() == [x % 4 for x in features["x"]]
    assert [sum(map(bool, one.ravel())) for one in features["seen"]] == [[0, 1, 3][x % 3] for x in features["x"]]
    assert check_every_position(make, compared=2) == 13
    cached = Dataset.from_tfrecord(path).cache(str(tmp_path / "cache")).batch(50)
    for _ in range(2):
        (features,) = cached
        assert features["seen"][2].tolist() == [["a", "a"], ["b", ""]]
    labelled = Dataset.from_tfrecord(path, sequence_schema={"seen": VarLenFeature("string")}, label="seen")
    features, labels = next(iter(labelled.batch(3)))
    assert sorted(features) == ["bought", "note", "x"]
    assert labels.shape == (3, 2, 2)


def test_files_may_be_remote(tmp_path: Path) -> None:
    for number in range(3):
        write_tfrecord(f"memory://records/part-{number}.tfrecord.gz", {"x": [number, number + 10]})
    data = Dataset.from_tfrecord("memory://records/*.gz", schema=SPEC)
    assert numbers(data.batch(4)) == [0, 10, 1, 11, 2, 12]


def test_a_model_trains_on_the_schema_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "people.tfrecord"
    draw = np.random.default_rng(1)
    rows: list[dict[str, Any]] = [
        {"age": float(age), "job": "ab"[int(age) % 2], "tags": ["t", "u"][: int(age) % 3], "rich": int(age > 50)}
        for age in draw.uniform(20, 80, 200)
    ]
    del rows[3]["job"], rows[4]["age"]
    write_tfrecord(path, rows)
    columns = [
        fc.numeric_column("age", default_value=40.0),
        fc.indicator_column(fc.categorical_column_with_vocabulary_list("job", ["a", "b"])),
        fc.indicator_column(fc.categorical_column_with_hash_bucket("tags", 10, multivalent=True)),
    ]
    results = []
    for schema in (fc.schema(columns), fc.make_parse_example_spec(columns)):
        data = Dataset.from_tfrecord(path, schema=schema, label="rich").shuffle(100, seed=1).repeat().batch(20)
        config = te.RunConfig(random_seed=1, compile=False)
        estimator = te.DNNClassifier([4], columns, config=config)
        estimator.train(lambda data=data: data, steps=20)
        results.append(estimator.evaluate(lambda data=data: data, steps=5)["loss"])
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FixedLenFeature([0], "int64"), InvalidValueError, r"must be at least 1, but got \[0\]"),
        (lambda: FixedLenFeature([2], "int64", [1, 2, 3]), InvalidValueError, r"must have 2 values, but got"),
        (lambda: FixedLenFeature([], "int64", 1.5), InvalidTypeError, "must be a whole number, but got 1.5"),
        (lambda: VarLenFeature("complex64"), InvalidTypeError, "a feature holds 'float32', 'int64'.*'complex64'"),
        (lambda: SparseFeature("i", "v", "string", 3), InvalidTypeError, "VarLenFeature reads strings"),
        (lambda: Dataset.from_tfrecord("x", schema={}), InvalidValueError, "at least one feature"),
        (lambda: Dataset.from_tfrecord("x", schema={"x": "int64"}), InvalidTypeError, "but has 'x': 'int64'"),
        (lambda: Dataset.from_tfrecord("x", schema=["x"]), InvalidTypeError, r"must be a dict of features"),
        (lambda: write_tfrecord("x", {"a": [1], "b": [1, 2]}), InvalidValueError, "the same number of rows"),
        (lambda: write_tfrecord("x", [{"a": 1}, {"a": 1.5}]), InvalidTypeError, "'a' of row 1 holds float32, but the"),
        (lambda: write_tfrecord("x", [{"a": object()}]), InvalidTypeError, "must hold numbers, text or bytes"),
        (
            lambda: write_tfrecord("x", {"a": np.array([2**63], np.uint64)}),
            InvalidValueError,
            "does not fit into int64",
        ),
        (lambda: write_tfrecord("x", [[1]]), InvalidTypeError, r"row 0 is \[1\]"),
        (lambda: write_tfrecord("x", {"a": [1]}, sequence_columns=["b"]), InvalidValueError, "has 'b', but no row has"),
        (lambda: write_tfrecord("x", {"a": ["b"]}, sequence_columns=["a"]), InvalidTypeError, "a list of steps, but"),
        (
            lambda: write_tfrecord("x", [{"a": [1]}, {"a": [2, 0.5]}], sequence_columns=["a"]),
            InvalidTypeError,
            "'a' of row 1 holds float32, but the rows before hold int64",
        ),
        (lambda: FixedLenSequenceFeature([], "int64", default_value=-1), InvalidValueError, r"None, but got -1; pad"),
        (
            lambda: Dataset.from_tfrecord("x", sequence_schema={"x": FixedLenFeature([], "int64")}),
            InvalidTypeError,
            "a feature list is read by FixedLenSequenceFeature.* has 'x': FixedLen",
        ),
        (
            lambda: Dataset.from_tfrecord("x", schema=SPEC, sequence_schema={"x": VarLenFeature("int64")}),
            InvalidValueError,
            "both have 'x'; give the column of one another name",
        ),
        (lambda: write_tfrecord("x", 5), InvalidTypeError, "takes a dict of columns or rows as dicts"),
    ],
)
def test_wrong_arguments_are_refused(
    make: Any, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        make()
    assert list(tmp_path.iterdir()) == []


def test_tables_and_missing_values_are_written(tmp_path: Path) -> None:
    path = tmp_path / "table.tfrecord"
    table = pa.table({"n": [1, None, 3], "words": [["a"], None, []], "b": [True, False, None]})
    table = table.append_column("job", pa.array(["x", None, "y"]).dictionary_encode())
    assert write_tfrecord(path, table) == 3
    schema = {
        "n": FixedLenFeature([], "int64", -1),
        "words": VarLenFeature("string"),
        "b": FixedLenFeature([], "int64", 9),
        "job": FixedLenFeature([], "string", "none"),
    }
    (features,) = Dataset.from_tfrecord(path, schema=schema).batch(3)
    assert features["n"].tolist() == [1, -1, 3]
    assert features["words"].tolist() == [["a"], [""], [""]]
    assert features["b"].tolist() == [1, 0, 9]
    assert features["job"].tolist() == ["x", "none", "y"]
