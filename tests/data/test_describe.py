"""Dataset.describe, compared with pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from torch_estimator.data import Dataset
from torch_estimator.errors import InvalidValueError

DRAW = np.random.default_rng(1)
FRAME = pd.DataFrame(
    {
        "x": np.where(DRAW.random(20_000) < 0.1, np.nan, DRAW.normal(size=20_000)),
        "n": DRAW.integers(-5, 5, 20_000),
        "job": DRAW.choice(["clerk", "cook", "farmer", None], 20_000, p=[0.4, 0.3, 0.2, 0.1]),
        "rich": DRAW.random(20_000) < 0.3,
    }
)


def test_it_says_what_pandas_says() -> None:
    for data in (Dataset.from_pandas(FRAME, "rich"), Dataset.from_pandas(FRAME, "rich").shuffle(10, seed=1).batch(999)):
        found = data.describe()
        assert found.index.tolist() == ["x", "n", "job", "rich"] or found.index.tolist() == ["x", "n", "job", "labels"]
        found.index = FRAME.columns
        assert found["type"].tolist() == ["float64", "int64", "string", "bool"]
        assert found["count"].to_dict() == FRAME.count().to_dict()
        assert found["missing"].to_dict() == FRAME.isna().sum().to_dict()
        assert found.loc[["n", "job", "rich"], "unique"].to_dict() == FRAME[["n", "job", "rich"]].nunique().to_dict()
        assert found.loc["x", "unique"] is pd.NA
        numbers = FRAME[["x", "n"]].describe()
        for statistic in ("min", "max", "mean"):
            np.testing.assert_allclose(found.loc[["x", "n"], statistic], numbers.loc[statistic])
        counts = FRAME["job"].value_counts()
        assert found.loc["job", "top"] == ", ".join(f"{name} ({count})" for name, count in counts.items())
        assert found.loc["n", "top"] == ""


def test_lists_are_described_by_their_lengths_and_matrices_by_their_values() -> None:
    lists = pa.array([["a"], [], ["b", "c", "d"]])
    found = Dataset.from_arrays({"tags": lists, "point": np.arange(6.0).reshape(3, 2)}).describe()
    assert found.loc["tags (length)", ["count", "min", "max"]].tolist() == [3, 0, 3]
    assert found.loc["point", ["type", "count", "mean"]].tolist() == ["float64 [2]", 6, 2.5]


def test_rows_without_end_are_refused() -> None:
    data = Dataset.from_arrays(np.arange(3)).repeat()
    with pytest.raises(InvalidValueError, match="before repeat"):
        data.describe()
    assert data.take(4).describe().loc["features", "count"] == 4
    assert Dataset.from_arrays(np.arange(3)).repeat(2).describe().loc["features", "count"] == 6
