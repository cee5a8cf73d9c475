"""A cross takes integers as ids of an identity column, or as strings, and says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError

CROSS = fc.crossed_column(["job", "zip"], 100)
JOBS, ZIPS = np.array(["a", "b"]), np.array([3, 4])


def train(column: Any, data: Dataset, folder: Path) -> te.Estimator:
    estimator = te.LinearRegressor([column], str(folder / "job"))
    estimator.train(lambda: data.batch(2), steps=1)
    return estimator


def test_a_raw_key_of_integers_is_refused_with_what_to_do(tmp_path: Path) -> None:
    data = Dataset.from_arrays({"job": JOBS, "zip": ZIPS}, np.zeros(2, np.float32))
    sentence = (
        "column 'zip' holds numbers (int64), but the model wants strings; make it strings (astype(str), or schema="
    )
    with pytest.raises(DataError, match=re.escape(sentence)) as raised:
        train(CROSS, data, tmp_path)
    assert "a crossed_column categorical_column_with_identity(key, num_buckets)" in str(raised.value)


def test_what_the_sentence_says_trains(tmp_path: Path) -> None:
    labels = np.array([0, 1], np.float32)
    identity = fc.crossed_column(["job", fc.categorical_column_with_identity("zip", 10)], 100)
    train(identity, Dataset.from_arrays({"job": JOBS, "zip": ZIPS}, labels), tmp_path / "identity")
    strings = Dataset.from_arrays({"job": JOBS, "zip": ZIPS.astype(str)}, labels)
    expected = train(CROSS, strings, tmp_path / "strings")
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"job": JOBS.tolist(), "zip": ZIPS, "y": labels}), path)
    stored = Dataset.from_parquet(path, schema=fc.schema([CROSS]), label="y")
    found = train(CROSS, stored, tmp_path / "parquet")
    both = [[one["predictions"][0] for one in e.predict(lambda: strings.batch(2))] for e in (expected, found)]
    assert both[0] == both[1]
