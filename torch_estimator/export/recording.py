"""Recording of warm-up instances when an export is written; `warmup` describes their file."""

from __future__ import annotations

import base64
import csv
import io
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_estimator import files
from torch_estimator.errors import ExportError, InvalidTypeError, InvalidValueError
from torch_estimator.export.instances import to_columns, to_rows
from torch_estimator.export.nan_predictions import NanPredictionError
from torch_estimator.export.signatures import Signature
from torch_estimator.export.warmup import ASSETS_EXTRA, MOST_INSTANCES, WARMUP_FILE
from torch_estimator.tfrecord.encoder import encode_example

if TYPE_CHECKING:
    from torch_estimator.export.exported_model import ExportedModel
    from torch_estimator.feature_column.raw_feature import RawFeature
    from torch_estimator.serving_input import ServingInput

logger = logging.getLogger("torch_estimator")

PREDICT = "predict"

_MOST_BYTES = 2**16
_ZEROS: Mapping[str, Any] = {"string": "", "float32": 0.0, "int64": 0}
_TEXT_OF_RECEIVERS = "0"
"""Text that `te.strings.to_number` can read."""


def record_warmup(model: ExportedModel, receiver: ServingInput, rows: Sequence[Mapping[str, Any]], count: int) -> None:
    """Write ``assets.extra/warmup.jsonl`` into an export that is being written, unless the user has given that file.

    At most `count` of the rows of raw features are recorded. Without usable rows, one instance is made of the inputs'
    defaults, zeros, empty strings and empty lists.
    """
    path = files.join(model.directory, ASSETS_EXTRA, WARMUP_FILE)
    if os.path.exists(path):
        return
    given = [row for one in rows[:count] if (row := _row(one, receiver)) is not None]
    for candidates in (given, [_made_up(receiver)]):
        try:
            lines = _lines(model, receiver, candidates)
        except (ExportError, InvalidValueError) as error:
            cure = " Give te.serving_input.json(…, defaults=…) a row that it can answer." if receiver.features else ""
            logger.warning("An export without warm-up instances: %s%s", error, cure)
            return
        if lines:
            os.makedirs(files.parent(path), exist_ok=True)
            files.write_file(path, lines, synced=False)
            return
    logger.warning("An export without warm-up instances: it predicts no number for zeros and empty inputs.")


def check_count(warmup_instances: object) -> int:
    """Return the setting `warmup_instances`."""
    if isinstance(warmup_instances, bool) or not isinstance(warmup_instances, int):
        raise InvalidTypeError(f"warmup_instances must be a whole number, but got {warmup_instances!r}.")
    if not 0 <= warmup_instances <= MOST_INSTANCES:
        raise InvalidValueError(
            f"warmup_instances must be a number of rows from 0 to {MOST_INSTANCES}, but got {warmup_instances}."
        )
    return warmup_instances


def check_dtype(dtype: object) -> None:
    """Check the setting `dtype` of an export."""
    if dtype not in ("float32", "float16"):
        raise InvalidValueError(f"dtype of an export must be 'float32' or 'float16', but got {dtype!r}.")


