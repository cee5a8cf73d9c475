"""Every source reads the columns that a transform requires, in its types, and all others if it asks for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_estimator.data import Dataset
from torch_estimator.data.columns import to_numpy
from torch_estimator.errors import DataError

COLUMNS = {"i": [1, 2, 3], "f": [1.5, 2.5, 3.5], "s": ["a", "b", "a"], "y": [0, 1, 0]}

Source = Callable[[Path], Dataset]


def csv(folder: Path) -> Dataset:
    lines = [",".join(map(str, row)) for row in zip(*COLUMNS.values(), strict=True)]
    (folder / "rows.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return Dataset.from_csv(folder / "rows.csv", label="y").batch(2)


def parquet(folder: Path) -> Dataset:
    pq.write_table(pa.table(COLUMNS), folder / "rows.parquet")
    return Dataset.from_parquet(folder / "rows.parquet", label="y").batch(2)


def arrays(folder: Path) -> Dataset:
    return Dataset.from_arrays(COLUMNS).label("y").batch(2)


def mapped(folder: Path) -> Dataset:
    return arrays(folder).map(lambda features, labels: (features, labels))


def iterable(folder: Path) -> Dataset:
    return Dataset.from_iterable([{name: column[:2] for name, column in COLUMNS.items()}]).label("y")


SOURCES = [csv, parquet, arrays, mapped, iterable]


class Wants:
    def __init__(self, required: dict[str, pa.DataType | None], *, others: bool = False) -> None:
        self.required = required
        self.others = others

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        return features, labels


def first(data: Dataset, transform: Wants) -> dict[str, Any]:
    with data.iterator(transform) as batches:
        features = next(batches).features
    return {name: to_numpy(column) for name, column in features.items()}


@pytest.mark.parametrize("source", SOURCES)
def test_a_column_without_a_type_is_as_it_is(tmp_path: Path, source: Source) -> None:
    got = first(source(tmp_path), Wants({"f": pa.float32(), "i": None, "s": None}))
    assert sorted(got) == ["f", "i", "s"]
    assert got["i"].dtype == np.int64
    assert (got["i"].tolist(), got["s"].tolist()) == ([1, 2], ["a", "b"])


@pytest.mark.parametrize("source", SOURCES)
def test_a_transform_may_also_get_all_other_columns(tmp_path: Path, source: Source) -> None:
    got = first(source(tmp_path), Wants({"f": pa.float32()}, others=True))
    assert sorted(got) == ["f", "i", "s"]
    assert (got["f"].tolist(), got["i"].tolist(), got["s"].tolist()) == ([1.5, 2.5], [1, 2], ["a", "b"])


@pytest.mark.parametrize("source", SOURCES)
def test_a_missing_required_column_is_named_also_with_others(tmp_path: Path, source: Source) -> None:
    with pytest.raises(DataError, match=r"column 'z' is not in .*the columns there are"):
        first(source(tmp_path), Wants({"z": None}, others=True))


def test_the_models_type_is_used_also_with_others(tmp_path: Path) -> None:
    got = first(csv(tmp_path), Wants({"i": pa.string()}, others=True))
    assert got["i"].tolist() == ["1", "2"]
