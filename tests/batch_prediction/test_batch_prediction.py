"""Files of rows are predicted row by row, wrong rows are named, and a kill loses or repeats nothing."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.export.models import Built, census_columns, model_of
from tests.serving.row_graphs import BY_ROW, NOT_BY_ROW, write_graph
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.batch_prediction import inputs
from torch_estimator.batch_prediction.encoded_model import EncodedModel
from torch_estimator.batch_prediction.inputs import Chunk, CsvOptions, CsvReader, JsonReader, ParquetReader
from torch_estimator.batch_prediction.job import BatchOptions, Summary, predict_files
from torch_estimator.batch_prediction.rows import Texts
from torch_estimator.errors import DataError, ExportError, InvalidValueError, UserError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.instances import to_rows
from torch_estimator.export.signatures import PREDICT, Signature, TensorInfo
from torch_estimator.runs.locks import FileLock

WORDS = ["a", "b", "", "日本語", 'qu"ote', "never seen", "x" * 300]


@pytest.fixture(scope="session")
def built() -> Built:
    return model_of([fc.categorical_column_with_hash_bucket("word", 10), fc.numeric_column("x")], [])


@pytest.fixture(scope="session")
def export(built: Built, tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    """An export with the inputs ``word`` and ``x``."""
    return built.export(tmp_path_factory.mktemp("export"))


def predict(export: ExportedModel, files: Path | Sequence[Path], output: Path, **options: Any) -> Summary:
    given = [files] if isinstance(files, Path) else files
    return predict_files(
        BatchOptions(model=export.directory, inputs=tuple(map(str, given)), output=str(output), **options)
    )


def lines(output: Path, kind: str = "results") -> list[dict[str, Any]]:
    """The lines of all shards in order."""
    return [json.loads(line) for line in raw(output, kind).decode().split("\n")[:-1]]


def raw(output: Path, kind: str = "results") -> bytes:
    return b"".join(path.read_bytes() for path in sorted(output.glob(f"prediction.{kind}-*")))


def expected(export: ExportedModel, columns: dict[str, Any]) -> list[dict[str, Any]]:
    return to_rows(export.predict(columns, "serving_default"))


def assert_same(found: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert one[name] == (pytest.approx(value, rel=1e-5, nan_ok=True) if isinstance(value[0], float) else value)


def table(rows: int, seed: int = 1) -> pa.Table:
    generator = np.random.default_rng(seed)
    words = [WORDS[place] for place in generator.integers(0, len(WORDS), rows)]
    return pa.table({"id": np.arange(rows), "word": words, "x": generator.normal(size=rows).astype(np.float32)})


@pytest.fixture(params=["csv", "jsonl", "parquet"])
def rows_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same 500 rows in each format."""
    data = table(500)
    path = tmp_path / f"rows.{request.param}"
    if request.param == "parquet":
        pq.write_table(data, path, row_group_size=70)
    elif request.param == "jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in data.to_pylist()))
    else:
        quoted = [(row["id"], row["word"].replace('"', '""'), row["x"]) for row in data.to_pylist()]
        path.write_text("id,word,x\n" + "".join(f'{key},"{word}",{x}\n' for key, word, x in quoted))
    return path


def test_every_format_gives_the_models_predictions_in_order_with_the_keys(
    export: ExportedModel, rows_file: Path, tmp_path: Path
) -> None:
    data = table(500)
    summary = predict(export, rows_file, tmp_path / "out", keys=("id",), batch=64)
    assert (summary.predicted, summary.rejected) == (500, 0)
    found = lines(tmp_path / "out")
    assert [int(row.pop("id")) for row in found] == list(range(500))
    assert_same(found, expected(export, {"word": data["word"].to_pylist(), "x": data["x"].to_pylist()}))
    assert lines(tmp_path / "out", "errors_stats") == []


