"""Labels of several columns, and lists as labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.positions import check_every_position
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError
from torch_estimator.heads import MultiHead, MultiLabelHead, RegressionHead

ROWS = 11
NAMES = {"buys": "bought", "pays": "paid"}
COLUMNS = {
    "x": np.arange(ROWS),
    "bought": np.array(["no", "yes", "no"] * 4, dtype=object)[:ROWS],
    "paid": np.arange(ROWS) / 2,
}


def csv(folder: Path, label: Any) -> Dataset:
    pd.DataFrame(COLUMNS).to_csv(folder / "a.csv", index=False)
    return Dataset.from_csv(folder / "a.csv", label=label)


def parquet(folder: Path, label: Any) -> Dataset:
    pq.write_table(pa.table(COLUMNS), folder / "a.parquet", row_group_size=4)
    return Dataset.from_parquet(folder / "a.parquet", label=label)


def arrays(folder: Path, label: Any) -> Dataset:
    return Dataset.from_arrays(COLUMNS).label(label)


def pandas(folder: Path, label: Any) -> Dataset:
    return Dataset.from_pandas(pd.DataFrame(COLUMNS), label=label)


def batches(folder: Path, label: Any) -> Dataset:
    def make() -> Any:
        for start in range(0, ROWS, 4):
            yield {name: column[start : start + 4] for name, column in COLUMNS.items()}

    return Dataset.from_iterable(make).label(label)


Make = Callable[[Path, Any], Dataset]
SOURCES: dict[str, Make] = {"csv": csv, "parquet": parquet, "arrays": arrays, "pandas": pandas, "batches": batches}
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


@every_source
@pytest.mark.parametrize("label", [["bought", "paid"], NAMES], ids=["names", "renamed"])
def test_several_columns_are_a_dict_of_labels(source: Make, label: Any, tmp_path: Path) -> None:
    (features, labels), *_ = source(tmp_path, label).batch(4)
    assert list(features) == ["x"]
    assert list(labels) == list(label)
    bought, paid = labels.values()
    assert bought.tolist() == ["no", "yes", "no", "no"]
    assert paid.tolist() == [0.0, 0.5, 1.0, 1.5]


@every_source
def test_every_position_with_labels_is_restored(source: Make, tmp_path: Path) -> None:
    def make() -> Dataset:
        data = source(tmp_path, NAMES)
        if source is not batches:
            data = data.shuffle(100, seed=3).repeat(2).batch(4)
        return data.map(lambda features, labels: (features, {**labels, "pays": labels["pays"] + 1}))

    assert check_every_position(make) == (3 if source is batches else 6)


def test_a_column_may_be_two_labels() -> None:
    data = Dataset.from_arrays(COLUMNS).label({"a": "paid", "b": "paid", "c": "bought"}).batch(2)
    _, labels = next(iter(data))
    assert labels["a"].tolist() == labels["b"].tolist() == [0.0, 0.5]


def test_labels_are_mapped_by_name() -> None:
    mapped = Dataset.from_arrays(COLUMNS).label(NAMES, {"buys": {"no": 0, "yes": 1}}).batch(3)
    _, labels = next(iter(mapped))
    assert labels["buys"].tolist() == [0, 1, 0]
    assert labels["pays"].tolist() == [0.0, 0.5, 1.0]


def test_labels_given_as_arrays_may_be_a_dict() -> None:
    given = {"a": [1, 2, 3], "b": np.ones((3, 2))}
    for data in (
        Dataset.from_arrays(np.zeros((3, 1)), given),
        Dataset.from_pandas(pd.DataFrame({"x": [1, 2, 3]}), label={"a": pd.Series([1, 2, 3]), "b": np.ones((3, 2))}),
        Dataset.from_iterable(lambda: [({"x": [1, 2, 3]}, given)]),
    ):
        _, labels = next(iter(data.batch(3)))
        assert labels["a"].tolist() == [1, 2, 3]
        assert labels["b"].shape == (3, 2)
    _, labels = next(iter(Dataset.from_pandas(pd.DataFrame({"x": [1]}), label=pd.DataFrame({"y": [2]})).batch(1)))
    assert labels["y"].tolist() == [2]


def test_a_bad_label_is_named_with_file_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,bought,paid\n1,no,2\n2,no,\n3,maybe,-1\n")
    head = MultiHead([RegressionHead(name="pays"), MultiLabelHead(2, label_vocabulary=["no", "yes"], name="buys")])

    class Prepared:
        required = None

        def __call__(self, features: Any, labels: Any) -> Any:
            return features, head.prepare_labels(labels)

    data = Dataset.from_csv(tmp_path / "a.csv", label=NAMES, defaults={"paid": 0.0}).batch(3)
    with pytest.raises(DataError, match=r"a\.csv, line 4: column 'bought': unknown label 'maybe'; expected one of"):
        next(data.iterator(Prepared()))
    given = Dataset.from_arrays({"x": [1]}, {"pays": [float("nan")], "buys": ["no"]}).batch(1)
    with pytest.raises(DataError, match=r"row 0 \(from 0\): label 'pays': label nan is not a finite number"):
        next(given.iterator(Prepared()))
    mapped = Dataset.from_csv(tmp_path / "a.csv", defaults={"paid": 0.0}).label(NAMES, {"buys": {"no": 0}}).batch(3)
    with pytest.raises(DataError, match=r"a\.csv, line 4: column 'bought': unknown label 'maybe'; expected one"):
        next(mapped.iterator())


@every_source
def test_a_column_that_is_not_there_is_named(source: Make, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'price' is not .*; the columns there are "):
        list(source(tmp_path, {"buys": "bought", "pays": "price"}).batch(2))


@pytest.mark.parametrize(
    ("label", "mapping", "error", "message"),
    [
        ([], None, InvalidValueError, "label must name a column"),
        (["paid", "paid"], None, InvalidValueError, "label names a column twice"),
        (["paid", 3], None, InvalidTypeError, "label must be the name of a column, but got 3"),
        (3, None, InvalidTypeError, "label must be the name of a column, or several in a list, but got 3"),
        (
            "label",
            ("no", "yes"),
            InvalidTypeError,
            r"must be a dict .*such as {'no': 0, 'yes': 1}, but got \('no', 'ye",
        ),
        (
            ["paid", "bought"],
            {"no": 0, "yes": 1},
            InvalidValueError,
            "mapping of several labels must be a dict of dicts",
        ),
        (["paid", "bought"], {"buys": {"no": 0}}, InvalidValueError, "must be a dict of dicts by label .paid, bought."),
    ],
)
def test_labels_that_make_no_sense_are_refused(label: Any, mapping: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Dataset.from_arrays(COLUMNS).label(label, mapping)


def test_a_second_label_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="columns 'paid', 'x' cannot be the label: the Dataset has one already"):
        Dataset.from_arrays(COLUMNS).label("bought").label(["paid", "x"])


def test_lists_as_labels_stay_lists_of_any_length(tmp_path: Path) -> None:
    tags = pa.array([[0, 1], [1, 2], [2], []])
    pq.write_table(pa.table({"x": np.arange(4), "tags": tags}), tmp_path / "a.parquet", row_group_size=2)
    head = MultiLabelHead(3)

    class Prepared:
        required = None

        def __call__(self, features: Any, labels: Any) -> Any:
            return features, head.prepare_labels(labels)

    expected = [[1, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]]
    objects = np.empty(4, dtype=object)
    objects[:] = tags.to_pylist()
    x = {"x": np.arange(4)}
    for data in (
        Dataset.from_parquet(tmp_path / "a.parquet", label="tags"),
        Dataset.from_pandas(pd.DataFrame({**x, "tags": tags.to_pylist()}), label="tags"),
        Dataset.from_arrays(x, tags),
        Dataset.from_arrays(x, objects),
        Dataset.from_arrays(x, tags.to_pylist()),
        Dataset.from_iterable(lambda: [(x, tags.to_pylist())]),
    ):
        found = [row for batch in data.batch(2).iterator(Prepared()) for row in batch.labels.tolist()]
        assert found == expected


def test_lists_have_no_mapping(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2], "tags": [[1], [2]]}), tmp_path / "a.parquet")
    data = Dataset.from_parquet(tmp_path / "a.parquet").label("tags", {1: 0}).batch(2)
    with pytest.raises(InvalidValueError, match="'tags' holds lists, to which a mapping cannot be applied"):
        list(data.iterator())
