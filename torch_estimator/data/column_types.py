"""Types of columns: given by the user, given by a schema, or inferred from a sample."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator.data.arguments import duplicates
from torch_estimator.data.columns import STRINGS
from torch_estimator.data.lists import is_list_type
from torch_estimator.errors import InvalidTypeError, InvalidValueError

_NAMES = {"str": "string", "object": "string", "utf8": "string", "int": "int64", "float": "float32", "bool": "bool_"}
_FIRST = {float: "float32", int: "int64", str: "string", bool: "bool_", bytes: "string"}


def as_arrow_type(given: Any, column: str) -> pa.DataType:
    """Convert the name of a type, a Python type, or a numpy, torch or Arrow type to an Arrow type.

    >>> as_arrow_type("float32", "age"), as_arrow_type(int, "age")
    (DataType(float), DataType(int64))
    """
    if isinstance(given, pa.DataType):
        return _readable(given, column)
    name = _FIRST.get(given) if isinstance(given, type) else None
    if name is None and isinstance(given, type | np.dtype):
        name = np.dtype(given).name
    if name is None:
        name = str(given).removeprefix("torch.")
    name = _NAMES.get(name, name)
    if name.startswith(("str", "bytes", "<U")):
        name = "string"
    factory = getattr(pa, name, None)
    try:
        return _readable(factory(), column)  # type: ignore[misc]
    except (TypeError, AttributeError) as error:
        raise _unreadable(given, column) from error


DEFAULT = b"default"
"""Key in the metadata of a schema's field. The metadata value is the default for a missing value, as JSON."""


def schema_defaults(schema: pa.Schema) -> dict[str, Any]:
    """Return, by column, the default values that an Arrow schema holds in the metadata of its fields.

    Columns of lists are left out, since a missing list always becomes an empty one.
    """
    return {
        field.name: json.loads(field.metadata[DEFAULT])
        for field in schema
        if field.metadata and DEFAULT in field.metadata and not is_list_type(field.type)
    }


MISSING = b"missing"
"""Key in the metadata of a schema's field. The metadata value is the integer that replaces a missing one, as JSON."""


def schema_missing(schema: pa.Schema | None) -> dict[str, int]:
    """Return, by column, the integer that replaces missing integers, from the metadata of a schema's fields."""
    metadata = {field.name: field.metadata or {} for field in schema or ()}
    return {name: json.loads(known[MISSING]) for name, known in metadata.items() if MISSING in known}


def schema_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the type of every column of a schema. Strings get the type of dictionary-encoded strings."""
    if not isinstance(schema, pa.Schema):
        raise InvalidTypeError(f"schema must be a pyarrow.Schema, but got {schema!r}.")
    twice = duplicates(schema.names)
    if twice or not schema.names:
        problem = f"has several columns called {twice[0]!r}" if twice else "has no columns"
        raise InvalidValueError(f"schema {problem}.")
    return {field.name: _schema_type(field.type, field.name) for field in schema}


def _schema_type(kind: pa.DataType, column: str) -> pa.DataType:
    if not is_list_type(kind):
        return as_arrow_type(kind, column)
    value_type = as_arrow_type(kind.value_type, column)
    # Strings in lists are read as plain strings, because only columns of single strings are dictionary encoded.
    value_type = pa.string() if value_type == STRINGS else value_type
    return pa.list_(value_type, kind.list_size if pa.types.is_fixed_size_list(kind) else -1)


def type_of_default(value: Any) -> pa.DataType | None:
    """Return the Arrow type of a default value; None if the default is None or has an unusable type."""
    name = _FIRST.get(type(value))
    if name is None and isinstance(value, np.generic):
        return pa.from_numpy_dtype(value.dtype)
    return None if name is None else (STRINGS if name == "string" else getattr(pa, name)())


def inferred(kind: pa.DataType) -> pa.DataType:
    """Return int64, float32, bool or strings as the type of a column, given the type that Arrow inferred."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float32()
    return pa.bool_() if pa.types.is_boolean(kind) else STRINGS


def as_column_type(kind: Any, column: str) -> pa.DataType:
    """Convert the type that a user gave for a column to an Arrow type.

    It may be a list type, or anything that `as_arrow_type` takes.
    """
    if isinstance(kind, pa.DataType):
        return _schema_type(kind, column)
    return as_arrow_type(kind, column)


def check_default(value: Any, column: str) -> Any:
    """Check that the default of a column is a number, a string or None, and return the default."""
    if value is not None and type_of_default(value) is None:
        raise InvalidTypeError(f"the default of column {column!r} must be a number or a string, but got {value!r}.")
    return value


def _readable(kind: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return STRINGS
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return kind
    raise _unreadable(kind, column)


def _unreadable(given: Any, column: str) -> InvalidTypeError:
    return InvalidTypeError(
        f"column {column!r} cannot be read as {given!r}; use 'string', 'float32', 'int64' or another number type."
    )
