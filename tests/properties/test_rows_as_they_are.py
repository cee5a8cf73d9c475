"""A row is predicted as the estimator does in every form, or it is refused in every form with its input."""

from __future__ import annotations

import csv
import datetime
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import torch_estimator as te
from tests.properties.trials import tried
from tests.serving.ways import Answer, Asked, Row, asking, without_missing, write_lines
from torch_estimator import feature_column as fc
from torch_estimator.errors import UserError
from torch_estimator.feature_column.column import CategoricalColumn

NAN = math.nan

Columns = Callable[[str], list[Any]]
NUMBERS: list[Columns] = [
    lambda name: [fc.numeric_column(name, default_value=0.5)],
    lambda name: [fc.numeric_column(name, default_value=-2.25), fc.missing_indicator_column(name)],
    lambda name: [fc.bucketized_column(fc.numeric_column(name, default_value=NAN), [0.0, 2.0])],
    lambda name: [
        fc.numeric_column(name, default_value=1.5, normalizer_fn=lambda x: x / 4),
        fc.bucketized_column(fc.numeric_column(name, default_value=1.5), [0.0, 2.0]),
    ],
]
TEXTS: list[Columns] = [
    lambda name: [fc.categorical_column_with_hash_bucket(name, 12)],
    lambda name: [fc.categorical_column_with_vocabulary_list(name, ["a", "1", "true"], num_oov_buckets=2)],
    lambda name: [fc.categorical_column_with_vocabulary_list(name, ["b", "2026-01-31", ""], default_value=1)],
]
IDS: list[Columns] = [
    lambda name: [fc.categorical_column_with_identity(name, 4)],
    lambda name: [fc.categorical_column_with_identity(name, 3, default_value=2)],
    lambda name: [fc.categorical_column_with_vocabulary_list(name, [0, 2, 7], num_oov_buckets=1)],
]
REQUIRED: list[Columns] = [lambda name: [fc.numeric_column(name)]]
DAY, NOON = datetime.date(2026, 1, 31), datetime.datetime(2026, 1, 31, 12, 30)

# How a column may be written in Parquet: its type, and its values with what they are in other files.
Kind = tuple[pa.DataType, dict[Any, Any]]
NUMBER_KINDS: list[Kind] = [
    (pa.float32(), {0.5: 0.5, -1.25: -1.25, 3.0: 3.0, NAN: None}),
    (pa.float64(), {0.1: 0.1, 2.0: 2.0, -7.5: -7.5, NAN: None}),
    (pa.int16(), {0: 0.0, 2: 2.0, -3: -3.0}),
    (pa.uint8(), {0: 0.0, 200: 200.0}),
    (pa.bool_(), {True: 1.0, False: 0.0}),
    (pa.string(), {"1.5": 1.5, " -2e1 ": -20.0}),
    (pa.decimal128(8, 2), {Decimal("1.25"): 1.25, Decimal("-3.50"): -3.5}),
]
TEXT_KINDS: list[Kind] = [
    (pa.string(), {text: text for text in ("a", "b", "", "a\nb", 'é "日本", x', " ", "1", "never seen")}),
    (pa.int64(), {1: "1", -(2**62): str(-(2**62))}),
    (pa.float64(), {1.0: "1", 2.5: "2.5", NAN: None}),
    (pa.bool_(), {True: "true", False: "false"}),
    (pa.date32(), {DAY: "2026-01-31"}),
    (pa.timestamp("ms"), {NOON: "2026-01-31 12:30:00"}),
    (pa.time64("ns"), {NOON.time(): "12:30:00", NOON.time().replace(microsecond=50): "12:30:00.00005"}),
    (pa.decimal128(8, 2), {Decimal("1.5"): "1.50"}),
    (pa.binary(), {b"a": "a", "é".encode(): "é"}),
]
ID_KINDS: list[Kind] = [
    (pa.int64(), {0: 0, 2: 2, 3: 3, -1: -1}),
    (pa.uint8(), {0: 0, 2: 2, 1: 1}),
    (pa.float64(), {0.0: 0, 2.0: 2, NAN: None}),
    (pa.string(), {"0": 0, "+2": 2}),
    (pa.decimal128(5, 0), {Decimal(2): 2, Decimal(1): 1}),
    (pa.bool_(), {True: 1, False: 0}),
]


@dataclass(frozen=True)
class Field:
    """A column of a table: the feature columns that read it, its type in Parquet, and what its values are."""

    columns: list[Any]
    kind: pa.DataType
    values: dict[Any, Any]


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Field], list[Row]]:
    """Draw fields by name, the first of which is required, and rows of values as Parquet has them."""
    fields = {}
    drawn = st.sampled_from([(NUMBERS, NUMBER_KINDS), (TEXTS, TEXT_KINDS), (IDS, ID_KINDS)])
    for number, (columns, kinds) in enumerate(
        [(REQUIRED, NUMBER_KINDS), *draw(st.lists(drawn, min_size=1, max_size=5))]
    ):
        name = f"c{number}"
        kind, values = draw(st.sampled_from(kinds))
        fields[name] = Field(draw(st.sampled_from(columns))(name), kind, values)
    one = {name: st.sampled_from([*field.values, None]) for name, field in fields.items()}
    one["c0"] = st.sampled_from([value for value, plain in fields["c0"].values.items() if plain is not None])
    return fields, draw(st.lists(st.fixed_dictionaries(one), min_size=2, max_size=6))


