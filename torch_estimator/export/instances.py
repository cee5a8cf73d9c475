"""Conversion of JSON instances (one object per row) to lists of values per input, and of outputs to rows."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.export.dtypes import BY_COLUMN
from torch_estimator.export.signatures import ExampleFormat, Signature
from torch_estimator.export.unknown_names import REFUSED, UnknownNames
from torch_estimator.json_text import shortened
from torch_estimator.tfrecord.encoder import encode_example

_NESTED = {list, dict}


class InstanceError(InvalidValueError):
    """Error for the JSON instance `index`, from 0, which does not fit a signature; `problem` names no file or line."""

    def __init__(self, problem: str, *, index: int) -> None:
        super().__init__(problem)
        self.index = index


def to_columns(instances: Sequence[Any], signature: Signature, unknown: UnknownNames = REFUSED) -> dict[str, list[Any]]:
    """Convert JSON instances, one per row, to one list of values per input of a signature.

    An instance is an object with the signature's inputs, of which those with a default may be omitted, or a bare value
    if the signature has a single input. Raise an InstanceError if one lacks an input, has a name that `unknown`
    refuses, or has no input at all.
    """
    names = signature.inputs.keys()
    rows = []
    for index, instance in enumerate(instances):
        if (
            type(instance) is dict
            and (instance.keys() == names or (unknown.ignore and instance.keys() > names))
            and not _NESTED.intersection(map(type, instance.values()))
        ):
            # Most instances are like this, and the latency of a server depends on them.
            if len(instance) > len(names):
                unknown.see(instance, signature)
            rows.append(instance)
            continue
        try:
            rows.append(_row(instance, signature, unknown))
        except InvalidValueError as error:
            raise InstanceError(str(error), index=index) from error
    return {name: [row[name] for row in rows] for name in names}


def first_wrong(
    check: Callable[[Mapping[str, Any]], None], columns: Mapping[str, Any], rows: int
) -> tuple[int, InvalidValueError] | None:
    """Return the index of the first row that `check` refuses, and its InvalidValueError; None if it refuses nothing.

    `columns` has one value per row by input. If no single row is refused, return the first row that is refused after
    those before it, such as one of another length. The search halves the rows again and again, so that it takes about
    as long as checking all of them three times, or some more if no single row is wrong.
    """

    def error_in(start: int, stop: int) -> InvalidValueError | None:
        try:
            check({name: values[start:stop] for name, values in columns.items()})
        except InvalidValueError as error:
            return error
        return None

    start, stop, found = 0, rows, error_in(0, rows)
    refused = found
    while found is not None and stop - start > 1:
        middle = (start + stop) // 2
        if (found := error_in(start, middle)) is not None:
            stop = middle
        else:
            start, found = middle, error_in(middle, stop)
    if found is not None or refused is None:
        return None if found is None else (start, found)
    accepted, stop = 0, rows
    while stop - accepted > 1:
        middle = (accepted + stop) // 2
        if (error := error_in(0, middle)) is not None:
            stop, refused = middle, error
        else:
            accepted = middle
    return stop - 1, refused


def to_example(instance: Mapping[str, Any], example_format: ExampleFormat) -> bytes:
    """Serialize values by feature as a tf.Example; raise an InvalidValueError if one is not of its feature's type."""
    row = {}
    for name, given in instance.items():
        if given is None:
            continue
        value = decoded(given, name)
        field = example_format.fields.get(name)
        if field is not None and field.dtype != "string":
            array = np.asarray(value)
            if array.size and array.dtype.kind not in BY_COLUMN[field.dtype].kinds:
                raise InvalidValueError(f"Input {name} takes values of {field.dtype}, but has {shortened(given)}.")
            value = array.astype(field.dtype)
        row[name] = value
    try:
        return encode_example(row)
    except (InvalidTypeError, InvalidValueError, ValueError) as error:
        raise InvalidValueError(f"an instance cannot be a tf.Example: {error}") from error


def to_rows(outputs: Mapping[str, npt.NDArray[Any]]) -> list[dict[str, Any]]:
    """Convert arrays of outputs to one dict of plain Python values per row."""
    lists = {name: array.tolist() for name, array in outputs.items()}
    rows = min((len(values) for values in lists.values()), default=0)
    return [{name: values[row] for name, values in lists.items()} for row in range(rows)]


def _row(instance: Any, signature: Signature, unknown: UnknownNames) -> dict[str, Any]:
    """Return the value of each input in one instance. An omitted input gets its default."""
    given = _as_object(instance, signature)
    unknown.see(given, signature)
    row = {}
    for name, info in signature.inputs.items():
        if name in given:
            row[name] = bare_value(decoded(given[name], name), info.shape)
        elif info.default is not None:
            row[name] = info.missing
        else:
            raise InvalidValueError(f"Input {name} was missing in at least one input instance.")
    if signature.inputs.keys().isdisjoint(given):
        raise InvalidValueError(
            f"the row {shortened(dict(given))} has none of the inputs {', '.join(signature.inputs)}; "
            "give at least one, which may be null."
        )
    return row


def _as_object(instance: Any, signature: Signature) -> Mapping[str, Any]:
    """Return an instance as an object; wrap a bare value in an object with the name of the only input."""
    if isinstance(instance, Mapping) and set(instance) != {"b64"}:
        return instance
    if len(signature.inputs) != 1:
        raise InvalidValueError(
            f"an instance must be an object with the inputs {', '.join(signature.inputs)}, but one is "
            f"{shortened(instance)}."
        )
    return {next(iter(signature.inputs)): instance}


def decoded(value: Any, name: str) -> Any:
    """Return a JSON value in which bytes, written as ``{"b64": …}``, are decoded."""
    if isinstance(value, list):
        return [decoded(item, name) for item in value]
    if not isinstance(value, Mapping):
        return value
    encoded = value.get("b64")
    if set(value) != {"b64"} or not isinstance(encoded, str):
        raise InvalidValueError(f"Input {name} takes values, but has the object {shortened(dict(value))}.")
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise InvalidValueError(f"Input {name} has {shortened(encoded)}, which is not base64.") from error


def bare_value(value: Any, shape: Sequence[int]) -> Any:
    """Unwrap a list of one value if the input takes a single value per row; return other values unchanged."""
    if shape[1:] in ((), (1,)) and isinstance(value, list) and len(value) == 1:
        return value[0]
    return value