def test_two_processes_write_what_one_writes(export: ExportedModel, rows_file: Path, tmp_path: Path) -> None:
    predict(export, rows_file, tmp_path / "one", shards=3)
    predict(export, [rows_file], tmp_path / "two", shards=3, workers=2)
    assert raw(tmp_path / "one") == raw(tmp_path / "two")
    assert sorted(os.listdir(tmp_path / "two")) == [
        *(f"prediction.errors_stats-{number:05d}-of-00003" for number in range(3)),
        "prediction.job.json",
        *(f"prediction.results-{number:05d}-of-00003" for number in range(3)),
    ]


def test_a_glob_takes_all_files_in_order(export: ExportedModel, tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"part-{number:02d}.csv").write_text(f"x,word,id\n{number},a,{number}\n")
    predict(export, tmp_path / "part-*.csv", tmp_path / "out", keys=("id",))
    assert [row["id"] for row in lines(tmp_path / "out")] == [str(number) for number in range(12)]


def test_a_remote_file_and_a_remote_output(export: ExportedModel, rows_file: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    base = f"/{rows_file.parent.name}-{rows_file.suffix[1:]}"
    memory.pipe_file(f"{base}/in/{rows_file.name}", rows_file.read_bytes())
    options = BatchOptions(
        model=export.directory,
        inputs=(f"memory:/{base}/in/*",),
        output=f"memory:/{base}/out",
        keys=("id",),
        shards=2,
    )
    assert predict_files(options).predicted == 500
    assert predict_files(options).was_complete
    names = [Path(name).name for name in memory.ls(f"{base}/out", detail=False)]
    assert [name for name in sorted(names) if "results" in name] == [
        "prediction.results-00000-of-00002",
        "prediction.results-00001-of-00002",
    ]
    assert not [name for name in names if name.startswith(".")]


BAD_CSV = """\
word,x,label
a,1,?
a,old,?

b,2
b, 3 ,?
"two
lines",4,?
b,,?
"q""uote",5,?
\xff,6,?
"c
c",7
"c
c",1e3,?
"open,4,?
d,8,?
"""


def test_wrong_rows_of_csv_are_rejected_with_their_line(export: ExportedModel, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_bytes(BAD_CSV.encode("latin-1"))
    summary = predict(export, tmp_path / "bad.csv", tmp_path / "out")
    assert (summary.predicted, summary.rejected) == (6, 6)
    found = lines(tmp_path / "out", "errors_stats")
    assert {one["file"] for one in found} == {str(tmp_path / "bad.csv")}
    assert [(one["line"], one["reason"]) for one in found] == [
        (3, "Input x takes numbers, but has 'old'."),
        (5, "The line has 2 fields where 3 are expected (word, x, label)."),
        (9, "Input x is missing."),
        (
            11,
            "The line is not UTF-8: byte 0 is 0xff in column 'word'; if the file has another encoding, give it, as "
            "--encoding cp1252 does.",
        ),
        (12, "The line has 2 fields where 3 are expected (word, x, label)."),
        (
            16,
            "A quoted field of column 'word' begins here and does not end; close the quote, or give --quote-char '' "
            "if quotes have no meaning.",
        ),
    ]
    words = ["a", "b", "two\nlines", 'q"uote', "c\nc", "d"]
    wanted = expected(export, {"word": words, "x": [1.0, 3.0, 4.0, 5.0, 1000.0, 8.0]})
    assert_same(lines(tmp_path / "out"), wanted)


def test_wrong_rows_among_many_good_ones_keep_their_line(export: ExportedModel, tmp_path: Path) -> None:
    rows = [f"a,{number}" for number in range(5000)]
    for place in (0, 1700, 4999):
        rows[place] = "a,none"
    rows[2500] = "a,1,2"
    (tmp_path / "bad.csv").write_text("\n".join(rows))
    predict(export, tmp_path / "bad.csv", tmp_path / "out", columns=("word", "x"))
    assert [one["line"] for one in lines(tmp_path / "out", "errors_stats")] == [1, 1701, 2501, 5000]
    assert len(lines(tmp_path / "out")) == 4996


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize("delimiter", [None, "|"])
def test_csv_as_other_programs_write_it(
    delimiter: str | None,
    pack: Any,
    small: bool,
    export: ExportedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if small:
        monkeypatch.setattr(inputs, "_CHUNK_BYTES", 50)
    words = ["a", "ü|\nb", "", "", 'q"'] * 40
    rows = [["word", "x\n(kg)", "x"]]
    rows += [
        [word if word or number % 5 == 2 else "NA", "two\r\nlines", str(number)] for number, word in enumerate(words)
    ]
    rows[8][2] = "?"
    out = io.StringIO(newline="")
    csv.writer(out, delimiter="|").writerows(rows)
    path = tmp_path / "rows.csv.bz2"
    path.write_bytes(pack(out.getvalue().encode("latin-1")))
    options = CsvOptions(delimiter=delimiter, missing_values=("NA", "?"), encoding="latin-1")
    predict(export, path, tmp_path / "out", csv=options, shards=3)
    numbers = [float(number) for number in range(200) if number != 7]
    wanted = expected(export, {"word": [words[int(number)] for number in numbers], "x": numbers})
    assert_same(lines(tmp_path / "out"), wanted)
    line = 1 + sum(text.count("\n") + 1 for text in (",".join(row) for row in rows[:8]))
    assert lines(tmp_path / "out", "errors_stats") == [
        {"file": str(path), "line": line, "reason": "Input x is missing."}
    ]
    with pytest.raises(UserError, match=r"its csv is \{"):
        predict(export, path, tmp_path / "out", shards=3, csv=CsvOptions(missing_values=("NA",), encoding="latin-1"))


BAD_JSON = """\
{"word": "a", "x": 1, "id": 1}
{"word": "a", "x": "old", "id": 2}
{"word": "a", "id": 3}
{"word": "a", "x": 1

{"word": "a", "x": [2], "more": {}, "id": null}
[1]
{"word": "a", "x": 1}
{"word": "\\ud800", "x": 1, "id": 5}
{"word": "b", "x": NaN, "id": [6]}
{"word": 7, "x": 1, "id": 7}
{"word": null, "x": 3, "id": {"a": "b"}}
"""


def test_integers_of_any_size_are_forwarded_as_keys(export: ExportedModel, tmp_path: Path) -> None:
    keys = [2**64, -(2**63) - 1, -(2**64), 10**30, 2**64 - 1, -(2**63), [2**70], {"a": 2**70}, 7]
    content = "".join(json.dumps({"word": "a", "x": 1.5, "id": key}) + "\n" for key in keys)
    (tmp_path / "keys.jsonl").write_text(content)
    predict(export, tmp_path / "keys.jsonl", tmp_path / "out", keys=("id",))
    assert [row["id"] for row in lines(tmp_path / "out")] == keys


def test_wrong_rows_of_json_are_rejected_with_their_line(export: ExportedModel, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(BAD_JSON)
    predict(export, tmp_path / "bad.jsonl", tmp_path / "out", keys=("id",), ignore_unknown=True)
    found = {one["line"]: one["reason"] for one in lines(tmp_path / "out", "errors_stats")}
    assert list(found) == [2, 3, 4, 7, 8, 9, 10, 11]
    assert found[2] == "Input x takes numbers, but has 'old' (str)."
    assert found[3] == "Input x was missing in at least one input instance."
    assert found[4].startswith("The line is not JSON (")
    assert found[7] == "A line must hold an object with id, but has [1]."
    assert found[8] == "The key 'id' is missing."
    assert "surrogate" in found[9]
    assert found[10] == "The prediction is NaN because of its inputs: x is NaN; give finite numbers."
    assert found[11] == "Input word takes strings, but has 7 (int)."
    assert [row["id"] for row in lines(tmp_path / "out")] == [1, None, {"a": "b"}]


def test_nulls_of_parquet_are_rejected_with_their_row(export: ExportedModel, tmp_path: Path) -> None:
    x = pa.array([1.0, None, 3.0, None, 5.0])
    data = pa.table({"word": ["a", "b", None, "a", "a"], "x": x, "day": pa.array([1, 2, 3, 4, None], pa.date32())})
    pq.write_table(data, tmp_path / "rows.parquet", row_group_size=2)
    predict(export, tmp_path / "rows.parquet", tmp_path / "out", keys=("day",))
    found = lines(tmp_path / "out", "errors_stats")
    assert [(one["row"], one["reason"]) for one in found] == [(1, "Input x is missing."), (3, "Input x is missing.")]
    assert [row["day"] for row in lines(tmp_path / "out")] == ["1970-01-02", "1970-01-04", None]
    wanted = expected(export, {"word": ["a", "", "a"], "x": [1.0, 3.0, 5.0]})
    assert_same(
        [{name: value for name, value in row.items() if name != "day"} for row in lines(tmp_path / "out")], wanted
    )


def test_files_of_wrong_rows_only(export: ExportedModel, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n" * 3000)
    summary = predict(export, tmp_path / "bad.jsonl", tmp_path / "out")
    assert (summary.predicted, summary.rejected) == (0, 3000)


@pytest.mark.parametrize("content", ["", "word,x\n", "word,x"])
def test_files_without_rows(export: ExportedModel, tmp_path: Path, content: str) -> None:
    (tmp_path / "rows.csv").write_text(content)
    columns = () if content else ("word", "x")
    summary = predict(export, tmp_path / "rows.csv", tmp_path / "out", columns=columns)
    assert summary.rows == 0
    assert lines(tmp_path / "out") == []
    pq.write_table(table(0), tmp_path / "rows.parquet")
    assert predict(export, tmp_path / "rows.parquet", tmp_path / "none").rows == 0


@pytest.mark.parametrize(
    ("name", "content", "options", "problem"),
    [
        (
            "a.csv",
            "word,y\na,1\n",
            {},
            "a.csv has no column 'x', which the model needs; its columns are word, y; if it has no",
        ),
        ("a.csv", "a,1\nb,2\n", {}, "its columns are a, 1; if it has no header, name its columns with --columns."),
        ("a.csv", "word,x\na,1\n", {"keys": ("id",)}, "has no column 'id', which --key names"),
        ("a.csv", "", {}, "has no header"),
        ("a.csv", "WORD,Y\na,1\n", {}, "'x', which the model needs"),
        (
            "a.csv",
            'word,"x\n',
            {},
            "line 1: a quoted field begins here and does not end within 64 MiB or the file; close",
        ),
        ("a.csv", "word,x,x\n", {}, "line 1: two columns are called 'x'; if it has no header, name"),
        ("a.csv", b"\xff\n", {}, "line 1: the header cannot be read"),
        ("a.csv", b"\x1f\x8b\x08...", {}, "a.csv cannot be read: "),
        ("a.csv", b"\xff\xfex\x00", {}, "a.csv is encoded in UTF-16, which is not read; give encoding='utf-16'."),
        ("a.csv", b"\xff", {"csv": CsvOptions(encoding="utf-16")}, "line 1: the file is not in utf-16, which encoding"),
        (
            "a.jsonl",
            "{}",
            {"csv": CsvOptions(delimiter=";")},
            "--delimiter, --quote-char, --missing-values and --encod",
        ),
        ("a.jsonl", "{}", {"columns": ("a",)}, "--columns names the columns of CSV files"),
        ("a.txt", "", {}, "does not tell its format; give --format csv, jsonl, parquet or tfrecord."),
        ("a.parquet", "no parquet", {}, "a.parquet cannot be read as Parquet: "),
        ("a.parquet", "PAR1" * 20, {}, "a.parquet cannot be read as Parquet: "),
        ("b.csv", None, {}, "There is no file"),
        ("b*.csv", None, {}, "No file matches"),
        ("a.csv", "word,x\n", {"keys": ("logits",)}, "--key logits has the name of an output"),
        ("a.csv", "word,x\n", {"signature": "none"}, "the signature 'none' is not in"),
    ],
)
def test_a_wrong_file_is_one_sentence_and_leaves_nothing(
    export: ExportedModel, tmp_path: Path, name: str, content: str | bytes | None, options: Any, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as raised:
        predict(export, tmp_path / name, tmp_path / "out", **options)
    assert problem in str(raised.value)
    assert str(raised.value).endswith(".")
    assert list((tmp_path / "out").iterdir()) == []


def test_columns_of_other_types_are_one_sentence(export: ExportedModel, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"word": [["a"]], "x": [1.0]}), path)
    with pytest.raises(DataError, match="column 'word' holds list<element: string>, but the input takes strings"):
        predict(export, path, tmp_path / "out")
    pq.write_table(pa.table({"word": ["a"], "x": pa.array([1], pa.date32())}), path)
    with pytest.raises(DataError, match=r"column 'x' holds date32\[day\], but the input takes numbers"):
        predict(export, path, tmp_path / "out")


def test_another_command_into_the_same_directory_is_refused(export: ExportedModel, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("word,x\na,1\n")
    predict(export, file, tmp_path / "out")
    assert predict(export, file, tmp_path / "out", workers=2, batch=7).was_complete
    with pytest.raises(InvalidValueError, match="another command: its keys is"):
        predict(export, file, tmp_path / "out", keys=("word",))
    with pytest.raises(InvalidValueError, match="another command: its shards is null, not 4"):
        predict(export, file, tmp_path / "out", shards=4)
    (tmp_path / "b.csv").write_text("word,x\n")
    with pytest.raises(InvalidValueError, match=r"another command: its input lacks .*b\.csv"):
        predict(export, [file, tmp_path / "b.csv"], tmp_path / "out")
    file.write_text("word,x\na,1\na,2\n")
    with pytest.raises(InvalidValueError, match=r"a\.csv has changed since\. Give another --output"):
        predict(export, file, tmp_path / "out")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "prediction.results-00000-of-00001").touch()
    with pytest.raises(InvalidValueError, match="which another program wrote"):
        predict(export, file, tmp_path / "foreign")


COMMAND = """
import sys
from torch_estimator.cli import main
from torch_estimator.batch_prediction import shard
shard._COMMIT_SECS = float(sys.argv.pop(1))
sys.exit(main(sys.argv[1:]))
"""


def killable(tmp_path: Path) -> Path:
    """A file in which every hundredth row is wrong, of 120 chunks."""
    data = table(12_000)
    x = data["x"].to_pylist()
    x[::100] = [None] * 120
    path = tmp_path / "rows.parquet"
    pq.write_table(data.set_column(2, "x", pa.array(x, pa.float32())), path, row_group_size=100)
    return path


@pytest.mark.parametrize(
    ("workers", "commit_secs"),
    [
        pytest.param(1, 0.0, marks=pytest.mark.slow),
        pytest.param(1, 1000.0, marks=pytest.mark.slow),
        (2, 2.0),
    ],
)
def test_a_job_killed_again_and_again_writes_every_row_once(
    export: ExportedModel, tmp_path: Path, workers: int, commit_secs: float
) -> None:
    path = killable(tmp_path)
    options: dict[str, Any] = {"keys": ("id",), "shards": 9}
    predict(export, path, tmp_path / "undisturbed", **options)

    output = tmp_path / "killed"
    command = [sys.executable, "-c", COMMAND, str(commit_secs), "predict-batch", "--model", export.directory]
    command += ["--input", str(path), "--output", str(output), "--key", "id", "--shards", "9"]
    command += ["--workers", str(workers), "--batch", "16"]
    generator = random.Random(workers + commit_secs)
    kills = 0
    while kills < 8:
        # Kill it when it has written some more bytes than the one before it.
        target = size(output) + generator.randrange(1, 400_000)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while process.poll() is None and size(output) < target:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            assert process.stderr is not None
            assert b"Traceback" not in process.stderr.read()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
    assert kills
    summary = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert summary.startswith(("11,880 rows predicted, 120 rejected", f"{output} is complete already"))
    for kind in ("results", "errors_stats"):
        assert raw(output, kind) == raw(tmp_path / "undisturbed", kind)
    assert [row["id"] for row in lines(output)] == [number for number in range(12_000) if number % 100]
    assert not list(output.glob(".*"))


def size(directory: Path) -> int:
    total = 0
    for path in directory.glob(".tmp-results*") if directory.exists() else ():
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_a_worker_that_dies_is_one_sentence_and_the_next_run_goes_on(export: ExportedModel, tmp_path: Path) -> None:
    path = killable(tmp_path)
    command = [sys.executable, "-m", "torch_estimator.cli", "predict-batch", "--model", export.directory]
    command += ["--input", str(path), "--output", str(tmp_path / "out"), "--workers", "2", "--batch", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        workers: list[int] = []
        while len(workers) < 2 or not size(tmp_path / "out"):
            assert process.poll() is None
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            workers = [int(one) for one in children]
        os.kill(workers[-1], signal.SIGKILL)
        assert process.stderr is not None
        message = process.stderr.read()
    assert process.returncode == 2
    assert "estimator: error: a worker ended with status -9; run the same command again to go on" in message
    predict(export, path, tmp_path / "out")
    assert len(lines(tmp_path / "out")) == 11_880


def test_a_disk_that_is_full_at_the_end_is_one_sentence(export: ExportedModel, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n" * 3000)
    predict(export, tmp_path / "bad.jsonl", tmp_path / "undisturbed")
    # The rejected rows get the name of their file last of all, which makes this file the longest.
    most = len(raw(tmp_path / "undisturbed", "errors_stats")) - 1
    command = [sys.executable, "-m", "torch_estimator.cli", "predict-batch", "--model", export.directory]
    command += ["--input", str(tmp_path / "bad.jsonl"), "--output", str(tmp_path / "out")]
    limited = ["prlimit", f"--fsize={most}", *command]
    ended = subprocess.run(limited, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (
        2,
        f"estimator: error: {tmp_path / 'out'} cannot be written: File too large.\n",
    )
    assert not list((tmp_path / "out").glob("prediction.errors*"))
    predict(export, tmp_path / "bad.jsonl", tmp_path / "out")
    assert raw(tmp_path / "out", "errors_stats") == raw(tmp_path / "undisturbed", "errors_stats")


def test_what_a_kill_after_the_last_row_has_left_is_removed(export: ExportedModel, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("word,x\na,1\n")
    predict(export, tmp_path / "a.csv", tmp_path / "out")
    before = sorted((tmp_path / "out").iterdir())
    (tmp_path / "out" / ".tmp-state-00000-of-00001").write_text("{}")
    assert predict(export, tmp_path / "a.csv", tmp_path / "out").was_complete
    assert sorted((tmp_path / "out").iterdir()) == before


def test_a_second_process_is_refused(export: ExportedModel, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("word,x\na,1\n")
    (tmp_path / "out").mkdir()
    with (
        FileLock(str(tmp_path / "out"), directory=True),
        pytest.raises(InvalidValueError, match="another process writes into"),
    ):
        predict(export, tmp_path / "a.csv", tmp_path / "out")


SIGNATURE = Signature(
    method_name=PREDICT,
    inputs={
        "word": TensorInfo(dtype="DT_STRING", shape=(-1,), tensor="word"),
        "x": TensorInfo(dtype="DT_FLOAT", shape=(-1,), tensor="x", default=0.5),
        "n": TensorInfo(dtype="DT_INT32", shape=(-1, 1), tensor="n"),
    },
    outputs={},
)

LINES = st.one_of(
    st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")),
    st.sampled_from([b"", b"a,1,2", b"a,,2", b'"b,c",nan,-3', b"a,1", b"a,x,2", b"a,1,9999999999", b'"a,1,2', b"\r"]),
    st.sampled_from([b'{"word": "a", "x": 1, "n": 2}', b"null", b"[[[", b'{"word": 1}', b'"a"', b"{}", b"1" * 5000]),
)


@pytest.mark.parametrize("reader", [CsvReader(SIGNATURE, (), ("word", "x", "n")), JsonReader(SIGNATURE, ())])
@settings(max_examples=150, deadline=None)
@given(content=st.lists(LINES, max_size=12), ends=st.booleans(), cuts=st.lists(st.integers(1, 100), max_size=5))
def test_every_line_is_read_or_rejected_however_the_file_is_divided(
    reader: CsvReader | JsonReader, content: list[bytes], ends: bool, cuts: list[int]
) -> None:
    data = b"\n".join(content) + b"\n" * ends
    if data.startswith((b"\xef\xbb\xbf", b"\x1f\x8b")):
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows")
        path.write_bytes(data)
        try:
            file, _ = reader.plan(0, str(path))
        except DataError as error:
            # Another encoding, or a JSON array, is refused as a whole.
            assert data.startswith((b"\xff\xfe", b"\xfe\xff", b"BZh", b"PK", b"\xfd7z", b"(\xb5")) or "array" in str(
                error
            )
            return
        borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        chunks = [Chunk(0, start, stop - start) for start, stop in itertools.pairwise(borders)]
        divided = [reader.read(file, chunk) for chunk in chunks]
        whole = reader.read(file, Chunk(0, 0, len(data)))
        undivided = sorted([*whole.numbers.tolist(), *(number for number, _ in whole.rejected)])
    begin, places = 0, []
    for rows in divided:
        assert all(len(column) == len(rows) for column in rows.columns.values())
        places += [begin + int(number) for number in rows.numbers]
        places += [begin + number for number, _ in rows.rejected]
        begin += rows.length
    split = data.split(b"\n")
    assert begin == len(split) - (split[-1] == b"") if data else begin == 0
    if isinstance(reader, JsonReader):
        assert sorted(places) == [number for number, line in enumerate(split) if line.strip()]
        return
    # Rows of CSV may have several lines, so compare with what is read without a division.
    assert sorted(places) == undivided
    assert len(set(places)) == len(places)


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_damaged_parquet_file_is_read_or_refused(place: int, byte: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        pq.write_table(pa.table({"word": ["a", "b"] * 20, "x": [1.5] * 40, "n": [3] * 40}), path)
        data = bytearray(path.read_bytes())
        data[place % len(data)] = byte
        path.write_bytes(data)
        reader = ParquetReader(SIGNATURE, ("x",))
        try:
            file, chunks = reader.plan(0, str(path))
            for chunk in chunks:
                reader.read(file, chunk)
        except UserError as error:
            assert str(path) in str(error)


def test_lists_and_tensors_come_from_parquet_and_json(tmp_path: Path) -> None:
    signature = Signature(
        method_name=PREDICT,
        inputs={
            "tags": TensorInfo(dtype="DT_STRING", shape=(-1, -1), tensor="tags"),
            "point": TensorInfo(dtype="DT_FLOAT", shape=(-1, 2), tensor="point"),
        },
        outputs={},
    )
    path = tmp_path / "rows.parquet"
    points = [[1.0, 2.0], [3.0], None, [4.0, 5.0]]
    pq.write_table(pa.table({"tags": [["a"], ["b"], [], ["c", "d"]], "point": points}), path)
    reader = ParquetReader(signature, ())
    file, (chunk,) = reader.plan(0, str(path))
    rows = reader.read(file, chunk)
    assert rows.columns == {"tags": [["a"], ["c", "d"]], "point": [[1.0, 2.0], [4.0, 5.0]]}
    assert sorted(rows.rejected) == [(1, "Input point takes 2 values, but has 1."), (2, "Input point is missing.")]
    pq.write_table(pa.table({"tags": [["a"]] * 2, "point": [[1.0, 2.0], [4.0, 5.0]]}), path)
    file, (chunk,) = reader.plan(0, str(path))
    np.testing.assert_array_equal(
        ParquetReader(signature, ()).read(file, chunk).columns["point"], [[1.0, 2.0], [4.0, 5.0]]
    )
    (tmp_path / "rows.csv").write_text("tags,point\n")
    with pytest.raises(DataError, match="input tags takes lists, which CSV cannot hold; use JSON lines or Parquet"):
        CsvReader(signature, ()).plan(0, str(tmp_path / "rows.csv"))


def test_an_export_for_csv_takes_its_rows_from_json_lines(built: Built, tmp_path: Path) -> None:
    export = built.export(tmp_path / "export", serving_input.csv(["id", "word", "x"], built.transform))
    (tmp_path / "rows.jsonl").write_text('"1,a,2"\n"1,a"\n"1,a,old"\n')
    predict(export, tmp_path / "rows.jsonl", tmp_path / "out")
    assert len(lines(tmp_path / "out")) == 1
    found = lines(tmp_path / "out", "errors_stats")
    assert [one["line"] for one in found] == [2, 3]
    assert found[1]["reason"] == "The CSV row has 'old' in the column 'x', which takes a number."


@pytest.mark.parametrize("hash_function", ["murmur3", "farmhash"])
def test_strings_given_as_codes_are_predicted_as_strings_are(tmp_path: Path, hash_function: str) -> None:
    export = model_of(*census_columns(hash_function)).export(tmp_path)
    generator = np.random.default_rng(3)
    distinct = np.array([*WORDS, "Bachelors", "Sales", "United-States", "White", "?", "Private"], object)
    columns: dict[str, Any] = {}
    for name, info in export.signature("serving_default").inputs.items():
        if info.dtype == "DT_STRING":
            columns[name] = Texts(distinct, generator.integers(0, len(distinct), 200).astype(np.int32))
        else:
            columns[name] = generator.integers(0, 90, 200).astype(np.float32)
    encoded = EncodedModel(export, "serving_default")
    for rows in (200, 5, 1):
        some = {name: column[:rows] for name, column in columns.items()}
        plain = {name: column.values() if isinstance(column, Texts) else column for name, column in some.items()}
        wanted = export.predict(plain, "serving_default")
        for name, output in encoded.predict(some, rows).items():
            assert isinstance(output, Texts) == (wanted[name].dtype == object)
            np.testing.assert_array_equal(output.values() if isinstance(output, Texts) else output, wanted[name])


def test_neither_torch_nor_pandas_is_imported(export: ExportedModel, rows_file: Path, tmp_path: Path) -> None:
    code = "import sys; from torch_estimator.cli import main; status = main(sys.argv[1:])\n"
    code += "sys.exit(status or ' '.join(name for name in ('torch', 'pandas') if name in sys.modules) or 0)"
    command = [sys.executable, "-c", code, "predict-batch", "--model", export.directory]
    command += ["--input", str(rows_file), "--output", str(tmp_path / "out"), "--key", "id"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True)
    assert printed.stdout.startswith("500 rows predicted, 0 rejected, in ")


def test_small_chunks_of_a_file_with_a_mark_and_returns(
    export: ExportedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_CHUNK_BYTES", 50)
    rows = "".join(f"a,{number}\r\n" if number != 77 else "a,none\r\n" for number in range(200))
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbfword,x\r\n" + rows.encode())
    summary = predict(export, tmp_path / "rows.csv", tmp_path / "out", shards=5)
    assert (summary.predicted, summary.rejected) == (199, 1)
    assert [one["line"] for one in lines(tmp_path / "out", "errors_stats")] == [79]


@pytest.mark.parametrize("kind", [*NOT_BY_ROW, "row by row"])
def test_coded_strings_need_a_graph_that_answers_row_by_row(tmp_path: Path, kind: str) -> None:
    model = EncodedModel(write_graph(tmp_path, NOT_BY_ROW.get(kind, BY_ROW), with_text=True), "predict")
    columns = {"x": np.array([1.0, 2.0, 3.0], np.float32), "s": np.array(["a", "b", "a"], object)}
    if kind in NOT_BY_ROW:
        with pytest.raises(ExportError, match="does not answer row by row: for 3 rows, its output 'y' has the shape"):
            model.predict(columns, 3)
    else:
        assert model.predict(columns, 3)["y"].tolist() == [1.0, 2.0, 3.0]