@dataclass(frozen=True)
class Trained:
    """A model of a table, and a server of its export.

    Attributes:
        fields: Columns of the table by name.
        model: The model.
        asked: The server.
        folder: Folder for files.
    """

    fields: dict[str, Field]
    model: te.Estimator
    asked: Asked
    folder: Path

    def written(self, rows: list[Row]) -> tuple[list[Row], str]:
        """The rows as they are in a request, and the path of their files, which has no suffix yet."""
        plain = [
            {name: field.values.get(row[name], row[name]) for name, field in self.fields.items()}
            for row in rows
        ]  # fmt: skip
        pq.write_table(parquet_of(self.fields, rows), self.folder / "rows.parquet")
        write_lines(self.folder / "rows.jsonl", plain)
        write_lines(self.folder / "absent.jsonl", without_missing(plain))
        with open(self.folder / "rows.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(self.fields), lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
            writer.writeheader()
            writer.writerows(plain)
        return plain, f"{self.folder}/rows"

    def estimated(self, path: str) -> Answer:
        schema = fc.schema(columns_of(self.fields))
        read = te.data.Dataset.from_csv if path.endswith("csv") else te.data.Dataset.from_json
        read = te.data.Dataset.from_parquet if path.endswith("parquet") else read
        try:
            answers = list(self.model.predict(lambda: read(path, schema=schema).batch(4)))
        except UserError as error:
            return str(error)
        return [float(one["logits"][0]) for one in answers]


def columns_of(fields: dict[str, Field]) -> list[Any]:
    return [column for field in fields.values() for column in field.columns]


def parquet_of(fields: dict[str, Field], rows: list[Row]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], field.kind) for name, field in fields.items()})


@contextmanager
def trained(fields: dict[str, Field], rows: list[Row]) -> Iterator[Trained]:
    """Train a model on the rows, and serve it until the block ends."""
    columns = columns_of(fields)
    deep = [fc.embedding_column(one, 2) if isinstance(one, CategoricalColumn) else one for one in columns]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = parquet_of(fields, rows)
        pq.write_table(table.append_column("y", pa.array(np.arange(len(rows)) % 2)), folder / "train.parquet")
        data = te.data.Dataset.from_parquet(f"{name}/train.parquet", schema=fc.schema(columns), label="y")
        model = te.DNNClassifier([3], deep, f"{name}/run")
        model.train(lambda: data.repeat().batch(3), max_steps=2)
        export = model.export_saved_model(f"{name}/export", te.serving_input.json(columns))
        with asking(export) as asked:
            yield Trained(fields, model, asked, folder)


def answers(it: Trained, rows: list[Row]) -> dict[str, Answer]:
    """The answer of each way to ask for the rows."""
    plain, path = it.written(rows)
    asked = it.asked
    return {
        "Estimator.predict of CSV": it.estimated(f"{path}.csv"),
        "Estimator.predict of JSON lines": it.estimated(f"{path}.jsonl"),
        "Estimator.predict of Parquet": it.estimated(f"{path}.parquet"),
        "ExportedModel": asked.exported(plain),
        "REST by row": asked.by_row(plain),
        "REST by row, absent": asked.by_row(without_missing(plain)),
        "REST by column": asked.by_column(plain),
        "v2 JSON": asked.v2_json(plain),
        "v2 binary": asked.v2_binary(plain),
        "gRPC": asked.over_grpc(plain),
        "predict": asked.predict(f"{path}.jsonl"),
        "predict-batch of CSV": asked.predict_batch(f"{path}.csv"),
        "predict-batch of JSON lines": asked.predict_batch(f"{path}.jsonl"),
        "predict-batch of JSON lines, absent": asked.predict_batch(it.folder / "absent.jsonl"),
        "predict-batch of Parquet": asked.predict_batch(f"{path}.parquet"),
    }


# An example takes a second: a failure is shown as it was drawn.
@settings(tried(10), phases=[Phase.generate])
@given(tables())
def test_a_row_is_predicted_as_the_estimator_does_or_refused_with_its_input(
    drawn: tuple[dict[str, Field], list[Row]],
) -> None:
    fields, rows = drawn
    with trained(fields, rows) as it:
        found = answers(it, rows)
        expected = found["Estimator.predict of Parquet"]
        assert not isinstance(expected, str), expected
        for way, answer in found.items():
            assert not isinstance(answer, str), (way, answer)
            np.testing.assert_allclose(answer, expected, atol=1e-5, rtol=1e-6, err_msg=way)
        for missing in (None, NAN) if pa.types.is_floating(fields["c0"].kind) else (None,):
            for way, answer in answers(it, [{**rows[0], "c0": missing}]).items():
                if way.startswith("Estimator") and missing is NAN and not isinstance(answer, str):
                    assert math.isnan(answer[0])
                else:
                    assert isinstance(answer, str), (way, answer)
                    assert "c0" in answer, (way, answer)
