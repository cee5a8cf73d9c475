"""What feature columns read, as an Arrow schema: columns are listed once, for parsing and for serving."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from torch_estimator.data.column_types import DEFAULT, MISSING
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.raw_feature import LISTS, RawDtype, RawFeature, merge_raw_features

SHAPE = b"shape"
"""Key of a field's metadata: the JSON of a row's shape, where that has several dimensions."""

_TYPES: dict[RawDtype, pa.DataType] = {"string": pa.string(), "float32": pa.float32(), "int64": pa.int64()}


def schema(columns: Any) -> pa.Schema:
    """The raw columns that feature columns read, in bytewise order of their names.

    Taken by `Dataset.from_csv`, `from_parquet` and `from_json`, and by `te.serving_input`. One value a row is a field
    of its type (``float32``, ``int64`` or ``string``), lists of any length are ``list<type>``, and a numeric column's
    shape is a ``fixed_size_list`` of as many numbers. Fields that must not be missing (numbers without a
    `default_value`) are not nullable; a default is in the field's metadata, as JSON under ``default``, and the -1 that
    stands for a missing integer where only categorical columns read it, in a list or not, under ``missing``.

    Args:
        columns: Feature columns (wide and deep ones together), a `FeatureTransform`, or `RawFeature`s.

    Raises:
        InvalidTypeError: Something given is no column.
        InvalidValueError: Two columns read a key as different types.

    >>> from torch_estimator import feature_column as fc
    >>> age = fc.numeric_column("age", default_value=30)
    >>> tags = fc.categorical_column_with_hash_bucket("tags", 100, multivalent=True)
    >>> print(schema([fc.bucketized_column(age, [18, 65]), tags]).to_string(show_field_metadata=False))
    age: float
    tags: list<item: string>
      child 0, item: string
    """
    return pa.schema([_field(feature) for feature in raw_features_of(columns).values()])


def raw_features_of(columns: Any) -> dict[str, RawFeature]:
    """The raw columns that columns read, by key.

    Args:
        columns: Feature columns (a list, a dict's values, or one), a `FeatureTransform`, `RawFeature`s or a `schema`.

    Raises:
        InvalidTypeError: Something given is none of these.
        InvalidValueError: Two columns read a key as different types, or a schema has a type that no column reads.
    """
    if isinstance(columns, pa.Schema):
        return merge_raw_features(map(_feature, columns))
    known = getattr(columns, "raw_features", None)
    if isinstance(known, Mapping):
        return dict(known)
    if isinstance(columns, Mapping):
        columns = list(columns.values())
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
    kind = _TYPES[feature.dtype]
    metadata: dict[bytes, bytes] = {}
    if feature.multivalent:
        kind = pa.list_(kind)
    elif feature.shape != (1,):
        kind = pa.list_(kind, math.prod(feature.shape))
        if len(feature.shape) > 1:
            metadata[SHAPE] = json.dumps(feature.shape).encode()
    if feature.default is not None:
        numbers = [int(one) if feature.dtype == "int64" else one for one in feature.default]
        metadata[DEFAULT] = json.dumps(numbers if pa.types.is_nested(kind) else numbers[0]).encode()
    if feature.missing is not None:
        metadata[MISSING] = json.dumps(feature.missing).encode()
    fillable = feature.default is not None or feature.missing is not None
    required = feature.dtype != "string" and not feature.multivalent and not fillable
    return pa.field(feature.key, kind, nullable=not required, metadata=metadata or None)


def _feature(field: pa.Field) -> RawFeature:
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
        dtype=_dtype(kind, field.name),
        shape=shape,
        default=None if default is None else tuple(float(one) for one in default),
        missing=json.loads(metadata[MISSING]) if MISSING in metadata else None,
    )


def _dtype(kind: pa.DataType, name: str) -> RawDtype:
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
