"""JSON lines: types, defaults, and errors that name the line."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from tests.data.positions import numbers
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, UserError

LINES = [
    {"age": 31, "income": 1.5, "name": "ä", "male": True, "tags": ["a", "b"], "scores": [1, 2.5], "when": "2020-01-02"},
    {"age": 52, "income": None, "name": None, "male": False, "tags": [], "scores": [3, 4]},
    {"name": 'say "hi"\n', "age": 24, "income": 2, "male": True, "tags": None, "scores": [5, 6], "other": {"a": 1}},
]


def written(folder: Path, lines: Any = LINES, name: str = "a.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return file


class Wants:
    def __init__(self, **required: pa.DataType) -> None:
        self.required = required

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        return features, labels


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    columns = ["age", "income", "name", "male", "tags", "scores", "when"]
    data = Dataset.from_json(written(tmp_path), select_columns=columns, defaults={"income": -1})
    (batch,) = data.batch(9)
    assert {name: column.tolist() for name, column in batch.items()} == {
        "age": [31, 52, 24],
        "income": [1.5, -1, 2],
        "name": ["ä", "", 'say "hi"\n'],
        "male": [True, False, True],
        "tags": [["a", "b"], ["", ""], ["", ""]],
        "scores": [[1, 2.5], [3, 4], [5, 6]],
        "when": ["2020-01-02", "", ""],
    }
    kinds = {name: batch[name].dtype for name in ("age", "male", "scores")}
    assert kinds == {"age": np.int64, "male": np.bool_, "scores": np.float32}
    assert batch["income"].dtype == np.float32


def test_blank_lines_globs_compression_and_urls(tmp_path: Path) -> None:
    written(tmp_path, [{"x": 1}, "\n", "  \r\n", {"x": 2}], "a.jsonl")
    written(tmp_path, ["\ufeff", {"x": 3}, '{"x": 4}'], "b.jsonl")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"x": 5}\n'))
    with fsspec.open("memory://json/d.jsonl", "w") as file:
        file.write('{"x": 6}')
    files = [tmp_path / "[ab].jsonl", tmp_path / "c.jsonl.gz", "memory://json/*.jsonl"]
    assert numbers(Dataset.from_json(files).batch(4)) == [1, 2, 3, 4, 5, 6]


def test_large_files_are_shuffled_and_read_in_pieces(tmp_path: Path) -> None:
    file = written(tmp_path, (f'{{"x": {i}, "w": "word {i % 7}"}}\n' for i in range(200_000)))
    assert numbers(Dataset.from_json(file).batch(50_000)) == [*range(200_000)]
    shuffled = numbers(Dataset.from_json(file).shuffle(9, seed=1).batch(50_000))
    assert sorted(shuffled) == [*range(200_000)] != shuffled


def test_a_model_s_types_are_read(tmp_path: Path) -> None:
    types = {"age": pa.float32(), "male": pa.float32(), "tags": pa.list_(pa.string()), "scores": pa.float32()}
    with Dataset.from_json(written(tmp_path), label="name").batch(9).iterator(Wants(**types)) as iterator:
        features, labels = next(iterator)
    assert features["age"].dtype == np.float32
    assert features["male"].tolist() == [True, False, True]
    assert features["scores"].tolist() == [[1, 2.5], [3, 4], [5, 6]]
    assert labels.to_pylist() == ["ä", "", 'say "hi"\n']


def test_a_column_of_the_schema_may_be_null_in_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"x": 1, "word": null, "id": null}\n{"x": 2, "word": null, "id": null}\n')
    columns = [fc.categorical_column_with_hash_bucket("word", 5), fc.categorical_column_with_identity("id", 5)]
    schema = fc.schema([fc.numeric_column("x"), *columns])
    (batch,) = Dataset.from_json(path, schema=schema).batch(2)
    assert {name: np.asarray(values).tolist() for name, values in batch.items()} == {
        "x": [1, 2],
        "word": ["", ""],
        "id": [-1, -1],
    }


def test_a_column_that_is_rare_is_read_if_it_has_a_default(tmp_path: Path) -> None:
    file = written(tmp_path, [{"x": 1}] * 20_000 + [{"x": 2, "rare": 7}])
    with Dataset.from_json(file, defaults={"rare": 0}, select_columns=["x", "rare"]).batch(20_001).iterator() as rows:
        assert next(rows).features["rare"][-2:].tolist() == [0, 7]
    with pytest.raises(DataError, match=r"not in the first rows of .*; the columns there are x.* give it a default"):
        list(Dataset.from_json(file, select_columns=["x", "rare"]).batch(2))


def test_types_may_be_given(tmp_path: Path) -> None:
    types = {"age": "float64", "scores": pa.list_(pa.float32(), 2), "tags": pa.list_(pa.large_string()), "male": bool}
    data = Dataset.from_json(written(tmp_path), select_columns=[*types], column_types=types)
    with data.batch(3).iterator() as iterator:
        features = next(iterator).features
    assert features["age"].dtype == np.float64
    assert features["scores"].shape == (3, 2)
    assert features["tags"].shape == (3, 2)


BAD = [
    (['{"x": 1}\n', '{"x": \n'], "line 2: not JSON .*, or an object that does not end on its line"),
    (['{"x": 1} {"x": 2}\n'], "line 1: not JSON"),
    (['{"x": 1,\n', '"w": 2}\n'], "line 1: not JSON"),
    (['{"x": 1}\n', "\n", "[1]\n"], r"line 3: a line must hold a JSON object, but this is \[1\]"),
    (['{"x": 1}\n', '{"x": "a"}\n'], "column 'x': \"a\" is not a whole number|Column./x. changed from number to str"),
    (['{"x": 1}\n', '{"x": null}\n'], "line 2: column 'x': the value is missing and has no default"),
    (["null\n", '{"x": 1}\n'], "line 1: a line must hold a JSON object, but this is null"),
    (['{"x": "a"}\n', " null \n"], "line 2: a line must hold a JSON object, but this is null"),
    (['{"x": "a"}\n', '{"x": "a"} null\n', "\n"], "line 2: not JSON"),
    (['{"a":\n'] * 50_000, "line 1: not JSON"),
    (['{"x":' + "[" * 50_000 + "]" * 50_000 + "}\n"], "line 1: lists and objects in it nest deeper than 100 levels"),
    (['{"x": 1}\n', '{"w":' * 50_000 + "1" + "}" * 50_000 + "\n"], "line 2: lists and objects in it nest deeper than"),
    (["\n", "  \n"], "has no rows"),
    (['{"x": {"a": 1}}\n'], "column 'x' must hold numbers, strings or lists of them, but is struct.*; leave it out"),
    (['{"x": [[1]]}\n'], "column 'x' must hold numbers, strings or lists of them, but is list"),
    (['{"x": [{"a": 1}]}\n'], "column 'x' must hold numbers, strings or lists of them, but is list"),
]


@pytest.mark.parametrize(("lines", "message"), BAD)
def test_a_line_that_cannot_be_read_is_named(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        list(Dataset.from_json(written(tmp_path, lines)).batch(2))


@pytest.mark.parametrize(
    ("value", "cure"),
    [("1", "'uint64'}, or 'float32'"), ("[1]", "pa.list_(pa.uint64())}, or pa.list_(pa.float32())")],
)
@pytest.mark.parametrize("large", [str(2**63), str(-(2**63) - 1), "9" * 5000])
def test_integers_beyond_int64_do_not_become_floats(value: str, cure: str, large: str, tmp_path: Path) -> None:
    lines = [f'{{"x": {one}}}\n' for one in (value, "null", value.replace("1", large), value)]
    file = written(tmp_path, ["\n", *lines])
    message = rf"a\.jsonl, line 4: column 'x': {large[:30]}.* does not fit into int64; give column_types={{'x': "
    with pytest.raises(DataError, match=message + re.escape(cure)):
        list(Dataset.from_json(file).batch(2))


def test_large_integers_are_floats_if_a_type_or_default_says_so(tmp_path: Path) -> None:
    file = written(tmp_path, [f'{{"x": {2**63}}}\n', '{"x": 1}\n'])
    mixed = written(tmp_path, [f'{{"x": {2**63}}}\n', '{"x": 1.5}\n'], "b.jsonl")
    for data in (
        Dataset.from_json(file, column_types={"x": "float32"}),
        Dataset.from_json(file, defaults={"x": 1.0}),
        Dataset.from_json(mixed),
    ):
        assert next(iter(data.batch(2)))["x"][0] == 2.0**63
    with Dataset.from_json(file).batch(2).iterator(Wants(x=pa.float32())) as iterator:
        assert next(iterator)[0]["x"][0] == 2.0**63


def test_a_deep_line_far_into_a_file_is_named(tmp_path: Path) -> None:
    lines = ['{"x": [1]}\n'] * 30_000 + ["\r\n", '{"x": [1], "w":' + "[" * 50_000 + "]" * 50_000 + "}\n"]
    with pytest.raises(DataError, match=r"a\.jsonl, line 30002: lists and objects in it nest deeper than 100 levels"):
        list(Dataset.from_json(written(tmp_path, lines)).batch(5000))


def test_large_integers_beside_numbers_that_only_arrow_reads(tmp_path: Path) -> None:
    lines = [f'{{"x": {2**63}, "w": 1.5}}\n', '{"x": 1, "w": Inf}\n']
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: column 'x': \d+ does not fit into int64"):
        list(Dataset.from_json(written(tmp_path, lines), defaults={"w": float("nan")}).batch(2))


@pytest.mark.parametrize("text", ['"', "\\", '\\"]', "]]]", '"[{', "a"])
def test_brackets_in_strings_do_not_count_as_nesting(text: str, tmp_path: Path) -> None:
    one = json.dumps(text)
    many = f'{{"x": 1, "w": [{", ".join([f"[{one}]"] * 200)}]}}\n'
    deep = f'{{"x": 1, "w": {f"[{one}, " * 100}1{"]" * 100}}}\n'
    assert numbers(Dataset.from_json(written(tmp_path, [many] * 3), select_columns=["x"]).batch(4)) == [1, 1, 1]
    with pytest.raises(DataError, match=r"a\.jsonl, line 4: lists and objects in it nest deeper than 100 levels"):
        list(Dataset.from_json(written(tmp_path, [many] * 3 + [deep]), select_columns=["x"]).batch(4))


def test_every_end_of_a_line_and_deep_brackets_in_strings_are_read(tmp_path: Path) -> None:
    brackets = "[{" * 1000
    ends = ["\r", "\n", "\r\n", " \n", "\n\n", "\r\r\n", ""]
    file = written(tmp_path, [f'{{"x": {i}, "w": "{brackets}"}}{end}' for i, end in enumerate(ends)])
    assert numbers(Dataset.from_json(file).batch(4)) == [*range(7)]


@pytest.mark.parametrize("kind", [None, {"x": "string"}])
@pytest.mark.parametrize(
    "line", [b'{"x": "\xff"}\n', b'{"\xff": 1, "x": "a"}\n', b'{"x": "a\xc3"}\n', b'{"x": "a", "y": ["\xff"]}\n']
)
def test_text_that_is_not_utf_8_is_named(line: bytes, kind: dict[str, str] | None, tmp_path: Path) -> None:
    for lines, number in [([b'{"x": "ok"}\n'] * 30_000 + [line], 30_001), ([line, b'{"x": "ok"}\n'], 1)]:
        if number > 1 and b'{"x": "' not in line:
            # A key that the first lines do not have is not read.
            continue
        (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
        columns = ["x", "y"] if b"y" in line else None
        data = Dataset.from_json(tmp_path / "a.jsonl", column_types=kind, select_columns=columns, defaults={"y": ""})
        with pytest.raises(DataError, match=rf"a\.jsonl, line {number}: not UTF-8 text: byte \d+ of the line is 0x"):
            list(data.batch(5000))


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ('"a"', "int64", r"column 'x': \"a\" is not a whole number \(int64\)"),
        ("1.5", "int64", "column 'x': 1.5 is not a whole number"),
        ("1e400", "float32", "column 'x': the number is too large for a double"),
        ('1, "x": 5', "float32", "the key 'x' occurs twice"),
        ("true", "string", "column 'x': true is not a string"),
        ("NaN", "int64", "column 'x': the value is missing and has no default"),
        ("300", "int8", "column 'x': 300 is not a whole number"),
        ("1", "string", "column 'x': 1 is not a string"),
        ("1", "bool", "column 'x': 1 is not true or false"),
        ("NaN", "float32", "column 'x': NaN is not a number"),
        ("[1]", "float32", r"column 'x': \[1\] is not a number"),
        ("1", pa.list_(pa.int64()), r"column 'x': 1 is not a list; each value a whole number"),
        ("[1, null]", pa.list_(pa.int64()), "column 'x': the value is missing and has no default"),
        ("[1]", pa.list_(pa.int64(), 2), r"column 'x': \[1\] is not a list"),
    ],
)
def test_a_value_of_another_type_is_named_far_into_a_file(value: str, kind: Any, message: str, tmp_path: Path) -> None:
    good = {"string": '"a"', "bool": "true", "float32": "1"}.get(str(kind), "1")
    good = "[1, 2]" if isinstance(kind, pa.DataType) else good
    lines = [f'{{"x": {good}}}\n'] * 30_000 + ["\n", f'{{"x": {value}}}\n']
    file = written(tmp_path, lines)
    with pytest.raises(DataError, match=f"a.jsonl, line 30002: {message}"):
        list(Dataset.from_json(file, column_types={"x": kind}).batch(5000))


def test_a_default_of_nan_allows_nan(tmp_path: Path) -> None:
    file = written(tmp_path, ['{"x": 1}\n', '{"x": NaN}\n', '{"x": null}\n'])
    (batch,) = Dataset.from_json(file, defaults={"x": float("nan")}).batch(9)
    assert np.isnan(batch["x"]).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"select_columns": ["y"]}, "column 'y' is not in .*; the columns there are age, income"),
        ({"label": "y"}, "column 'y' is not in"),
        ({"column_types": {"y": "int64"}}, "column 'y' is not in"),
        ({"schema": pa.schema({"y": pa.string()})}, "column 'y' is not in"),
        (
            {"defaults": {"tags": "a"}, "select_columns": ["tags"]},
            "column 'tags' holds lists, which cannot have the default 'a'",
        ),
    ],
)
def test_columns_that_do_not_fit_are_named(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = Dataset.from_json(written(tmp_path), **{"select_columns": None, **arguments})
    with pytest.raises(DataError, match=message):
        list(data.batch(2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"column_types": {"x": "date"}}, InvalidTypeError, "column 'x' cannot be read as 'date'"),
        ({"column_types": {"x": pa.date32()}}, InvalidTypeError, "column 'x' cannot be read as"),
        ({"column_types": {"x": pa.list_(pa.date32())}}, InvalidTypeError, "column 'x' cannot be read as"),
        ({"column_types": ["int64"]}, InvalidValueError, "column_types in a list need"),
        ({"defaults": {"x": [1]}}, InvalidTypeError, "default of column 'x' must be a number or a string"),
        ({"select_columns": "x"}, InvalidTypeError, "select_columns must be a sequence of strings"),
        ({"schema": pa.schema({"x": pa.int64()}), "select_columns": ["x"]}, InvalidValueError, "not both"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        Dataset.from_json("a.jsonl", **arguments)


def test_true_is_a_number_and_nan_a_missing_string_or_id(tmp_path: Path) -> None:
    columns = [
        fc.numeric_column("x"),
        fc.categorical_column_with_hash_bucket("word", 9),
        fc.categorical_column_with_identity("id", 9),
    ]
    rows = ['{"x": true, "word": "a \\"id\\": NaN", "id": NaN}\n', '{"x": 0.5, "word": NaN, "id": true}\n']
    (batch,) = Dataset.from_json(written(tmp_path, rows), schema=fc.schema(columns)).batch(9)
    assert batch["x"].tolist() == [1.0, 0.5]
    assert batch["word"].tolist() == ['a "id": NaN', ""]
    assert batch["id"].tolist() == [-1, 1]


def test_a_row_without_keys_is_named_although_all_columns_have_defaults(tmp_path: Path) -> None:
    data = Dataset.from_json(written(tmp_path, ['{"x": 1}\n', '{"y": 1}\n', "{ }\n"]), defaults={"x": 0, "y": 0})
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: the row \{\} has none of the columns x, y\.$"):
        list(data.batch(9))