def _lines(model: ExportedModel, receiver: ServingInput, rows: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Return the lines of the file: all rows that fit for `PREDICT`, the first of them for the other signatures."""
    predict = model.signature(PREDICT)
    accepted: list[Mapping[str, Any]] = []
    instances: list[dict[str, Any]] = []
    for row in rows:
        # Take only rows that can be predicted together.
        if _are_accepted(model, candidates := [*instances, _instance(row, predict, receiver)]):
            accepted.append(row)
            instances = candidates
    if not accepted:
        return []
    lines = list(_encoded(model, PREDICT, instances))
    for name, signature in model.signatures.items():
        if name != PREDICT:
            lines += _encoded(model, name, [_instance(accepted[0], signature, receiver)])
    kept: list[bytes] = []
    for line in lines:
        if sum(map(len, kept)) + len(line) <= _MOST_BYTES:
            kept.append(line)
    return kept


def _encoded(model: ExportedModel, name: str, instances: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield the lines of some instances, with their predictions."""
    predictions = to_rows(model.predict(to_columns(instances, model.signature(name)), name))
    for instance, prediction in zip(instances, predictions, strict=True):
        line = {"signature_name": name, "instance": instance, "predictions": prediction}
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _are_accepted(model: ExportedModel, instances: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the export takes some instances together without predicting NaN, and JSON can hold them."""
    columns = to_columns(instances, model.signature(PREDICT))
    try:
        json.dumps(instances, ensure_ascii=False).encode()
        model.check(columns)
    except (InvalidValueError, UnicodeEncodeError):
        return False
    try:
        model.predict(columns)
    except NanPredictionError:
        return False
    return True


def _row(raw: Mapping[str, Any], receiver: ServingInput) -> dict[str, Any] | None:
    """Return the values of a serving input's features for a row: a value or a flat list by name; None without any."""
    known = [name for name in receiver.inputs if name in raw]
    try:
        values = {name: _plain(raw[name], receiver.inputs[name]) for name in known}
    except (TypeError, ValueError, OverflowError):
        return None
    return {**_made_up(receiver), **values} if known else None


def _made_up(receiver: ServingInput) -> dict[str, Any]:
    """Return a row of defaults, zeros, empty strings and empty lists."""
    row: dict[str, Any] = {}
    zeros = {**_ZEROS, "string": _TEXT_OF_RECEIVERS} if receiver.features else _ZEROS
    for name, feature in receiver.inputs.items():
        default = receiver.defaults.get(name)
        if feature.multivalent and name not in receiver.variable:
            row[name] = default if isinstance(default, list) else []
        else:
            size = abs(int(np.prod(feature.shape)))
            items = default if isinstance(default, list) else [zeros[feature.dtype] if default is None else default]
            row[name] = items * size if len(items) == 1 else items
    return row


def _plain(value: Any, feature: RawFeature) -> list[Any]:
    """Return the values of one feature in one row as Python values; TypeError or ValueError if they do not fit it."""
    items = np.asarray(value).ravel().tolist() if isinstance(value, np.ndarray) else value
    items = [_item(one, feature.dtype) for one in (items if isinstance(items, list) else [items])]
    size = int(np.prod(feature.shape))
    if len(items) % abs(size) if size < 0 else len(items) != size:
        raise ValueError(f"{feature.key} has {len(items)} values")
    return items


def _item(value: Any, dtype: str) -> Any:
    if dtype == "string":
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{value!r} is not a string")
        return value or ""
    if dtype == "int64":
        if int(value) != value:
            raise ValueError(f"{value!r} is not an integer")
        return int(value)
    # Take the shortest number that is the same in float32, so that 0.1 is not recorded as 0.10000000149011612.
    return float(str(np.float32(value)))


def _instance(row: Mapping[str, list[Any]], signature: Signature, receiver: ServingInput) -> dict[str, Any]:
    """Return a row as an instance of a signature."""
    if receiver.kind == "csv":
        return dict.fromkeys(signature.inputs, _csv(row, receiver.column_names))
    if receiver.kind == "examples":
        example = encode_example({name: _typed(row[name], receiver.inputs[name]) for name in row})
        return {name: {"b64": base64.b64encode(example).decode()} for name in signature.inputs}
    instance = {}
    for name, info in signature.inputs.items():
        items = row[info.tensor]
        if info.holds_lists:
            instance[name] = items
        elif len(info.shape) == 1:
            instance[name] = items[0]
        else:
            instance[name] = np.array(items, dtype=object).reshape(info.shape[1:]).tolist()
    return instance


def _typed(items: Any, feature: RawFeature) -> Any:
    return items if feature.dtype == "string" else np.array(items, dtype=feature.dtype)


def _csv(row: Mapping[str, list[Any]], column_names: Sequence[str]) -> str:
    """Return a row of CSV; fields that the model does not use are empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([row.get(name, [""])[0] for name in column_names])
    return text.getvalue()
