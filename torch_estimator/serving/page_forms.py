"""The form of the page: an input field for each input of a signature, and how a prediction is shown."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidValueError
from torch_estimator.export.instances import bare_value, decoded
from torch_estimator.export.signatures import Signature, TensorInfo
from torch_estimator.json_text import parse_json, shortened

_MOST_BARS = 10
_MOST_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One input field of the form.

    `kind` is ``text``, ``long`` (several lines), ``number``, ``json`` (lists) or ``bool``; `type` is the type for
    people, such as ``float`` or ``list of string``. `default` is what an empty field stands for, or None if it must be
    filled.
    """

    name: str
    kind: str
    type: str
    value: str
    default: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One class and its probability, from 0 to 1."""

    label: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A prediction as the page shows it.

    `headline` is the prediction in one word or number, or empty if no output is known to be that. `bars` are the most
    probable classes, the first one first, without `more` others. `outputs` has the name and the text of each output.
    `request` is a command line that makes the same prediction.
    """

    headline: str
    bars: list[Bar]
    more: int
    outputs: list[tuple[str, str]]
    milliseconds: float
    request: str


def type_of(info: TensorInfo) -> str:
    """Return the type of an input or output for people.

    >>> type_of(TensorInfo(dtype="DT_FLOAT", shape=(-1, 3), tensor="x"))
    'float [3]'
    """
    name = info.dtype.removeprefix("DT_").lower()
    if info.holds_lists:
        return f"list of {name}"
    sizes = [size for size in info.shape[1:] if size != 1]
    return f"{name} {['any' if size < 0 else size for size in sizes]}".replace("'", "") if sizes else name


def fields_of(signature: Signature, instance: Mapping[str, Any]) -> list[Field]:
    """Return the fields of a signature, filled with an instance."""
    return [
        Field(
            name=name,
            kind=_kind(info, is_only=len(signature.inputs) == 1),
            type=type_of(info),
            value=_text(bare_value(instance.get(name), info.shape), info),
            default=None if info.default is None else _text(info.default, info),
        )
        for name, info in signature.inputs.items()
    ]


def texts_in(fields: list[Field], texts: Mapping[str, str]) -> list[Field]:
    """Return the fields with the texts that a person has sent."""
    return [
        Field(name=one.name, kind=one.kind, type=one.type, value=texts.get(one.name, ""), default=one.default)
        for one in fields
    ]


def _kind(info: TensorInfo, *, is_only: bool) -> str:
    if not info.is_single:
        return "json"
    if info.dtype == "DT_BOOL":
        return "bool"
    if info.dtype != "DT_STRING":
        return "number"
    # A single string is the text of a JSON object or a row of CSV.
    return "long" if is_only else "text"


def _text(value: Any, info: TensorInfo) -> str:
    if isinstance(value, str) and info.is_single:
        return value
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return json.dumps(value, ensure_ascii=False)


def read_instance(signature: Signature, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the instance that a filled form describes, from the text of each field by the name of its input.

    An empty field is left out if its input has a default, or null if all fields are. Raise an InvalidValueError if a
    text is not a value of its input.
    """
    instance = {}
    for name, info in signature.inputs.items():
        text = texts.get(name, "")
        if text == "" and info.default is not None:
            continue
        instance[name] = _value(text, info, name)
    return instance or dict.fromkeys(signature.inputs)


def _value(text: str, info: TensorInfo, name: str) -> Any:
    wanted = type_of(info)
    if not info.is_single:
        try:
            # An empty field is an empty list.
            value = parse_json(text) if text.strip() else []
        except ValueError as error:
            raise InvalidValueError(
                f"Input {name} is a {wanted}; write it as JSON, such as [1, 2], not {shortened(text)}."
            ) from error
        return value
    if info.dtype == "DT_STRING" and text.startswith('{"b64"'):
        return _bytes(text, name)
    return info.type.parse(name, text)


def _bytes(text: str, name: str) -> Any:
    """Return the bytes of ``{"b64": …}``, the notation of TensorFlow Serving, or any other text unchanged."""
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return decoded(value, name)


def outcome_of(outputs: Mapping[str, npt.NDArray[Any]], *, milliseconds: float, request: str) -> Outcome:
    """Return how the outputs for one instance, which have one entry each, are shown; `request` is a command line."""
    rows = {name: array[0] for name, array in outputs.items()}
    bars = _bars(rows)
    return Outcome(
        headline=_headline(rows, bars),
        bars=bars[:_MOST_BARS],
        more=max(0, len(bars) - _MOST_BARS),
        outputs=[(name, _shown(row)) for name, row in rows.items()],
        milliseconds=milliseconds,
        request=request,
    )


def _bars(rows: Mapping[str, Any]) -> list[Bar]:
    """Return the classes and their probabilities, the most probable one first."""
    for values, labels in (("probabilities", "all_classes"), ("scores", "classes")):
        numbers = np.asarray(rows.get(values, []))
        if numbers.ndim != 1 or numbers.dtype.kind != "f" or not len(numbers):
            continue
        if not (np.isfinite(numbers).all() and numbers.min() >= 0 and numbers.max() <= 1):
            continue
        names = np.asarray(rows.get(labels, []), dtype=object).ravel()
        if len(names) != len(numbers):
            names = np.arange(len(numbers))
        order = np.argsort(-numbers, kind="stable")
        return [Bar(label=_shown(names[place]), value=float(str(numbers[place]))) for place in order]
    return []


def _headline(rows: Mapping[str, Any], bars: list[Bar]) -> str:
    for name in ("classes", "class_ids", "predictions", "outputs"):
        if name == "classes" and "scores" in rows and bars:
            return bars[0].label
        row = np.asarray(rows.get(name, []))
        if row.size == 1:
            return _shown(row.ravel()[0])
    return ""


def _shown(value: Any) -> str:
    """Return a value as short text."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.ravel()[0]
    text = str(value) if not isinstance(value, np.ndarray) else json.dumps(_plain(value), ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, np.floating):
        # The text of a float32 is its shortest form.
        return float(str(value))
    return value.item() if isinstance(value, np.generic) else str(value)


def command_line(url: str, signature: str, instance: Mapping[str, Any], *, with_token: bool) -> str:
    """Return the command that sends an instance to TensorFlow Serving's REST.

    `url` is the address of the version, without the method; `with_token` says whether the server wants a token.
    """
    plain = {name: _as_json(value) for name, value in instance.items()}
    body = json.dumps({"signature_name": signature, "instances": [plain]}, ensure_ascii=False)
    token = '-H "Authorization: Bearer $TOKEN" ' if with_token else ""
    return f"curl {token}{shlex.quote(f'{url}:predict')} -d {shlex.quote(body)}"


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        import base64

        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
