"""Two new feature columns, each complete in one class: trained in canned estimators, exported, and served.

This is what `torch_estimator/feature_column/column.py` asks of a new column. In the package each class would be a file
of its own, named in one line of ``feature_column/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import check_key, is_count
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.column import Encoders, IdsOfValues, KeyColumn, NumberColumn
from torch_estimator.feature_column.ids import MISSING
from torch_estimator.feature_column.lowering import Lowering
from torch_estimator.feature_column.raw_feature import RawDtype


@dataclass(frozen=True)
class LogColumn(NumberColumn):
    """The logarithm of one plus a number that is not negative: ``log(1 + max(number, 0))``.

    Args:
        key: Name of the raw column.
        normalizer_fn: Applied to the logarithm, as in `numeric_column`.
    """

    key: str
    normalizer_fn: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __post_init__(self) -> None:
        check_key(self.key)

    @property
    def name(self) -> str:
        """``<key>_log``."""
        return f"{self.key}_log"

    @property
    def raw_features(self) -> tuple[fc.RawFeature, ...]:
        """The raw column of numbers."""
        return (fc.RawFeature(key=self.key, dtype="float32"),)

    def encode(self, chunk: Chunk) -> npt.NDArray[np.float32]:
        """Return the logarithms of a chunk, float32 ``[rows, 1]``."""
        return np.log1p(np.maximum(chunk.numbers(self.key, self.shape), 0))

    def lower(self, lowering: Lowering) -> str:
        """Write the logarithm into a graph."""
        graph = lowering.graph
        positive = graph.op("Relu", lowering.floats(self.key))
        return graph.op("Log", graph.op("Add", positive, graph.constant(1, np.float32)))


@dataclass(frozen=True)
class ModuloColumn(KeyColumn):
    """A categorical column of integers whose id is ``value % num_buckets``; -1 is a missing value.

    Args:
        key: Name of the raw column.
        num_buckets: Number of ids.
        multivalent: Whether rows hold lists of values.
    """

    num_buckets: int
    dtype: RawDtype = "int64"
    multivalent: bool = False

    def __post_init__(self) -> None:
        self.check_key_column()
        if not is_count(self.num_buckets, 1):
            raise InvalidValueError(f"num_buckets of column {self.key!r} must be positive, but got {self.num_buckets}.")

    def ids_of_values(self, encoders: Encoders) -> IdsOfValues:
        """Return a function from integers to their ids."""

        def ids_of(values: Sequence[int]) -> npt.NDArray[np.int64]:
            given = np.array(values, np.int64)
            return np.where(given == self.missing_value, MISSING, given % self.num_buckets)

        return ids_of

    def lower(self, lowering: Lowering) -> str:
        """Write the division into a graph."""
        graph, given = lowering.graph, lowering.raw[self.key].tensor
        missing = graph.op("Equal", given, graph.constant(self.missing_value, np.int64))
        ids = graph.op("Mod", given, graph.constant(self.num_buckets, np.int64))
        return graph.op("Where", missing, graph.constant(-1, np.int64), ids)


PRICE = LogColumn("price")
SHOP = ModuloColumn("shop", 7)
SEEN = ModuloColumn("seen", 5, multivalent=True)
ROWS = {
    "price": np.array([0.0, -3.0, 1.5, 20.0, 1e6, 0.25], np.float32),
    "shop": np.array([0, -1, 6, 7, 2**40, -8]),
    "seen": pa.array([[1, 6, 12], [], [-1], [4, -1, 4], None, [3]], pa.list_(pa.int64())),
}


def data() -> Dataset:
    """Read all rows as one batch, with labels."""
    return Dataset.from_arrays(ROWS, np.array([0, 1, 1, 0, 1, 0], np.float32)).batch(6)


def trained(estimator: te.Estimator) -> np.ndarray[Any, Any]:
    """Train an estimator; return its logits or predictions for all rows."""
    estimator.train(data, steps=5)
    key = "predictions" if isinstance(estimator, te.LinearRegressor) else "logits"
    return np.stack([row[key] for row in estimator.predict(data)])


def served(estimator: te.Estimator, columns: Sequence[Any], folder: Path, key: str) -> np.ndarray[Any, Any]:
    """Export an estimator; return what the export predicts for all rows."""
    model = te.ExportedModel.load(
        estimator.export_saved_model(str(folder), te.serving_input.raw_features(fc.schema(columns)))
    )
    sent = {name: values.to_pylist() if isinstance(values, pa.Array) else values for name, values in ROWS.items()}
    answer = model.predict({name: sent[name] for name in fc.schema(columns).names})
    return np.asarray(answer[key])


def test_own_columns_train_and_serve_alike_in_a_canned_estimator(tmp_path: Path) -> None:
    wide = [PRICE, SHOP, SEEN, fc.bucketized_column(PRICE, [1, 2])]
    deep = [
        LogColumn("price", normalizer_fn=lambda x: x / 10),
        fc.embedding_column(SHOP, 3),
        fc.indicator_column(SHOP),
        fc.indicator_column(SEEN),
        fc.embedding_column(SEEN, 2, combiner="sqrtn"),
    ]
    estimator = te.DNNLinearCombinedClassifier(
        model_dir=str(tmp_path / "job"),
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[8],
    )
    expected = trained(estimator)
    assert len(set(expected.ravel().tolist())) == 6
    np.testing.assert_allclose(served(estimator, [*wide, *deep], tmp_path, "logits"), expected, atol=1e-5)


def test_own_columns_take_part_in_crosses_weights_and_shared_embeddings(tmp_path: Path) -> None:
    columns = [
        fc.crossed_column([SHOP, fc.bucketized_column(PRICE, [1, 2])], 50),
        fc.crossed_column([SHOP, SEEN], 50),
        fc.weighted_categorical_column(SHOP, "price"),
    ]
    estimator = te.LinearRegressor(columns, str(tmp_path / "job"))
    expected = trained(estimator)
    np.testing.assert_allclose(served(estimator, columns, tmp_path, "predictions"), expected, rtol=1e-5, atol=1e-5)
    assert [one.name for one in fc.shared_embeddings([ModuloColumn("a", 3), ModuloColumn("b", 3)], 2)] == [
        "a_shared_embedding",
        "b_shared_embedding",
    ]


def test_ids_and_numbers_are_those_of_the_definition() -> None:
    features = fc.FeatureTransform([SHOP, SEEN], [PRICE])(ROWS)
    assert features["linear/ids"].ravel().tolist() == [0, 12, 6, 0, 2**40 % 7, -8 % 7]
    assert features["linear/ids/seen"].to_pylist() == [[8, 8, 9], [], [], [11, 11], [], [10]]
    np.testing.assert_allclose(features["dnn/numeric"].ravel(), np.log1p(ROWS["price"].clip(0)), rtol=1e-6)


def test_own_columns_are_read_by_the_schema() -> None:
    schema = fc.schema([PRICE, SHOP, SEEN])
    assert {field.name: str(field.type) for field in schema} == {
        "price": "float",
        "seen": "list<item: int64>",
        "shop": "int64",
    }


def test_own_columns_are_refused_in_the_wrong_place() -> None:
    with pytest.raises(InvalidValueError, match="categorical column 'shop'; wrap it in embedding_column"):
        fc.FeatureTransform([], [SHOP])
    with pytest.raises(InvalidValueError, match="takes a categorical column"):
        fc.indicator_column(PRICE)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="num_buckets of column 'k' must be positive, but got 0"):
        ModuloColumn("k", 0)


def test_a_column_without_lowering_trains_and_says_that_it_cannot_be_exported(tmp_path: Path) -> None:
    class HostColumn(LogColumn):
        """A column whose author did not write `lower`."""

        lower = NumberColumn.lower

    columns = [HostColumn("price")]
    estimator = te.LinearRegressor(columns, str(tmp_path / "job"))
    trained(estimator)
    with pytest.raises(te.UserError, match="a column of the kind HostColumn cannot be exported"):
        served(estimator, columns, tmp_path, "predictions")
