"""Arrays in memory and pandas frames as columns."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.data.to_dataset import to_dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, UserError
from torch_estimator.train.batches import HostTransform


def only_batch(data: Dataset) -> Any:
    (batch,) = data.batch(100)
    return batch


def test_columns_of_any_library() -> None:
    got = only_batch(
        Dataset.from_arrays(
            {
                "numpy": np.array([1.5, 2.5], np.float16),
                "big endian": np.array([1.5, 2.5], ">f4"),
                "torch": torch.tensor([[1, 2], [3, 4]], requires_grad=False),
                "grad": torch.tensor([1.0, 2.0], requires_grad=True),
                "arrow": pa.chunked_array([["a"], [None]]),
                "list": ["x", "y"],
                "unicode": np.array(["x", "ü"]),
                "bytes": np.array([b"x", b"y"]),
                "objects": np.array(["x", None], object),
                "column": np.array([["x"], ["y"]]),
                "dates": np.array(["2020-01-01", "2020-01-02"], "datetime64[D]").astype(str),
            }
        )
    )
    assert {name: column.tolist() for name, column in got.items()} == {
        "numpy": [1.5, 2.5],
        "big endian": [1.5, 2.5],
        "torch": [[1, 2], [3, 4]],
        "grad": [1.0, 2.0],
        "arrow": ["a", ""],
        "list": ["x", "y"],
        "unicode": ["x", "ü"],
        "bytes": ["x", "y"],
        "objects": ["x", ""],
        "column": ["x", "y"],
        "dates": ["2020-01-01", "2020-01-02"],
    }
    assert got["numpy"].dtype == np.float16
    assert got["big endian"].dtype.isnative


def test_structures_are_kept() -> None:
    features, labels = only_batch(Dataset.from_arrays((np.zeros((3, 2)), np.ones(3)), {"a": [1, 2, 3]}))
    assert [part.shape for part in features] == [(3, 2), (3,)]
    assert labels["a"].tolist() == [1, 2, 3]
    assert only_batch(Dataset.from_arrays(torch.arange(3))).tolist() == [0, 1, 2]


@pytest.mark.parametrize("make", [pa.table, pa.record_batch, lambda columns: pd.DataFrame(columns)])
def test_a_table_or_frame_is_a_dict_of_its_columns(make: Any) -> None:
    got = only_batch(Dataset.from_arrays(make({"x": np.array([1, 2]), "s": np.array(["a", None], object)})))
    assert {name: column.tolist() for name, column in got.items()} == {"x": [1, 2], "s": ["a", ""]}


def test_batches_in_order_share_memory_with_the_arrays() -> None:
    array = np.arange(10)
    with Dataset.from_arrays({"x": array}).batch(4).iterator() as iterator:
        assert all(np.shares_memory(batch.features["x"], array) for batch in iterator)


def test_a_label_column_with_a_mapping() -> None:
    data = Dataset.from_arrays({"x": [1, 2, 3], "y": ["no", "yes", "no"]}).label("y", {"no": 0.0, "yes": 1.0})
    features, labels = only_batch(data)
    assert list(features) == ["x"]
    assert labels.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dataset.from_arrays({}), "at least one column"),
        (lambda: Dataset.from_arrays({"x": []}), "at least one row"),
        (lambda: Dataset.from_arrays(pa.table([[1], [2]], names=["x", "x"])), "several columns called 'x'"),
        (lambda: Dataset.from_arrays({"x": [1, 2], "z": [1]}), "same number of rows, but features have {'x': 2"),
        (lambda: Dataset.from_arrays([1, 2], [1]), "features have 2 and labels 1"),
        (lambda: Dataset.from_arrays({"x": 3}), "column 'x' must have one row per example, but it is the scalar 3"),
        (lambda: Dataset.from_arrays({"x": [[1], [1, 2]]}), "column 'x' cannot be made an array"),
        (lambda: Dataset.from_arrays(torch.zeros(2, dtype=torch.bfloat16)), "bfloat16"),
        (lambda: Dataset.from_arrays({"x": [1]}).label("x").label("x"), "has one already"),
        (lambda: Dataset.from_arrays(pa.array([1, None])), "row 1 .from 0.: the value is missing"),
        (lambda: Dataset.from_arrays([1, 2], pa.array([1, None])), "row 1 .*column .labels.: the value is missing"),
        (lambda: only_batch(Dataset.from_arrays({"x": [1]}).label("y")), "column 'y' is not in the features"),
        (lambda: only_batch(Dataset.from_arrays({"x": [1]}, [1]).label("x")), "has labels already"),
        (lambda: only_batch(Dataset.from_arrays([1]).label("x")), "no names"),
        (lambda: only_batch(Dataset.from_arrays({"y": ["a"]}).label("y", {"b": 1})), "row 0 .*unknown label 'a'"),
    ],
)  # fmt: skip
def test_invalid_arrays_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_frames_of_every_dtype() -> None:
    frame = pd.DataFrame(
        {
            "i": [1, 2],
            "f": [0.5, float("nan")],
            "b": [True, False],
            "s": ["x", None],
            "o": np.array(["x", None], object),
            "c": pd.Categorical(["b", "a"]),
            "n": pd.array([1, 2], "Int64"),
            "t": pd.to_datetime(["2020-01-01", "2020-01-02"]),
        },
        index=[7, 3],
    )
    got = only_batch(Dataset.from_pandas(frame))
    assert got["i"].tolist() == [1, 2]
    assert np.isnan(got["f"]).tolist() == [False, True]
    assert got["b"].tolist() == [True, False]
    assert [got[name].tolist() for name in "soc"] == [["x", ""], ["x", ""], ["b", "a"]]
    assert got["n"].tolist() == [1, 2]
    assert got["t"][0].startswith("2020-01-01")


def test_the_label_of_a_frame_is_a_column_or_a_series() -> None:
    frame = pd.DataFrame({"x": [1, 2], "y": [3, 4]})
    features, labels = only_batch(Dataset.from_pandas(frame, label="y"))
    assert (list(features), labels.tolist()) == (["x"], [3, 4])
    features, labels = only_batch(Dataset.from_pandas(frame[["x"]], label=frame["y"]))
    assert (list(features), labels.tolist()) == (["x"], [3, 4])


def test_invalid_frames_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match=r"takes a pandas\.DataFrame, but got dict"):
        Dataset.from_pandas({"x": [1]})
    with pytest.raises(InvalidValueError, match="several columns called 'x'"):
        Dataset.from_pandas(pd.DataFrame([[1, 2]], columns=["x", "x"]))
    with pytest.raises(DataError, match="column 'x' of the frame cannot be used"):
        Dataset.from_pandas(pd.DataFrame({"x": [1j, 2j]}))
    with pytest.raises(DataError, match=r"row 1 \(from 0\): column 'x': 'a' is a string, but the values before"):
        Dataset.from_pandas(pd.DataFrame({"x": [1, "a"]}))


INCOMPLETE = [
    Dataset.from_pandas(pd.DataFrame({"x": pd.array([1, None, 3], "Int64"), "y": [1, 2, 3]})),
    Dataset.from_pandas(pd.DataFrame({"x": pd.Series([1, None, 3], dtype=object), "y": [1, 2, 3]})),
    Dataset.from_arrays({"x": pa.array([1, None, 3]), "y": [1, 2, 3]}),
    Dataset.from_arrays({"x": pd.Series([1, None, 3], dtype="int64[pyarrow]"), "y": [1, 2, 3]}),
    Dataset.from_arrays({"x": [1, None, 3], "y": [1, 2, 3]}),
    Dataset.from_arrow(pa.table({"x": pa.array([1, None, 3]).dictionary_encode(), "y": [1, 2, 3]})),
]


class Reads:
    """A transform of a model that reads one column as integers, where missing ones are allowed."""

    def __init__(self, name: str, **missing: int) -> None:
        self.required = {name: pa.int64()}
        self.missing = missing

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        return features, labels


@pytest.mark.parametrize("data", INCOMPLETE)
def test_missing_integers_in_memory_are_handled_as_in_files(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,1\n,2\n3,3\n")
    for source in (data, Dataset.from_csv(tmp_path / "a.csv")):
        with source.label("y").batch(3).iterator(Reads("x", x=-1)) as iterator:
            batch = next(iterator)
        assert (batch.features["x"].tolist(), batch.features["x"].dtype) == ([1, -1, 3], np.int64)


@pytest.mark.parametrize("data", INCOMPLETE)
def test_a_missing_integer_without_a_meaning_is_named_where_it_is_read(data: Dataset) -> None:
    with data.batch(3).iterator(Reads("y")) as iterator:
        assert list(next(iterator).features) == ["y"]
    problem = r"row 1 \(from 0\): column 'x': the value is missing and has no default; fill it, as with fillna"
    with pytest.raises(DataError, match=problem):
        list(data.batch(3))
    with pytest.raises(DataError, match=problem):
        data.batch(3).iterator(Reads("x"))
    with pytest.raises(DataError, match=problem):
        list(data.label("x").batch(3))


MIXED = [
    (["a", None, 3], "row 2 .*column 'x': 3 is a number, but the values before are strings; make all of one kind"),
    ([1, "a"], "row 1 .*column 'x': 'a' is a string, but the values before are numbers"),
    ([1, 2**70], "row 1 .*column 'x': 1180591620717411303424 does not fit into int64; give strings, floats or a numpy"),
    ([None, 2**63, 1], "row 1 .*column 'x': 9223372036854775808 does not fit into int64"),
    ([-1, 2**63], "row 1 .*column 'x': 9223372036854775808 does not fit into int64"),
    ([None, 1.5, 2**70], "row 2 .*column 'x': 1180591620717411303424 does not fit into 64 bits"),
    (["a", "\udc80"], r"row 1 .*column 'x': '\\udc80' is not UTF-8 text"),
    ([b"a", b"\xff"], r"row 1 .*column 'x': b'\\xff' is not UTF-8 text"),
]


@pytest.mark.parametrize(("values", "message"), MIXED)
def test_a_value_of_another_kind_than_its_column_is_named(values: list[Any], message: str) -> None:
    column = np.array(values, object)
    with pytest.raises(DataError, match=message):
        Dataset.from_arrays({"x": column})
    with pytest.raises(DataError, match=message):
        list(Dataset.from_iterable([{"x": column}]))
    with pytest.raises(DataError, match=message):
        list(Dataset.from_arrays(np.arange(len(values))).batch(9).map(lambda features: {"x": column}))
    with pytest.raises(DataError, match=message):
        to_dataset({"x": column}, repeat_single_batch=False)
    with pytest.raises(DataError, match=message.replace("'x'", "'labels'")):
        Dataset.from_arrays({"x": np.arange(len(values))}, column)


@pytest.mark.parametrize("values", [[1, 2**63], [[-1], [2**63]], [[1, 2], [2**63, -3]]])
def test_integers_of_no_common_type_do_not_become_floats(values: list[Any]) -> None:
    with pytest.raises(DataError, match=r"row 1 \(from 0\): column 'x': -?92\d* does not fit into int64; give"):
        Dataset.from_arrays({"x": values})
    with pytest.raises(DataError, match=r"row 1 .*column 'x': .* does not fit into int64"):
        list(Dataset.from_iterable([{"x": values}]))


def test_large_numbers_that_are_floats_stay_floats() -> None:
    values = [2**63, 0.5]
    (batch,) = Dataset.from_arrays({"x": values, "y": [float(2**63), np.inf], "z": np.array([1, 2**63])}).batch(2)
    assert batch["x"].tolist() == [2.0**63, 0.5]
    assert batch["y"].tolist() == [2.0**63, np.inf]


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_a_value_that_is_masked_is_named(shape: tuple[int, ...]) -> None:
    column = np.ma.zeros(shape)
    (batch,) = Dataset.from_arrays({"x": column}).batch(9)
    assert batch["x"].shape == shape
    column[2] = np.ma.masked
    with pytest.raises(DataError, match=r"row 2 \(from 0\): column 'labels': the value is masked; replace"):
        Dataset.from_arrays(np.arange(4), column)
    with pytest.raises(DataError, match=r"row 2 .*column 'x': the value is masked"):
        list(Dataset.from_iterable([{"x": column}]))
    (batch,) = Dataset.from_arrays({"x": column}).batch(9)
    assert np.isnan(batch["x"]).tolist() == column.mask.tolist()


def test_masked_and_nullable_values_are_missing() -> None:
    mask = [False, True, False]
    masked = {
        "f": np.ma.array([1.5, 2.5, 3.5], np.float32, mask=mask),
        "w": np.ma.array(["a", "b", "c"], object, mask=mask),
        "u": np.ma.array(["a", "b", "c"], mask=mask),
    }
    frame = pd.DataFrame({"f": pd.array([1.5, None, 3.5], "Float32"), "w": pd.array(["a", None, "c"], "string")})
    frame["u"] = frame["w"]
    table = pa.table({"f": pa.array([1.5, None, 3.5], pa.float32()), "w": ["a", None, "c"], "u": ["a", None, "c"]})
    for data in (Dataset.from_arrays(masked), Dataset.from_pandas(frame), Dataset.from_arrow(table)):
        got = only_batch(data)
        assert got["f"].dtype == np.float32
        np.testing.assert_array_equal(got["f"], [1.5, np.nan, 3.5])
        assert got["w"].tolist() == got["u"].tolist() == ["a", "", "c"]


def test_missing_integers_have_no_id() -> None:
    column = fc.categorical_column_with_identity("n", 5)
    transform = te.feature_column.FeatureTransform(linear_columns=[column])
    values = np.ma.array([1, 2, 3], mask=[False, True, False])
    frame = pd.DataFrame({"n": pd.array([1, None, 3], "Int64")})
    ids = []
    for data in (Dataset.from_arrays({"n": values}), Dataset.from_pandas(frame)):
        source = data.batch(3)
        estimator_transform = HostTransform(transform, None, with_labels=False)
        with source.iterator(estimator_transform) as batches:
            ids.append(next(batches).features["linear/ids"].tolist())
    assert ids[0] == ids[1] == [[1], [5], [3]]


def test_lists_of_unequal_lengths_are_named() -> None:
    wrong = "column 'x' cannot be made an array: row 0 holds a list of 1, but row 1 holds a list of 2"
    with pytest.raises(InvalidTypeError, match=wrong):
        Dataset.from_arrays({"x": [[1], [1, 2]]})
    with pytest.raises(InvalidTypeError, match=wrong):
        to_dataset({"x": [[1], [1, 2]]}, repeat_single_batch=True)


def test_booleans_among_integers_and_large_numbers_are_numbers() -> None:
    got = only_batch(Dataset.from_arrays({"a": np.array([True, 3], object), "b": np.array([0.5, 2**60 + 1], object)}))
    assert got["a"].tolist() == [1, 3]
    assert got["b"].tolist() == [0.5, float(2**60)]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            np.array(["2020-01-01"] * 2, "datetime64[D]"),
            r"column 'x' holds values of type datetime64\[D\], but",
        ),
        (np.array([1j, 2j]), "column 'x' holds values of type complex128"),
        (np.array([["a", 1]] * 2, object), r"column 'x' holds values of type object of shape \[2\] per row"),
        (np.array([[1], [1, 2]], object), "row 1 .*column 'x': the list has length 2, but those before have 1"),
        (np.array([{"a": 1}] * 2, object), "column 'x' has the Arrow type struct<a: int64>"),
        (np.array([object()] * 2, object), "column 'x' holds values of type object"),
        (np.array(["a", "b"]), r"column 'x' holds strings \(here 'a'\), but the model wants numbers"),
    ],
)
def test_values_that_a_model_cannot_read_as_numbers_are_named(column: Any, message: str) -> None:
    class Wants:
        required = {"x": pa.float32()}  # noqa: RUF012 - a constant

        def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
            return features, labels

    with (
        Dataset.from_arrays({"x": column}).batch(2).iterator(Wants()) as iterator,
        pytest.raises(DataError, match=message),
    ):
        next(iterator)


def test_a_model_that_changes_its_batches_does_not_change_the_rows(tmp_path: Path) -> None:
    class Halves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(2, 1)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.out(rows.mul_(0.5))

    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    data = Dataset.from_arrays(rows, np.ones((10, 1), np.float32)).repeat(3).batch(4)
    te.Estimator.from_module(Halves(), head=te.RegressionHead(), optimizer="Adam", model_dir=str(tmp_path)).train(
        lambda: data
    )
    assert rows.tolist() == np.arange(20).reshape(10, 2).tolist()


def test_labels_with_another_index_than_the_frame_are_an_error() -> None:
    frame = pd.DataFrame({"x": [1, 2, 3], "y": [1, 2, 3]})
    other = frame.sort_values("x", ascending=False)
    for label in (other["y"], other[["y"]], {"a": frame["y"], "b": other["y"]}, frame["y"].set_axis(["a", "b", "c"])):
        with pytest.raises(InvalidValueError, match=r"frame and label have different indices, \[0, 1, 2\] and "):
            Dataset.from_pandas(frame[["x"]], label=label)
    _, labels = only_batch(Dataset.from_pandas(frame[["x"]], label=other["y"].to_numpy()))
    assert labels.tolist() == [3, 2, 1]
    _, labels = only_batch(Dataset.from_pandas(other[["x"]], label=other["y"]))
    assert labels.tolist() == [3, 2, 1]


@pytest.mark.parametrize("names", [[0, 1], [("a", "x"), ("a", "y")], [0, ("a", 1)]])
def test_a_label_may_be_named_as_the_frame_names_it(names: list[object]) -> None:
    frame = pd.DataFrame([[1, 2], [3, 4]])
    frame.columns = pd.Index(names)
    features, labels = only_batch(Dataset.from_pandas(frame, label=names[1]))
    assert list(features) == [str(names[0])]
    assert labels.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array([Decimal("1.5"), None]), [1.5, 0.5]),
        (pa.array([2**53 + 1, None]), [2.0**53, 0.5]),
        (pa.array([1, None]).dictionary_encode(), [1.0, 0.5]),
    ],
)
def test_missing_values_of_any_number_are_replaced(values: pa.Array, wanted: list[float], tmp_path: Path) -> None:
    table = pa.table({"x": values})
    pq.write_table(table, tmp_path / "a.parquet")
    columns = te.feature_column.FeatureTransform(linear_columns=[fc.numeric_column("x", default_value=0.5)])
    for data in (
        Dataset.from_arrow(table),
        Dataset.from_arrays({"x": values}),
        Dataset.from_pandas(table.to_pandas()),
        Dataset.from_parquet(tmp_path / "a.parquet"),
    ):
        with data.batch(2).iterator(HostTransform(columns, None, with_labels=False)) as batches:
            (found,) = next(batches).features.values()
            assert found.flatten().tolist() == wanted
