"""Tables as the world has them: what trains also predicts, with the same result by every way to ask."""

from __future__ import annotations

import csv
import datetime
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torch_estimator as te
from tests.serving.ways import Answer, Asked, Row, asking, without_missing, write_lines
from torch_estimator import feature_column as fc
from torch_estimator.feature_column.column import CategoricalColumn

HASHED = fc.categorical_column_with_hash_bucket
READERS = {
    "csv": te.data.Dataset.from_csv,
    "jsonl": te.data.Dataset.from_json,
    "parquet": te.data.Dataset.from_parquet,
}
CENSUS_NAMES = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship"),
    *("race", "gender", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income_bracket"),
)


@dataclass(frozen=True)
class Table:
    """A table in files.

    Attributes:
        columns: Feature columns that read it.
        label: Name of the label.
        rows: The rows, with columns that the model does not read.
        trained_on: Format that the model is trained on.
        folder: Folder of ``rows.csv``, ``rows.jsonl`` and ``rows.parquet``.
        place: Glob for the folders of the files within that folder.
        csv: Arguments of ``Dataset.from_csv``.
        options: Options of ``predict-batch`` that say the same.
    """

    columns: Sequence[Any]
    label: str
    rows: list[Row]
    trained_on: str
    folder: Path
    place: str = "."
    csv: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def files(self, form: str) -> str:
        return str(self.folder / self.place / f"rows.{form}")

    def dataset(self, form: str, **settings: Any) -> te.data.Dataset:
        arguments = {**settings, **(self.csv if form == "csv" else {})}
        return READERS[form](self.files(form), schema=fc.schema(self.columns), **arguments)


