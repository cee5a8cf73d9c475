"""A new kind of source: one file with a `Source` and a `Reader`, and `Dataset.from_source` as its only registration.

The source here reads a file of fixed-width binary records, which supports random access.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import torch_estimator as te
from tests.data.positions import check_every_position, numbers
from torch_estimator.data import Chunk, Dataset, Reader, ReadRequest, StateMismatch
from torch_estimator.errors import DataError, InvalidValueError

RECORD = np.dtype([("x", "<f4"), ("id", "<i8"), ("y", "<i4")])
RECORDS_PER_RANGE = 16


@dataclass(frozen=True)
class RecordSource:
    """A file of records.

    Attributes:
        path: The file.
    """

    path: Path

    def open(self, request: ReadRequest) -> RecordReader:
        """Return a reader; raise `DataError` if the file is missing or not a whole number of records."""
        if not self.path.exists():
            raise DataError(f"There is no file {self.path}.")
        if os.path.getsize(self.path) % RECORD.itemsize:
            raise DataError(f"{self.path} is cut off in the middle of a record.")
        return RecordReader(self.path, request)


class RecordReader(Reader):
    """Reads ranges of records through a memory map."""

    def __init__(self, path: Path, request: ReadRequest) -> None:
        self._path = path
        self._request = request
        self._records = np.memmap(path, RECORD, mode="r")
        self.ranges = -(-len(self._records) // RECORDS_PER_RANGE)
        self.rows_per_range = RECORDS_PER_RANGE
        self.bytes_per_row = RECORD.itemsize

    def read(self, ranges: np.ndarray) -> Chunk:
        """Return the records of some ranges as columns."""
        rows = (ranges[:, None] * RECORDS_PER_RANGE + np.arange(RECORDS_PER_RANGE)).ravel()
        rows = rows[rows < len(self._records)]
        records = self._records[rows]
        columns = {name: np.ascontiguousarray(records[name]) for name in RECORD.names or ()}
        chunk = Chunk(columns, None, len(rows), lambda row: f"{self._path}, record {rows[row]}")
        return self._request.labelled(chunk)

    def signature(self) -> dict[str, object]:
        """Return what a position depends on: the kind of source and the number of records."""
        return {"source": "records", "records": len(self._records)}


ROWS = 100


def write(folder: Path, rows: int = ROWS) -> Path:
    records = np.zeros(rows, RECORD)
    records["id"] = np.arange(rows)
    records["x"] = np.linspace(-1, 1, rows)
    records["y"] = records["x"] > 0
    path = folder / "data.records"
    records.tofile(path)
    return path


def test_its_rows_go_through_all_operations(tmp_path: Path) -> None:
    data = Dataset.from_source(RecordSource(write(tmp_path)), label="y")
    (features, labels), *_ = data.batch(3)
    assert (sorted(features), features["id"].tolist(), labels.tolist()) == (["id", "x"], [0, 1, 2], [0, 0, 0])
    shuffled = numbers(data.shuffle(10, seed=1).batch(7), "id")
    assert shuffled != sorted(shuffled) == list(range(ROWS))
    assert numbers(data.skip(10).take(20).cache().shard(2, 1).repeat(2).batch(4), "id") == [*range(11, 30, 2)] * 2


def test_every_position_in_it_is_restored(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert check_every_position(lambda: Dataset.from_source(RecordSource(path)).shuffle(10).repeat(2).batch(7)) == 29


def test_a_position_in_another_file_is_refused(tmp_path: Path) -> None:
    with Dataset.from_source(RecordSource(write(tmp_path))).batch(5).iterator() as iterator:
        state = iterator.state()
    with (
        Dataset.from_source(RecordSource(write(tmp_path, 50))).batch(5).iterator() as iterator,
        pytest.raises(StateMismatch, match="its records was 100, but is 50"),
    ):
        iterator.restore(state)


def test_a_model_trains_on_it_and_errors_name_its_records(tmp_path: Path) -> None:
    def input_fn() -> Dataset:
        return Dataset.from_source(RecordSource(write(tmp_path)), label="y").shuffle(ROWS).repeat().batch(10)

    columns = [te.feature_column.numeric_column("x")]
    classifier = te.LinearClassifier(columns, str(tmp_path / "model"), config=te.RunConfig(random_seed=1))
    classifier.train(input_fn, max_steps=50)
    evaluation = classifier.evaluate(lambda: Dataset.from_source(RecordSource(write(tmp_path)), label="y").batch(50))
    assert evaluation["accuracy"] > 0.9
    with pytest.raises(DataError, match=r"data\.records, record 50: column 'y': unknown label 1; expected one of 0"):
        list(Dataset.from_source(RecordSource(write(tmp_path))).label("y", {0: 0}).batch(100))


def test_a_source_without_an_identity_is_not_cached_in_a_file(tmp_path: Path) -> None:
    data = Dataset.from_source(RecordSource(write(tmp_path))).cache(tmp_path / "cache").batch(10)
    with pytest.raises(InvalidValueError, match=r"RecordReader cannot tell .* use cache\(\) without a filename"):
        list(data)
