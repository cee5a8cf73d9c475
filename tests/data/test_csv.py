"""CSV files: types, defaults, and errors that name the line."""

from __future__ import annotations

import gzip
import os
import signal
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.data.positions import numbers
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, UserError


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def features(data: Dataset) -> dict[str, Any]:
    """Return all rows as one batch."""
    (batch,) = data.batch(10_000)
    return batch if isinstance(batch, dict) else batch[0]


class Wants:
    """A transform that reads some columns and leaves them unchanged."""

    def __init__(self, **required: pa.DataType) -> None:
        self.required = required

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        return features, labels


def test_types_are_inferred_once_from_the_first_rows(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "i,f,b,s,d,e\n1,1.5,true,x,2020-01-01,\n-2,2,false,ü,2021-01-01,\n")
    got = features(Dataset.from_csv(file))
    assert {name: column.dtype for name, column in got.items()} == {
        "i": np.int64, "f": np.float32, "b": np.bool_, "s": object, "d": object, "e": object,
    }  # fmt: skip
    assert got["s"].tolist() == ["x", "ü"]
    assert got["d"].tolist() == ["2020-01-01", "2021-01-01"]
    assert got["e"].tolist() == ["", ""]


@pytest.mark.parametrize("large", [str(2**63), str(-(2**63) - 1), f"+{2**70}"])
def test_integers_beyond_int64_do_not_become_floats(large: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", f"x,y\n1,1.5\n\n,2\n{large},2\n")
    with pytest.raises(DataError) as error:
        features(Dataset.from_csv(file))
    assert str(error.value) == (
        f"{file}, line 5: column 'x': {int(large)} does not fit into int64; give column_types={{'x': 'string'}}, or "
        "'uint64' or 'float32' where it holds that."
    )
    assert features(Dataset.from_csv(file, column_types={"x": "string"}))["x"].tolist() == ["1", "", large]
    defaults = {"x": 0.5}
    assert features(Dataset.from_csv(file, defaults=defaults))["x"].tolist() == [1, 0.5, np.float32(large)]
    floats = written(tmp_path / "b.csv", f"x\n{large}\n1.5\n")
    assert features(Dataset.from_csv(floats))["x"].tolist() == [np.float32(large), 1.5]


@pytest.mark.parametrize("name", ["pipe.csv", "pipe.csv.gz", "pipe.jsonl", "pipe.parquet"])
def test_a_pipe_is_refused_before_it_is_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    read = {"jsonl": Dataset.from_json, "parquet": Dataset.from_parquet}.get(name.split(".")[1], Dataset.from_csv)
    with pytest.raises(DataError, match=f"{name} is a pipe or a device, which cannot be read at any place; write"):
        list(read(tmp_path / name).batch(2))


def test_the_model_decides_about_types_unless_the_user_does(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "1,2,3\n4,5,6\n")
    data = Dataset.from_csv(file, column_names=["a", "b", "c"], column_types={"b": "float64"}).batch(2)
    with data.iterator(Wants(b=pa.int64(), a=pa.string())) as iterator:
        batch = next(iterator)
    assert set(batch.features) == {"a", "b"}
    assert batch.features["a"].to_pylist() == ["1", "4"]
    assert isinstance(batch.features["a"], pa.DictionaryArray)
    assert batch.features["b"].dtype == np.float64


@pytest.mark.parametrize("given", ["float32", float, np.float32, np.dtype("float32"), torch.float32, pa.float32()])
def test_types_may_be_given_in_any_library_s_names(given: object, tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "1\n")
    assert features(Dataset.from_csv(file, column_names=["a"], column_types=[given]))["a"].dtype == np.float32


def test_defaults_fill_missing_values_and_determine_the_type(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "1,,x\n,2,\n,,\n")
    data = Dataset.from_csv(file, column_names=["a", "b", "c"], defaults={"a": 7, "b": 0.5, "c": "none"})
    got = features(data)
    assert got["a"].tolist() == [1, 7, 7]
    assert got["b"].tolist() == [0.5, 2, 0.5]
    assert got["c"].tolist() == ["x", "none", "none"]
    assert got["b"].dtype == np.float32


def test_defaults_may_be_a_list_as_in_tf_data(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "1,,x\n,2,\n")
    data = Dataset.from_csv(file, column_names=["a", "b", "c"], defaults=[[0], [1.0], [""]])
    assert [column.tolist() for column in features(data).values()] == [[1, 0], [1, 2], ["x", ""]]
    data = Dataset.from_csv(file, column_names=["a", "b", "c"], select_columns=["b", "c"], defaults=[3, str])
    assert [column.tolist() for column in features(data).values()] == [[3, 2], ["x", ""]]


def test_missing_strings_are_empty_without_a_default(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", 's\nNA\n""\nnull\n')
    assert features(Dataset.from_csv(file))["s"].tolist() == ["NA", "", "null"]


def test_columns_are_selected_and_the_label_taken_out(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "a,b,c\n1,2,yes\n3,4,no\n")
    data = Dataset.from_csv(file, select_columns=["b"], label="c")
    ((got, labels),) = data.batch(2)
    assert list(got) == ["b"]
    assert labels.tolist() == ["yes", "no"]
    ((got, labels),) = Dataset.from_csv(file, select_columns=["b", "c"]).label("c", {"no": 0, "yes": 1}).batch(2)
    assert list(got) == ["b"]
    assert labels.tolist() == [1, 0]


def test_a_header_may_be_skipped_for_other_names(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "a,b\n1,2\n")
    assert list(features(Dataset.from_csv(file, column_names=["x", "y"], header=True))) == ["x", "y"]


def test_other_delimiters_and_quotes(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "a;b\n'1;2';3\n")
    assert features(Dataset.from_csv(file, delimiter=";", quote_char="'"))["a"].tolist() == ["1;2"]
    file = written(tmp_path / "b.csv", 'a|b\n"x|3\n')
    assert features(Dataset.from_csv(file, delimiter="|", quote_char=None))["a"].tolist() == ['"x']


@pytest.mark.parametrize("text", ["x\n1\n2\n", "x\r\n1\r\n2\r\n", "x\n1\n2", "\ufeffx\n1\n2\n", "x\n\n1\n\n2\n\n"])
def test_line_ends_byte_order_marks_and_blank_lines(text: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", text)
    assert numbers(Dataset.from_csv(file).repeat(2).batch(3)) == [1, 2, 1, 2]


def test_files_follow_each_other_and_globs_are_sorted(tmp_path: Path) -> None:
    for name in ("b2", "a", "b1"):
        written(tmp_path / f"{name}.csv", f"x\n{ord(name[-1])}\n")
    assert numbers(Dataset.from_csv([tmp_path / "b*.csv", str(tmp_path / "a.csv")]).batch(1)) == [49, 50, 97]


def test_gzip_and_urls(tmp_path: Path) -> None:
    packed = gzip.compress(b"x\n1\n") + gzip.compress(b"2\n")
    assert numbers(Dataset.from_csv(written(tmp_path / "a.csv.gz", packed)).batch(5)) == [1, 2]
    for number in (2, 1):
        with fsspec.open(f"memory://csv/{number}.csv.gz", "wb") as file:
            file.write(gzip.compress(f"x\n{number}\n".encode()))
    assert numbers(Dataset.from_csv("memory://csv/*.csv.gz").batch(5)) == [1, 2]
    assert numbers(Dataset.from_csv((tmp_path / "a.csv.gz").as_uri()).batch(5)) == [1, 2]


@pytest.mark.parametrize("width", [1, 100, 5000, 200_000])
def test_lines_of_any_length_are_read_once(width: int, tmp_path: Path) -> None:
    rows = max(2, 600_000 // width)
    text = "x,s\n" + "".join(f"{i},{'s' * (i * 7919 % width)}\n" for i in range(rows))
    file = written(tmp_path / "a.csv", text.encode()[:-1])
    data = Dataset.from_csv(file)
    assert numbers(data.batch(1000)) == list(range(rows))
    assert sorted(numbers(data.shuffle(2, seed=1).batch(1000))) == list(range(rows))


def test_a_remote_file_of_many_ranges_is_read_once() -> None:
    rows = 400_000
    with fsspec.open("memory://csv/large.csv", "w") as file:
        file.write("x\n" + "".join(f"{i}\n" for i in range(rows)))
    data = Dataset.from_csv("memory://csv/large.csv")
    assert numbers(data.batch(50_000)) == list(range(rows))
    assert sorted(numbers(data.shuffle(2, seed=1).batch(50_000))) == list(range(rows))


@pytest.mark.parametrize("default", [True, 2**70])
def test_a_default_that_is_no_integer_of_the_column_is_refused(default: int, tmp_path: Path) -> None:
    message = f"the default {default} of column 'i' cannot be read as int64, the type of the column."
    for name, text in [("a.csv", 'i\n1\n""\n'), ("a.jsonl", '{"i": 1}\n{"i": null}\n')]:
        file = written(tmp_path / name, text)
        read = Dataset.from_csv if name == "a.csv" else Dataset.from_json
        data = read(file, column_types={"i": "int64"}, defaults={"i": default})
        with pytest.raises(UserError) as raised:
            list(data.batch(2))
        assert message in str(raised.value)


def test_a_list_of_several_values_is_no_default(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x,s\n,a\n")
    with pytest.raises(InvalidTypeError, match=r"default of column 'x' must be a number or a string, but got \[1, 2\]"):
        Dataset.from_csv(file, defaults={"x": [1, 2]})


@pytest.mark.parametrize("text", ["x,y", "x,y\n", "x,y\r\n\r\n", "\ufeffx,y\n\n"])
def test_a_file_without_rows_is_an_error_unless_another_one_has_some(text: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", text)
    for data in (Dataset.from_csv(file, label="y"), Dataset.from_csv(file, column_names=["x", "y"], header=True)):
        assert fails(lambda data=data: data.shuffle(10).repeat().batch(2)) == f"{file} has no rows."
    assert fails(lambda: Dataset.from_csv([file, file]).batch(2)) == f"{file} (and 1 more file) has no rows."
    other = written(tmp_path / "b.csv", "x,y\n1,2\n")
    assert numbers(Dataset.from_csv([file, other, file]).repeat(2).batch(2)) == [1, 1]


GOOD = "1,a,0\n2,b,1\n\n3,c,0\n"


def fails(make: Callable[[], Dataset]) -> str:
    """Return the message of the DataError that reading to the end raises."""
    with pytest.raises(DataError) as raised:
        for _ in make():
            pass
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x,d,0", "column 'n': 'x' is not a whole number (int64)"),
        ("1.5,d,0", "column 'n': '1.5' is not a whole number"),
        (",d,0", "column 'n': the value is missing and has no default; give one, as defaults={'n': 0} does."),
        ("4,d", "2 fields, but there are 3 columns (n, s, y)."),
        ('4,"d,0', "a quoted field of column 's' begins here and does not end within 64 MiB or the file; close the"),
        ('4,"d\n4,d",0,1', "4 fields, but there are 3 columns (n, s, y); the row has 2 lines, because of its quotes."),
        ('4,"d\r4,d",x', "column 'y': 'x' is not a whole number (int64)"),
        ("4,d\rd,0", "2 fields, but there are 3 columns (n, s, y)."),
        ("4,d," + "0" * 200_000 + "x", "column 'y': '" + "0" * 40 + "…' is not a whole number (int64)"),
        ("4,d,0,0", "4 fields, but there are 3 columns (n, s, y)."),
        (
            b"4,\xff\xfe,0",
            "column 's': '��' is not UTF-8 text; if the file has another encoding, give it, such as encoding='cp1252'.",
        ),
        ("4,d,7", "column 'y': unknown label 7; expected one of 0, 1."),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_bad_line_is_named(line: str | bytes, message: str, shuffle: bool, ending: str, tmp_path: Path) -> None:
    bad = line.encode() if isinstance(line, str) else line
    good = GOOD.replace("\n", ending).encode()
    text = b"n,s,y" + ending.encode() + good * 20_000 + bad + ending.encode() + good * 3
    file = written(tmp_path / "a.csv", text)

    def make() -> Dataset:
        data = Dataset.from_csv(file).label("y", {0: 0, 1: 1})
        return (data.shuffle(10, seed=1) if shuffle else data).repeat(2).batch(7).prefetch(2)

    assert fails(make).startswith(f"{file}, line 80002: {message}")


@pytest.mark.parametrize("header", [True, False])
def test_the_header_counts_as_a_line(header: bool, tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", ("n,s,y\n" if header else "") + GOOD + "x,d,0\n")
    names = None if header else ["n", "s", "y"]
    data = Dataset.from_csv(file, column_names=names, column_types={"n": "float32"})
    assert fails(lambda: data.batch(2)) == f"{file}, line {5 + header}: column 'n': 'x' is not a number (float)."


def test_the_bad_line_s_own_file_is_named(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{i}.csv", "x\n1\n2\n" if i != 2 else "x\n1\nbad\n") for i in range(5)]
    message = fails(lambda: Dataset.from_csv(paths, column_types={"x": "int64"}).shuffle(9, seed=1).batch(2))
    assert message.startswith(f"{paths[2]}, line 3: column 'x': 'bad'")


def test_the_error_of_a_wrong_inferred_type_names_the_cure(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x\n" + "1\n" * 100_000 + "1.5\n")
    assert "give column_types={'x': ...}" in fails(lambda: Dataset.from_csv(file).batch(1000))


SOME_QUOTES = [f'{i},"a ""b"" {i % 7}, c",{i % 2}' for i in range(40_000)]


STRAY = "fields, but there are 3 columns (n, s, y); the row has"


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("opening", "closing", "line", "wrong"),
    [
        ('7,"a,1', '9,b",1', 7, "column 'n': 'bad' is not a whole number (int64)"),
        ('7,"a,1', '9,b,"1"', 3, f"2 {STRAY} 4 lines"),
        ('7,1,"1', '9,"",1', 3, f"5 {STRAY} 6 lines"),
        ('7,1,"', "9,b,1", 3, f"5 {STRAY} 6 lines"),
    ],
)
def test_a_stray_quote_is_named_where_it_begins(
    opening: str, closing: str, line: int, wrong: str, shuffle: bool, tmp_path: Path
) -> None:
    lines = [*SOME_QUOTES, "1,,1", opening, "2,,1", "", closing, "bad,,1", *SOME_QUOTES]
    file = written(tmp_path / "a.csv", "n,s,y\n" + "\n".join(lines) + "\n")
    data = Dataset.from_csv(file, column_types={"n": "int64", "s": "string", "y": "string"})
    data = (data.shuffle(10, seed=1) if shuffle else data).batch(100)
    assert fails(lambda: data).startswith(f"{file}, line {len(SOME_QUOTES) + line}: {wrong}")


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_quote_that_is_open_at_the_end_of_all_lines_is_named(shuffle: bool, tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", 'n,s\n1,a\n2,"b\n\n')
    data = Dataset.from_csv(file)
    assert fails(lambda: (data.shuffle(9) if shuffle else data).batch(5)).startswith(f"{file}, line 3: a quoted field")


def test_quotes_that_swallow_nothing_are_read_as_they_are(tmp_path: Path) -> None:
    text = 's,n\n5" x 3",1\n\n"a ""b"", c",2\r\n\r\n"d"e",3\n"",4\n"""",5\n'
    file = written(tmp_path / "a.csv", text)
    got = features(Dataset.from_csv(file))
    assert got["s"].tolist() == ['5" x 3"', 'a "b", c', 'de"', "", '"']
    assert got["n"].tolist() == [1, 2, 3, 4, 5]


def test_the_last_line_s_quote_is_named_by_its_own_place_in_many_files(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{i}.csv", f"n,s\n1,a\n2,{quote}b\n") for i, quote in enumerate(["", '"', "", ""])]
    for seed in range(5):
        message = fails(lambda seed=seed: Dataset.from_csv(paths).shuffle(99, seed=seed).batch(5))
        assert message.startswith(f"{paths[1]}, line 3: a quoted field")


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_carriage_return_ends_a_line(shuffle: bool, tmp_path: Path) -> None:
    rows = 30_000
    file = written(tmp_path / "a.csv", "x,y\r" + "".join(f"{i},1\r" for i in range(rows)))
    data = Dataset.from_csv(file)
    assert sorted(numbers((data.shuffle(9, seed=1) if shuffle else data).batch(1000))) == list(range(rows))
    written(file, "x,y\r" + "".join(f"{i},1\r" for i in range(rows)) + "x,1\r")
    data = Dataset.from_csv(file, column_types={"x": "int64"})
    data = data.shuffle(9, seed=1) if shuffle else data
    assert fails(lambda: data.batch(1000)).startswith(f"{file}, line {rows + 2}: column 'x': 'x' is not")


BINARY = np.random.default_rng(3).integers(0, 256, 300_000, dtype=np.uint8).tobytes()


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("content", [BINARY, BINARY.replace(b"\n", b"\r"), b'a,"b\rc,d\n1,2\n', b"\0" * 200_000, b"\r"])
def test_a_file_that_is_no_csv_is_named_in_one_sentence(content: bytes, header: bool, tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", content)
    names = None if header else ["x", "y"]
    assert fails(lambda: Dataset.from_csv(file, column_names=names).batch(2)).startswith(str(file))


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-Infinity", "1e400"])
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_number_that_is_not_finite_is_named(value: str, kind: str, shuffle: bool, tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x,y\n" + "1,1\n" * 30_000 + f"2,{value}\n" + "1,1\n" * 9)
    data = Dataset.from_csv(file, column_types={"y": kind}, defaults={"y": 0.0})
    message = fails(lambda: (data.shuffle(9, seed=1) if shuffle else data).batch(1000))
    number = "float" if kind == "float32" else "double"
    assert message.startswith(f"{file}, line 30002: column 'y': {value!r} is not a finite number ({number}); give ")


def test_nan_as_the_default_allows_nan(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x,y\n1,\nnan,inf\n3,5\n")
    nan = float("nan")
    assert str(features(Dataset.from_csv(file, defaults={"x": nan, "y": nan}))["y"].tolist()) == "[nan, inf, 5.0]"
    assert "column 'x': 'nan'" in fails(lambda: Dataset.from_csv(file, defaults={"y": nan}).batch(5))


def test_large_numbers_are_finite(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x\n" + "1.7e308\n" * 9)
    assert features(Dataset.from_csv(file, column_types={"x": "float64"}))["x"].tolist() == [1.7e308] * 9


def test_a_row_that_the_transform_refuses_is_named(tmp_path: Path) -> None:
    from torch_estimator.errors import RowError

    class Refuses:
        required = None

        def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
            rows = np.flatnonzero(features["x"] == 777)
            if len(rows):
                raise RowError("unlucky", row=int(rows[0]))
            return features, labels

    file = written(tmp_path / "a.csv", "x,y\n" + "".join(f"{i},0\n" for i in range(2000)))
    data = Dataset.from_csv(file, label="y")
    chains = [data.shuffle(50, seed=1), data.skip(5).shuffle(50), data.shard(2, 1), data.repeat(2)]
    for chain in chains:
        with chain.batch(10).iterator(Refuses()) as iterator, pytest.raises(DataError) as raised:
            list(iterator)
        assert str(raised.value) == f"{file}, line 779: column 'y': unlucky."


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: Dataset.from_csv(p / "none.csv"), "There is no file {p}/none.csv."),
        (lambda p: Dataset.from_csv(p / "none*.csv"), "No file matches {p}/none*.csv."),
        (lambda p: Dataset.from_csv("memory://none.csv"), "There is no file memory://none.csv."),
        (lambda p: Dataset.from_csv("memory://none/*.csv"), "No file matches memory://none/*.csv."),
        (lambda p: Dataset.from_csv(p), "{p} is a directory; name its files, for instance with {p}/*."),
        (lambda p: Dataset.from_csv(p / "empty.csv"), "{p}/empty.csv is empty."),
        (lambda p: Dataset.from_csv(p / "a.csv", label="z"), "column 'z' is not in {p}/a.csv; the columns there are x"),
        (lambda p: Dataset.from_csv(p / "a.csv", select_columns=["z"]), "column 'z' is not in {p}/a.csv;"),
        (lambda p: Dataset.from_csv(p / "a.csv", column_types={"z": int}), "column 'z' is not in {p}/a.csv;"),
        (lambda p: Dataset.from_csv([p / "a.csv", p / "b.csv"]), "{p}/b.csv, line 1: the header is x, z, but that of"),
        (lambda p: Dataset.from_csv(p / "twice.csv"), "{p}/twice.csv, line 1: two columns are called 'x'; if the"),
        (lambda p: Dataset.from_csv(p / "broken.csv.gz"), "{p}/broken.csv.gz cannot be read: "),
        (lambda p: Dataset.from_csv(p / "cut.csv.gz"), "{p}/cut.csv.gz cannot be read: the file is cut off"),
    ],
)  # fmt: skip
def test_invalid_files_are_refused(make: Callable[[Path], Dataset], message: str, tmp_path: Path) -> None:
    written(tmp_path / "empty.csv", "")
    written(tmp_path / "a.csv", "x,y\n1,2\n")
    written(tmp_path / "b.csv", "x,z\n1,2\n")
    written(tmp_path / "twice.csv", "x,x\n1,2\n")
    written(tmp_path / "broken.csv.gz", "x\n1\n")
    written(tmp_path / "cut.csv.gz", gzip.compress(b"x\n1\n")[:-9])
    assert fails(lambda: make(tmp_path).batch(2)).startswith(message.format(p=tmp_path))


def test_a_missing_column_of_the_model_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x,y\n1,2\n")
    message = r"column 'agee' is not in .*a\.csv; the columns there are x, y; if .* give column_names="
    with pytest.raises(DataError, match=message):
        Dataset.from_csv(file).batch(1).iterator(Wants(agee=pa.float32()))


def test_a_column_that_the_schema_hides_is_said_to_be_in_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x,y\n1,2\n")
    dataset = Dataset.from_csv(file, schema=pa.schema([("x", pa.float32())])).batch(1)
    with pytest.raises(DataError, match=r"column 'y' of .*a\.csv is not read, because .* the schema does not name it"):
        dataset.iterator(Wants(y=pa.float32()))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"files": []}, InvalidValueError, "at least one file"),
        ({"files": 3}, InvalidTypeError, "path or a sequence of paths"),
        ({"header": False}, InvalidValueError, "need column_names"),
        ({"column_names": ["a", "a"]}, InvalidValueError, "distinct, but 'a'"),
        ({"column_names": "ab"}, InvalidTypeError, "sequence of strings"),
        ({"column_names": ["a"], "defaults": [1, 2]}, InvalidValueError, "one entry for each of 1 columns, but has 2"),
        ({"defaults": [1, 2]}, InvalidValueError, "need column_names"),
        ({"defaults": 3}, InvalidTypeError, "a dict by column"),
        ({"defaults": {"a": {}}}, InvalidTypeError, "default of column 'a' must be a number or a string"),
        ({"column_types": {"a": "flaot"}}, InvalidTypeError, "cannot be read as 'flaot'"),
        ({"delimiter": ",,"}, InvalidValueError, "delimiter must be one ASCII character"),
        ({"label": 3}, InvalidTypeError, "label must be the name of a column"),
    ],
)
def test_arguments_are_checked_at_once(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Dataset.from_csv(**{"files": "a.csv", **arguments})


def test_a_default_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x\n1\n")
    data = Dataset.from_csv(file, column_types={"x": "float32"}, defaults={"x": "unknown"})
    with pytest.raises(InvalidValueError, match="default 'unknown' of column 'x' cannot be read as float"):
        data.batch(1).iterator()


def test_a_file_that_vanishes_while_it_is_read_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x\n1\n")
    with Dataset.from_csv(file).batch(1).iterator() as iterator:
        file.unlink()
        with pytest.raises(DataError, match=r"a\.csv cannot be read: No such file"):
            next(iterator)


def test_a_file_that_is_cut_while_it_is_read_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x\n1\n2\n")
    with Dataset.from_csv(file).batch(1).iterator() as iterator:
        written(file, "x\n1\n")
        with pytest.raises(DataError, match=r"a\.csv became shorter while it was read"):
            next(iterator)


def test_the_label_cannot_be_a_feature_too(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x,y\n1,2\n")
    with pytest.raises(DataError, match="column 'y' is the label"):
        Dataset.from_csv(file, label="y").batch(1).iterator(Wants(y=pa.float32()))


def test_a_handled_signal_does_not_end_the_reading_of_a_file(tmp_path: Path) -> None:
    # The types of columns are inferred in the main thread, which Python's signal handlers run in, too.
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + "1,2\n" * 30_000)
    signals = []
    handler = signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    ended = threading.Event()

    def send() -> None:
        while not ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        while len(signals) < 200:
            assert len(next(iter(Dataset.from_csv(str(path)).batch(3)))["a"]) == 3
    finally:
        ended.set()
        sender.join()
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("other", ["y,x\n30,3\n", "x,z\n3,30\n", "x,y,z\n3,30,1\n", "\ufeffy,x\n30,3\n"])
def test_names_for_files_with_unequal_headers_are_an_error(other: str, tmp_path: Path) -> None:
    first = written(tmp_path / "a.csv", "x,y\n1,10\n")
    second = written(tmp_path / "b.csv", other)
    for names in (["x", "y"], ["u", "v"]):
        data = Dataset.from_csv([first, second], column_names=names, header=True)
        assert fails(lambda data=data: data.batch(9)).startswith(f"{second}, line 1: the header is ")


@pytest.mark.parametrize("header", ["y,x", "w,x", '"y" ,"x"'])
def test_a_name_that_the_header_has_keeps_its_place(header: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", f"{header}\n10,1\n")
    message = fails(lambda: Dataset.from_csv(file, column_names=["x", "y"], header=True).batch(9))
    assert message.startswith(f"{file}, line 1: the header is ")
    assert "'x', which is the name of another column" in message


def test_equal_headers_may_be_replaced_by_names_in_part(tmp_path: Path) -> None:
    files = [written(tmp_path / name, "x,y,y\n1,10,3\n") for name in ("a.csv", "b.csv")]
    got = features(Dataset.from_csv(files, column_names=["x", "b", "c"], header=True))
    assert {name: values.tolist() for name, values in got.items()} == {"x": [1, 1], "b": [10, 10], "c": [3, 3]}


def test_marks_of_missing_values_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('size,rooms,town,ids\n1.5,NA,Ulm,a|b\n?,3,"NA",NA\n,?,,?|c\n')
    data = Dataset.from_csv(
        str(path),
        missing_values=["NA", "?"],
        defaults={"size": -1.0, "rooms": 0},
        column_types={"ids": pa.list_(pa.string())},
        list_separator="|",
    )
    (batch,) = data.batch(3)
    assert batch["size"].tolist() == [1.5, -1.0, -1.0]
    assert batch["rooms"].tolist() == [0, 3, 0]
    assert batch["town"].tolist() == ["Ulm", "", ""]
    assert [list(one) for one in batch["ids"]] == [["a", "b"], ["", ""], ["?", "c"]]


def test_a_mark_without_a_default_is_an_error_as_an_empty_field(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("size\n1.5\nNA\n")
    with pytest.raises(DataError, match=r"rows\.csv, line 3: .*size.*missing"):
        next(iter(Dataset.from_csv(str(path), na_value="NA").batch(2)))


def test_numbers_with_marks_of_missing_values_are_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("size,town\n1.5,?\nNA,Ulm\n")
    (batch,) = Dataset.from_csv(str(path)).batch(2)
    assert batch["size"].tolist() == ["1.5", "NA"]
    (text,) = caplog.messages
    assert text.startswith("column 'size' of ")
    assert "give missing_values" not in text
    assert "missing_values=['NA']" in text
    with pytest.raises(DataError, match=r"'NA' is not a number.*give missing_values=\['NA'\]"):
        next(iter(Dataset.from_csv(str(path), column_types={"size": "float32"}).batch(2)))


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_noted(tmp_path: Path, delimiter: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"a{delimiter}b\n1{delimiter}2\n")
    Dataset.from_csv(str(path)).head(1)
    assert f"give delimiter={delimiter!r}" in caplog.text
    caplog.clear()
    assert Dataset.from_csv(str(path), delimiter=delimiter).head(1) == {"a": np.array([1]), "b": np.array([2])}
    assert not caplog.messages


@pytest.mark.parametrize("marks", ["NA", [1], None])
def test_marks_must_be_a_list_of_strings(marks: Any) -> None:
    with pytest.raises((InvalidTypeError, TypeError)):
        Dataset.from_csv("rows.csv", missing_values=marks)


@pytest.mark.parametrize(
    ("read", "start", "line"),
    [
        (Dataset.from_csv, b"x\n1\n2\n3", 4),
        (Dataset.from_csv, b"x", 1),
        (Dataset.from_json, b'{"x": 1}\n{"x": ', 2),
        (Dataset.from_text, b"one\ntwo\n", 3),
    ],
)
def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, read: Callable[[Path], Dataset], start: bytes, line: int
) -> None:
    path = written(tmp_path / "rows", start)
    os.truncate(path, 2**28)  # A sparse file.
    with pytest.raises(DataError, match=rf"rows, line {line}: no newline ends the line within 64 MiB"):
        list(read(path).batch(10))


def test_a_gzip_file_that_grows_a_thousand_times_is_unpacked_in_small_parts(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv.gz", gzip.compress(b"x\n" + b"1\n" * 2**24))
    tracemalloc.start()
    try:
        assert next(iter(Dataset.from_csv(path).batch(3)))["x"].tolist() == [1, 1, 1]
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_delimiter_that_the_first_lines_say_is_found(
    tmp_path: Path, delimiter: str, caplog: pytest.LogCaptureFixture
) -> None:
    row = delimiter.join
    path = written(
        tmp_path / "a.csv", "\n".join([row(["x", "s"]), row(["1", f'"a{delimiter}\nb"']), row(["2", "c,d"])])
    )
    (batch,) = Dataset.from_csv(path).batch(9)
    assert batch["x"].tolist() == [1, 2]
    assert batch["s"].tolist() == [f"a{delimiter}\nb", "c,d"]
    assert f"{path} is read with {delimiter!r} between its columns" in caplog.text
    (batch,) = Dataset.from_csv(path, column_names=["x", "s"], column_types=[str, str]).batch(9)
    assert batch["x"].tolist() == ["x", "1", "2"]
    caplog.clear()
    (batch,) = Dataset.from_csv(path, field_delim=delimiter).batch(9)
    assert batch["x"].tolist() == [1, 2]
    assert not caplog.messages


@pytest.mark.parametrize("text", ["a;b\n1\n", "a;b,c\n1;2,3\n", "a\n1;2\n", "a\n"])
def test_a_delimiter_that_the_first_lines_do_not_agree_on_is_not_found(text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", text + "x\n" if text == "a\n" else text)
    assert list(features(Dataset.from_csv(path))) == text.split("\n")[0].split(",")
    path = written(tmp_path / "b.csv", "x;2\n3;4\n")
    data = Dataset.from_csv(path, column_names=["a", "b", "c"])
    assert fails(lambda: data.batch(2)) == f"{path}, line 1: 1 fields, but there are 3 columns (a, b, c)."


def test_two_delimiters_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="delimiter is ';', but field_delim is ','; give one of them"):
        Dataset.from_csv("rows.csv", delimiter=";", field_delim=",")
