"""Columns with lists, read from every kind of input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, UserError
from torch_estimator.train.batches import HostTransform

TAGS = fc.categorical_column_with_vocabulary_list("tags", ["a", "b", "c"], multivalent=True)
IDS = fc.categorical_column_with_identity("ids", 6, multivalent=True)
WEIGHTED = fc.weighted_categorical_column(IDS, "weights")
COLUMNS = [TAGS, WEIGHTED]
ROWS: dict[str, list[Any]] = {
    "tags": [["a", "c"], [], ["b", "z", "a"], ["c"], [""]],
    "ids": [[5, 0], [3], [], [1, -1, 2], [9]],
    "weights": [[1.0, 2.0], [0.5], [], [1.0, 1.0, -1.0], [3.0]],
}
EXPECTED = {
    "linear/ids/tags": [[6, 8], [], [7, 6], [8], []],
    "linear/ids/ids_weighted_by_weights": [[5, 0], [3], [], [1, 2], []],
    "linear/ids/ids_weighted_by_weights/weights": [[1, 2], [0.5], [], [1, -1], []],
}


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def padded(values: list[list[Any]], padding: Any) -> np.ndarray:
    width = max(map(len, values))
    rows = [[*row, *[padding] * (width - len(row))] for row in values]
    return np.array(rows, object if isinstance(padding, str) else None)


FORMS: dict[str, dict[str, Any]] = {
    "Arrow": {key: pa.array(rows) for key, rows in ROWS.items()},
    "large lists": {key: pa.array(rows, pa.large_list(pa.array(rows).type.value_type)) for key, rows in ROWS.items()},
    "objects": {key: objects(rows) for key, rows in ROWS.items()},
    "arrays in objects": {
        key: objects([np.array(row, dtype) for row in ROWS[key]])
        for key, dtype in (("tags", object), ("ids", np.int32), ("weights", np.float64))
    },
    "padded": {
        "tags": padded(ROWS["tags"], ""),
        "ids": padded(ROWS["ids"], -1),
        "weights": padded(ROWS["weights"], 0.0),
    },
    "padded with None": {
        "tags": np.array([[one or None for one in row] for row in padded(ROWS["tags"], "").tolist()], object),
        "ids": padded(ROWS["ids"], -1),
        "weights": padded(ROWS["weights"], 0.0),
    },
}


def ids_of(data: Dataset) -> dict[str, list[Any]]:
    host = HostTransform(fc.FeatureTransform(COLUMNS), None, with_labels=False)
    found: dict[str, list[Any]] = {}
    with data.iterator(host) as batches:
        for batch in batches:
            for key, value in batch.features.items():
                found.setdefault(key, []).extend(value.to_pylist())
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [2, 5])
def test_ids_are_the_same_for_lists_in_any_container(form: str, batch: int) -> None:
    assert ids_of(Dataset.from_arrays(FORMS[form]).batch(batch)) == EXPECTED


def test_pandas_and_iterables_of_batches() -> None:
    frame = pd.DataFrame({key: pd.Series(rows) for key, rows in ROWS.items()})
    assert ids_of(Dataset.from_pandas(frame).batch(3)) == EXPECTED
    parts = [{key: pa.array(rows[cut]) for key, rows in ROWS.items()} for cut in (slice(0, 2), slice(2, 5))]
    assert ids_of(Dataset.from_iterable(parts)) == EXPECTED


def test_map_functions_get_padded_arrays_and_padding_has_no_id() -> None:
    seen = []

    def look(features: Any) -> Any:
        seen.append(features["ids"].tolist())
        return features

    assert ids_of(Dataset.from_arrays(FORMS["Arrow"]).batch(2).map(look)) == EXPECTED
    assert seen == [[[5, 0], [3, -1]], [[-1, -1, -1], [1, -1, 2]], [[9]]]


def test_lists_without_multivalent_raise_an_error_with_the_cure(tmp_path: Path) -> None:
    plain = fc.categorical_column_with_vocabulary_list("tags", ["a", "b", "c"])
    estimator = te.LinearRegressor([plain], str(tmp_path))
    for form in ("Arrow", "objects", "padded"):
        data = Dataset.from_arrays({"tags": FORMS[form]["tags"]}, np.zeros(5)).batch(5)
        with pytest.raises(UserError, match=r"'tags' .*multivalent=True"):
            estimator.train(lambda data=data: data, steps=1)  # type: ignore[misc]


def test_another_number_of_weights_names_the_row(tmp_path: Path) -> None:
    features = {"ids": pa.array([[1], [1, 2]]), "weights": pa.array([[1.0], [1.0]])}
    estimator = te.LinearRegressor([WEIGHTED], str(tmp_path))
    with pytest.raises(DataError, match=r"row 1 \(from 0\): column 'weights': 1 weights for the 2 values of 'ids'"):
        estimator.train(lambda: Dataset.from_arrays(features, np.zeros(2)).batch(2), steps=1)


def test_a_user_module_takes_columns_with_lists(tmp_path: Path) -> None:
    columns = [fc.embedding_column(TAGS, 2), fc.indicator_column(WEIGHTED)]
    estimator = te.Estimator.from_module(
        nn.Linear(8, 1),
        head=te.heads.RegressionHead(),
        columns=columns,
        optimizer="SGD",
        model_dir=str(tmp_path / "job"),
    )
    data = Dataset.from_arrays(FORMS["Arrow"], np.arange(5, dtype=np.float32)).batch(5)
    torch.manual_seed(0)
    estimator.train(lambda: data, steps=3)
    predicted = np.stack([one["predictions"] for one in estimator.predict(lambda: data)])
    path = estimator.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features(fc.schema(columns)))
    np.testing.assert_allclose(te.ExportedModel.load(path).predict(ROWS)["predictions"], predicted, atol=1e-5)
