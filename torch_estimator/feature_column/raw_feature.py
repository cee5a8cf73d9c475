"""Description of the raw columns that feature columns read. They are also the inputs of a served model.

A `RawFeature` describes one raw column. `schema` describes the raw columns of several feature columns as an Arrow
schema, which `Dataset` and `te.serving_input` take, so that columns are listed only once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from torch_estimator.data.column_types import DEFAULT, MISSING
from torch_estimator.errors import InvalidTypeError, InvalidValueError

RawDtype = Literal["string", "float32", "int64"]

LISTS = (-1,)
"""Shape of one row's value if rows hold lists of any length."""

MISSING_INTEGER = -1
"""The integer that stands for a missing value in a categorical column; it has no id."""

SHAPE = b"shape"
"""Metadata key of an Arrow field: JSON of a row's shape if it has several dimensions."""

ARROW_TYPES: dict[RawDtype, pa.DataType] = {"string": pa.string(), "float32": pa.float32(), "int64": pa.int64()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RawFeature:
    """Description of one raw column: a column of the data, and an input of the served model.

    Attributes:
        key: Name of the raw column.
        dtype: ``"string"``, ``"float32"`` or ``"int64"``.
        shape: Shape of one row's value: ``(1,)`` for one value per row, ``(-1,)`` for lists of any length.
        default: Numbers that replace a missing value, flattened to the size of `shape`; None if a value is required.
        missing: Integer that marks a missing value. It is -1 for integers that only categorical columns read, also in
            lists, and None for strings (of which ``''`` is a missing value) and for numbers that must not be missing.
        keeps_missing: Whether a `missing_indicator_column` reads the column, so that a missing number has to reach the
            feature columns as NaN.

    >>> tags = fc.categorical_column_with_hash_bucket("tags", 100, multivalent=True)
    >>> [feature] = tags.raw_features
    >>> feature.key, feature.dtype, feature.shape, feature.multivalent
    ('tags', 'string', (-1,), True)
    """

    key: str
    dtype: RawDtype
    shape: tuple[int, ...] = (1,)
    default: tuple[float, ...] | None = None
    missing: int | None = None
    keeps_missing: bool = False

    def __post_init__(self) -> None:
        if self.default is not None:
            object.__setattr__(self, "default", with_one_nan(self.default))

    @property
    def absent(self) -> float | list[float] | None:
        """Number, or list of a vector's numbers, that a reader gives for a missing one; None if one is required.

        It is the `default`, unless the feature columns have to see that the value is missing: then it is NaN, which
        they replace by the default themselves.
        """
        if self.keeps_missing and self.dtype == "float32":
            return math.nan
        numbers = [int(one) if self.dtype == "int64" else one for one in self.default or ()]
        return (numbers[0] if self.shape == (1,) else numbers) if numbers else None

    @property
    def multivalent(self) -> bool:
        """Whether rows hold lists of any length."""
        return self.shape == LISTS


def with_one_nan(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Return numbers with `math.nan` for each NaN, so that tuples of equal numbers are equal."""
    return tuple(math.nan if math.isnan(number) else number for number in numbers)


def categorical_feature(key: str, dtype: RawDtype, *, multivalent: bool) -> RawFeature:
    """Return the description of a categorical column's raw column. Its values may be missing."""
    missing = MISSING_INTEGER if dtype == "int64" else None
    return RawFeature(key=key, dtype=dtype, shape=LISTS if multivalent else (1,), missing=missing)


def merge_raw_features(features: Iterable[RawFeature]) -> dict[str, RawFeature]:
    """Return one raw feature for each key, merged from all columns that read the key, in bytewise order."""
    merged: dict[str, RawFeature] = {}
    features = list(features)
    for feature in features:
        known = merged.setdefault(feature.key, feature)
        if known.dtype == feature.dtype and known.multivalent != feature.multivalent:
            raise InvalidValueError(
                f"raw column {feature.key!r} holds lists for one feature column and one value per row for another; "
                "give both multivalent=True or neither (a crossed_column names its lists: multivalent=[...])."
            )
        if (known.dtype, known.shape) != (feature.dtype, feature.shape):
            raise InvalidValueError(
                f"raw column {feature.key!r} is read as {known.dtype} of shape {known.shape} by one feature "
                "column and as "
                f"{feature.dtype} of shape {feature.shape} by another; give both the same dtype and shape."
            )
        defaults = {one.default for one in (known, feature)} - {None}
        if len(defaults) > 1:
            raise InvalidValueError(
                f"raw column {feature.key!r} has the default {known.default} in one feature column and "
                f"{feature.default} in another; give both the same default_value."
            )
        # Drop the integer that marks missing values if the columns do not agree on it.
        # A numeric column takes -1 as a number, so -1 cannot mark a missing value for a categorical column as well.
        missing = known.missing if known.missing == feature.missing else None
        merged[feature.key] = replace(
            known,
            default=next(iter(defaults), None),
            missing=missing,
            keeps_missing=known.keeps_missing or feature.keeps_missing,
        )
    for one in features:
        _check_kept_missing(one, merged[one.key])
    return dict(sorted(merged.items(), key=lambda item: item[0].encode()))


def _check_kept_missing(one: RawFeature, merged: RawFeature) -> None:
    """Check that a column beside a `missing_indicator_column` of the same key can do with missing values."""
    if one.keeps_missing or not merged.keeps_missing:
        return
    if one.dtype == "float32" and merged.default is None:
        raise InvalidValueError(
            f"raw column {one.key!r} may be missing, since a missing_indicator_column reads it, but another column "
            "reads it without a default_value; give it one, as numeric_column(key, default_value=0.0) does."
        )
    if one.dtype == "int64" and one.missing is None:
        raise InvalidValueError(
            f"raw column {one.key!r} is read as integers, of which a missing_indicator_column cannot see that one is "
            "missing; give neither column a dtype, since the model gets float32 anyway."
        )


def schema(columns: Any) -> pa.Schema:
    """Return an Arrow schema of the raw columns that feature columns read, in bytewise order of names.

    `Dataset.from_csv`, `from_parquet`, `from_json` and `te.serving_input` take this schema. A field has the type
    ``float32``, ``int64`` or ``string`` if a row has one value, ``list<type>`` if rows hold lists of any length, and
    ``fixed_size_list`` if a numeric column has a shape. Numbers without a `default_value` must not be missing: their
    fields are not nullable. A field's metadata holds a `default_value` as JSON under ``default``, or NaN if a
    `missing_indicator_column` reads the number. If only categorical columns read an integer, the metadata holds -1,
    which marks a missing integer, under ``missing``.

    Args:
        columns: Feature columns (those of both halves of a model together), a `FeatureTransform`, or raw features.

    Raises:
        InvalidTypeError: An item is not a feature column.
        InvalidValueError: Two columns read a key as different types.

    >>> age = fc.bucketized_column(fc.numeric_column("age", default_value=30), [18, 65])
    >>> tags = fc.categorical_column_with_hash_bucket("tags", 100, multivalent=True)
    >>> print(fc.schema([age, tags]).to_string(show_field_metadata=False))
    age: float
    tags: list<item: string>
      child 0, item: string
    """
    return pa.schema([_field(feature) for feature in raw_features_of(columns).values()])


def raw_features_of(columns: Any) -> dict[str, RawFeature]:
    """Return the `RawFeature` of each raw column that feature columns read, by key.

    `columns` is a list of feature columns or of `RawFeature`s, a dict with these or dtypes as values, a single one of
    them, a `FeatureTransform`, or a schema from `schema`.
    """
    if isinstance(columns, pa.Schema):
        return merge_raw_features(map(_feature, columns))
    known = getattr(columns, "raw_features", None)
    if isinstance(known, Mapping):
        return dict(known)
    if isinstance(columns, Mapping):
        for key, one in columns.items():
            if isinstance(one, str) and one not in ARROW_TYPES:
                raise InvalidTypeError(f"the dtype of {key!r} must be {', '.join(ARROW_TYPES)}, but got {one!r}.")
        columns = [
            RawFeature(key=key, dtype=one) if isinstance(one, str) and one in ARROW_TYPES else one
            for key, one in columns.items()
        ]
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        columns = [columns]
    features: list[RawFeature] = []
    for column in columns:
        if isinstance(column, RawFeature):
            features.append(column)
        elif hasattr(column, "raw_features"):
            features += column.raw_features
        else:
            raise InvalidTypeError(f"columns must hold feature columns, but holds {column!r}.")
    return merge_raw_features(features)


def _field(feature: RawFeature) -> pa.Field:
    """Convert a raw feature to a field of an Arrow schema. The inverse is `_feature`."""
    kind = ARROW_TYPES[feature.dtype]
    metadata: dict[bytes, bytes] = {}
    if feature.multivalent:
        kind = pa.list_(kind)
    elif feature.shape != (1,):
        kind = pa.list_(kind, math.prod(feature.shape))
        if len(feature.shape) > 1:
            metadata[SHAPE] = json.dumps(feature.shape).encode()
    if feature.absent is not None:
        metadata[DEFAULT] = json.dumps(feature.absent).encode()
    if feature.missing is not None:
        metadata[MISSING] = json.dumps(feature.missing).encode()
    fillable = feature.absent is not None or feature.missing is not None
    required = feature.dtype != "string" and not feature.multivalent and not fillable
    return pa.field(feature.key, kind, nullable=not required, metadata=metadata or None)


def _feature(field: pa.Field) -> RawFeature:
    """Convert a field of an Arrow schema to a raw feature. The inverse is `_field`."""
    metadata = field.metadata or {}
    kind, shape = field.type, (1,)
    if pa.types.is_fixed_size_list(kind):
        kind, shape = kind.value_type, tuple(json.loads(metadata.get(SHAPE, json.dumps([kind.list_size]))))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind, shape = kind.value_type, LISTS
    default = json.loads(metadata[DEFAULT]) if DEFAULT in metadata else None
    if default is not None and not isinstance(default, list):
        default = [default]
    return RawFeature(
        key=field.name,
        dtype=_raw_dtype(kind, field.name),
        shape=shape,
        default=None if default is None else tuple(float(one) for one in default),
        missing=json.loads(metadata[MISSING]) if MISSING in metadata else None,
    )


def _raw_dtype(kind: pa.DataType, name: str) -> RawDtype:
    """Return the dtype as which feature columns read an Arrow type. `name` is the field in the error message."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_integer(kind):
        return "int64"
    if pa.types.is_floating(kind):
        return "float32"
    raise InvalidValueError(
        f"field {name!r} of the schema is {kind}, which no feature column reads; make it strings, integers or floats."
    )