def write_files(folder: Path, rows: list[Row], arrow: pa.Table, encoding: str = "utf-8", **dialect: Any) -> None:
    """Write rows as CSV and JSON lines, and a table as Parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "rows.csv", "w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n", **dialect)
        writer.writeheader()
        writer.writerows(rows)
    write_lines(folder / "rows.jsonl", rows)
    pq.write_table(arrow, folder / "rows.parquet")


def table_of(rows: list[Row], **changed: pa.Array) -> pa.Table:
    return pa.table({**{name: [row[name] for row in rows] for name in rows[0]}, **changed})


def census(folder: Path, data: Path) -> Table:
    """The first rows of the census, with ``?`` and with holes in what may be missing."""
    columns = [
        fc.numeric_column("hours_per_week", normalizer_fn=lambda x: x / 40),
        fc.numeric_column("age", default_value=38.0, normalizer_fn=lambda x: x / 38),
        fc.bucketized_column(fc.numeric_column("age", default_value=38.0), [25, 45, 65]),
        fc.numeric_column("capital_gain", default_value=0.0, normalizer_fn=lambda x: x / 10000),
        fc.missing_indicator_column("capital_gain"),
        fc.categorical_column_with_vocabulary_list("workclass", ["Private", "State-gov"], num_oov_buckets=1),
        fc.categorical_column_with_identity("education_num", 17),
        HASHED("occupation", 50),
        HASHED("native_country", 20),
    ]
    numbers = {"age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"}
    holes = ("age", "workclass", "education_num", "occupation", "capital_gain", "native_country", "gender", "fnlwgt")
    generator = np.random.default_rng(36)
    rows, written = [], []
    with open(data / "census" / "adult.data.csv", newline="") as file:
        for texts, missing in zip(csv.reader(file), generator.random((300, len(holes))) < 0.2, strict=False):
            row: Row = {
                name: None if text == "?" else int(text) if name in numbers else text
                for name, text in zip(CENSUS_NAMES, texts, strict=True)
            }
            given = dict(zip(CENSUS_NAMES, texts, strict=True))
            for name in np.array(holes)[missing]:
                row[name], given[name] = None, generator.choice(["", "?"])
            rows.append(row)
            written.append(given)
    write_files(folder, rows, table_of(rows))
    with open(folder / "rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, CENSUS_NAMES)
        writer.writeheader()
        writer.writerows(written)
    known = {"missing_values": ["?"]}
    return Table(columns, "income_bracket", rows, "csv", folder, csv=known, options=("--missing-values", "?"))


def notes(folder: Path, _: Path) -> Table:
    """CSV with newlines, quotes and delimiters in its fields, another delimiter, and another encoding."""
    texts = ['two\nlines; and "quotes"', "Zürich", "ein; Feld", None, "a,b", "\n", "é\r\nà", "x"]
    rows = [
        {"note": texts[n % 8], "x": None if n % 5 == 0 else n / 4, "size": n, "city": texts[(n + 3) % 8], "y": n % 2}
        for n in range(40)
    ]
    columns = [
        fc.numeric_column("x", default_value=2.5), fc.numeric_column("size"), HASHED("note", 90), HASHED("city", 9),
    ]  # fmt: skip
    write_files(folder, rows, table_of(rows), "latin-1", delimiter=";")
    options = ("--delimiter", ";", "--encoding", "latin-1")
    return Table(columns, "y", rows, "csv", folder, csv={"delimiter": ";", "encoding": "latin-1"}, options=options)


def warehouse(folder: Path, _: Path) -> Table:
    """Parquet with decimals, booleans and text for numbers, all kinds for strings, and whole doubles for ids."""
    day, noon = datetime.date(2026, 1, 31), datetime.datetime(2026, 1, 31, 12, 30)
    ids = [uuid.UUID(int=2**127 + n) for n in range(3)]
    # Values in Parquet by column, and what they are in other files.
    kinds: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
        "price": (pa.decimal128(10, 2), [Decimal("1.25"), None, Decimal("-2.50")], [1.25, None, -2.5]),
        "flag": (pa.bool_(), [True, False, None], [1.0, 0.0, None]),
        "text": (pa.string(), ["1.5", " 2e1 ", None], [1.5, 20.0, None]),
        "required": (pa.decimal128(6, 1), [Decimal("0.5"), Decimal(2), Decimal(-3)], [0.5, 2.0, -3.0]),
        "day": (pa.date32(), [day, None, day.replace(day=1)], ["2026-01-31", None, "2026-01-01"]),
        "at": (pa.timestamp("ms"), [noon, None, noon], ["2026-01-31 12:30:00", None, "2026-01-31 12:30:00"]),
        "is_new": (pa.bool_(), [True, False, None], ["true", "false", None]),
        "code": (pa.int64(), [7, -1, None], ["7", "-1", None]),
        "amount": (pa.decimal128(8, 2), [Decimal("1.5"), None, Decimal(3)], ["1.50", None, "3.00"]),
        "raw": (pa.binary(), [b"a", "é".encode(), None], ["a", "é", None]),
        "customer": (pa.uuid(), [one.bytes for one in ids], [str(one) for one in ids]),
        "region": (pa.float64(), [1.0, 4.0, None], [1, 4, None]),
        "shop": (pa.decimal128(5, 0), [Decimal(3), None, Decimal(0)], [3, None, 0]),
        # These types cannot hold the default.
        "steps": (pa.int64(), [1, None, 3], [1.0, None, 3.0]),
        "shelf": (pa.uint8(), [2, None, 0], [2, None, 0]),
    }
    numbers, words = ("price", "flag", "text", "steps"), ("day", "at", "is_new", "code", "amount", "raw", "customer")
    columns = [
        fc.numeric_column("required"),
        *(fc.numeric_column(name, default_value=7.5) for name in numbers),
        fc.missing_indicator_column("price"),
        *(HASHED(name, 30) for name in words),
        *(fc.categorical_column_with_identity(name, 5) for name in ("region", "shop", "shelf")),
    ]
    places = np.random.default_rng(3).integers(0, 3, (30, len(kinds)))
    rows = [
        {name: kinds[name][2][place] for name, place in zip(kinds, row, strict=True)} | {"y": int(row.sum() % 2)}
        for row in places
    ]
    arrays: dict[str, pa.Array] = {"y": pa.array([row["y"] for row in rows])}
    for (name, (kind, values, _)), column in zip(kinds.items(), places.T, strict=True):
        given = [values[place] for place in column]
        is_extension = isinstance(kind, pa.BaseExtensionType)
        arrays[name] = (
            pa.ExtensionArray.from_storage(kind, pa.array(given, kind.storage_type))
            if is_extension
            else pa.array(given, kind)
        )
    write_files(folder, rows, pa.table(arrays))
    return Table(columns, "y", rows, "parquet", folder)


def partitioned(folder: Path, _: Path) -> Table:
    """Folders that hold the values of two columns, one of which may be missing."""
    columns = [fc.numeric_column("x", default_value=-1.5), HASHED("day", 30), HASHED("word", 30)]
    columns.append(fc.categorical_column_with_identity("region", 5))
    rows: list[Row] = []
    missing = "__HIVE_DEFAULT_PARTITION__"
    # The files of a glob are read in this order.
    for day, region in (("2026-01-31", 1), ("2026-01-31", 4), ("2026-02-01", 0), (None, 2), (None, None)):
        part: list[Row] = [
            {"x": None if n == 3 else n / 2, "word": None if n == 4 else f"w{n}", "y": n % 2} for n in range(6)
        ]
        place = folder / f"day={day or missing}" / f"region={missing if region is None else region}"
        write_files(place, part, table_of(part))
        rows += [{**row, "day": day, "region": region} for row in part]
    return Table(columns, "y", rows, "jsonl", folder, place="day=*/region=*")


TABLES: list[Callable[[Path, Path], Table]] = [census, notes, warehouse, partitioned]


@dataclass(frozen=True)
class Trained:
    """A table, a model that was trained on it, a server of its export, and what the estimator predicts."""

    table: Table
    model: te.Estimator
    asked: Asked
    expected: list[float]

    def estimated(self, form: str) -> list[float]:
        answers = self.model.predict(lambda: self.table.dataset(form).batch(64))
        return [float(one["logits"][0]) for one in answers]


@pytest.fixture(scope="module", params=TABLES, ids=lambda make: make.__name__)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("table")
    data = request.getfixturevalue("shared_data") if request.param is census else folder
    table = request.param(folder / "rows", data)
    deep = [fc.embedding_column(one, 2) if isinstance(one, CategoricalColumn) else one for one in table.columns]
    labels = sorted({row[table.label] for row in table.rows})
    model = te.DNNLinearCombinedClassifier(
        f"{folder}/run",
        linear_feature_columns=table.columns,
        dnn_feature_columns=deep,
        dnn_hidden_units=[4],
        label_vocabulary=labels if isinstance(labels[0], str) else None,
    )
    model.train(lambda: table.dataset(table.trained_on, label=table.label).repeat().batch(20), max_steps=5)
    export = model.export_saved_model(f"{folder}/export", te.serving_input.json(table.columns))
    write_lines(folder / "served.jsonl", table.rows)
    with asking(export, ignore_unknown=True) as asked:
        answers = model.predict(lambda: table.dataset(table.trained_on).batch(64))
        yield Trained(table, model, asked, [float(one["logits"][0]) for one in answers])


WAYS: dict[str, Callable[[Trained], Answer]] = {
    "Estimator.predict of CSV": lambda it: it.estimated("csv"),
    "Estimator.predict of JSON lines": lambda it: it.estimated("jsonl"),
    "Estimator.predict of Parquet": lambda it: it.estimated("parquet"),
    "ExportedModel": lambda it: it.asked.exported(it.table.rows),
    "REST by row": lambda it: it.asked.by_row(it.table.rows),
    "REST by row, absent": lambda it: it.asked.by_row(without_missing(it.table.rows)),
    "REST by column": lambda it: it.asked.by_column(it.table.rows),
    "v2 JSON": lambda it: it.asked.v2_json(it.table.rows),
    "v2 binary": lambda it: it.asked.v2_binary(it.table.rows),
    "gRPC": lambda it: it.asked.over_grpc(it.table.rows),
    "predict": lambda it: it.asked.predict(it.table.folder.parent / "served.jsonl", "--ignore-unknown"),
    "predict-batch of CSV": lambda it: it.asked.predict_batch(it.table.files("csv"), *it.table.options),
    "predict-batch of JSON lines": lambda it: it.asked.predict_batch(it.table.files("jsonl"), "--ignore-unknown"),
    "predict-batch of Parquet": lambda it: it.asked.predict_batch(it.table.files("parquet")),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_table_that_trains_is_predicted_as_the_estimator_does(trained: Trained, way: str) -> None:
    answer = WAYS[way](trained)
    assert not isinstance(answer, str), answer
    np.testing.assert_allclose(answer, trained.expected, atol=1e-5)


def test_compressed_tf_examples_with_holes_are_predicted_as_the_estimator_does(tmp_path: Path) -> None:
    spec = {
        "x": te.data.FixedLenFeature([], "float32", default_value=1.5),
        "word": te.data.FixedLenFeature([], "string", default_value=""),
    }
    columns = [fc.numeric_column("x", default_value=1.5), HASHED("word", 30)]
    rows = [{"x": n / 2, "word": f"w{n % 3}", "y": n % 2} for n in range(9)]
    rows += [{"y": 1, "x": 2.0}, {"y": 0, "word": "w1"}, {"y": 0}]
    path = tmp_path / "rows.tfrecord.gz"
    te.data.write_tfrecord(path, rows)

    def dataset(**settings: Any) -> te.data.Dataset:
        return te.data.Dataset.from_tfrecord(str(path), schema=spec, **settings)

    model = te.LinearClassifier(columns, f"{tmp_path}/run")
    model.train(lambda: dataset(label="y").repeat().batch(4), max_steps=5)
    export = model.export_saved_model(f"{tmp_path}/export", te.serving_input.examples(spec))
    expected = [float(one["logits"][0]) for one in model.predict(lambda: dataset().batch(5))]
    with asking(export) as asked:
        answer = asked.predict_batch(path, "--signature-name", "predict")
        assert not isinstance(answer, str), answer
        np.testing.assert_allclose(answer, expected, atol=1e-5)
