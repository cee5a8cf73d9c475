"""Missing indicator column: tells the model in which rows a raw column has no value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import check_key, dtype_name, is_float, is_integer, set_fields
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.column import NumberColumn
from torch_estimator.feature_column.lowering import Lowering
from torch_estimator.feature_column.raw_feature import MISSING_INTEGER, RawDtype, RawFeature


@dataclass(frozen=True, slots=True)
class MissingIndicatorColumn(NumberColumn):
    """Column that is 1.0 in rows in which a raw column has no value, and 0.0 in all others.

    It sees a number before `default_value` of the `numeric_column` beside it fills the number: a null, an empty field,
    an absent key and NaN are missing. So are ``''``, and -1 of integers. A `numeric_column` of the same key needs a
    `default_value`, which may be NaN.

    Args:
        key: Name of the raw column, which has one value per row.
        dtype: ``"string"``, an integer type for a key of integer ids, or a floating type for numbers.

    Raises:
        InvalidValueError: `key` is no name, or the dtype is none of these.

    >>> columns = [fc.numeric_column("age", default_value=40), fc.missing_indicator_column("age")]
    >>> fc.FeatureTransform([], columns)({"age": np.array([31, np.nan])})["dnn/numeric"]
    array([[31.,  0.],
           [40.,  1.]], dtype=float32)
    """

    key: str
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_key(self.key)
        name = dtype_name(self.dtype)
        if name != "string" and not (is_integer(name) or is_float(name)):
            raise InvalidValueError(
                f"dtype of missing indicator column {self.key!r} must be 'string', an integer type or a floating-point "
                f"type, but got {name!r}."
            )
        set_fields(self, dtype=name if name == "string" else "int64" if is_integer(name) else "float32")

    @property
    def name(self) -> str:
        """Name of the column: ``<key>_missing``."""
        return f"{self.key}_missing"

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The raw column that `key` names; its missing values have to reach this column."""
        dtype: RawDtype = self.dtype  # type: ignore[assignment]
        missing = MISSING_INTEGER if dtype == "int64" else None
        return (RawFeature(key=self.key, dtype=dtype, missing=missing, keeps_missing=True),)

    def encode(self, chunk: Chunk) -> npt.NDArray[np.float32]:
        """Return 1.0 where the value is missing, float32 ``[rows, 1]``."""
        if self.dtype == "string":
            texts = chunk.values(self.key, "string")
            missing = np.array([not text for text in texts.values], bool).take(texts.codes)
        elif self.dtype == "int64":
            missing = chunk.integers(self.key) == MISSING_INTEGER
        else:
            missing = np.isnan(chunk.unfilled(self.key, (1,)))
        return missing.astype(np.float32).reshape(-1, 1)

    def lower(self, lowering: Lowering) -> str:
        """Return the name of a float32 tensor ``[N, 1]``: 1.0 where the input is missing."""
        graph, raw = lowering.graph, lowering.raw[self.key]
        if raw.dtype == "float32":
            return lowering.cast(graph.op("IsNaN", raw.tensor), "float32")
        sign = np.array("", object) if raw.dtype == "string" else np.array(MISSING_INTEGER, np.int64)
        return lowering.cast(graph.op("Equal", raw.tensor, graph.constant(sign)), "float32")


missing_indicator_column = MissingIndicatorColumn
