"""Warm-up instances of an export: a few input rows, and what the export predicted for them when it was written.

They are in ``assets.extra/warmup.jsonl``, one JSON object a line::

    {"signature_name": "predict", "instance": {"age": [25.0], …}, "predictions": {"classes": ["<=50K"], …}}

An ``instance`` has what a request for that signature has: for raw columns a list per input (``[batch, 1]``), for JSON
receivers bare values, for CSV one row of text. Up to eight rows are recorded for the signature ``predict``, and the
first of them for every other signature. Numbers that are not finite are written as ``NaN`` and ``Infinity``, as
TensorFlow Serving writes them.

``estimator check`` compares an export with its predictions, and a server predicts them before a version takes traffic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator import files
from torch_estimator.errors import ExportError, InvalidValueError
from torch_estimator.export.instances import to_columns
from torch_estimator.export.signatures import Signature
from torch_estimator.json_text import parse_json
from torch_estimator.runs.state_file import dataclass_from_json

MOST_INSTANCES = 8

ASSETS_EXTRA = "assets.extra"
WARMUP_FILE = "warmup.jsonl"

TOLERANCE = 1e-5
"""Largest difference of a number from the recorded one: absolute, or relative to a number above 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupInstance:
    """One recorded row: its inputs and outputs by name, and the signature that was called."""

    signature_name: str
    instance: dict[str, Any]
    predictions: dict[str, Any]


def read_warmup(directory: str) -> list[WarmupInstance]:
    """Return the warm-up instances of the export in a directory; an empty list if it has none."""
    path = files.join(directory, ASSETS_EXTRA, WARMUP_FILE)
    try:
        # Not splitlines, which takes some characters inside strings for ends of lines.
        lines = [line for line in files.read_text(path).split("\n") if line]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path} cannot be read: {files.reason(error)}.") from error
    return [_instance(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def batches_of(
    instances: Sequence[WarmupInstance], signatures: Mapping[str, Signature]
) -> dict[str, tuple[dict[str, list[Any]], list[WarmupInstance]]]:
    """Return the inputs of a batch by signature, and the instances in it."""
    groups: dict[str, list[WarmupInstance]] = {}
    for one in instances:
        groups.setdefault(one.signature_name, []).append(one)
    for name in groups:
        if name not in signatures:
            raise InvalidValueError(f"the signature {name!r} is not in the export, which has {', '.join(signatures)}.")
    return {
        name: (to_columns([one.instance for one in group], signatures[name]), group) for name, group in groups.items()
    }


def difference(recorded: Any, predicted: Any) -> str | None:
    """Return in what a prediction differs from the recorded one, as the end of a sentence; None if it does not.

    Numbers may differ by `TOLERANCE`, everything else must be equal.

    >>> difference([0.25], [0.2500001])
    >>> difference(["a"], ["b"])
    "is ['b'], but ['a'] was recorded"
    """
    one, other = np.array(recorded, dtype=object), np.array(predicted, dtype=object)
    same = one.shape == other.shape
    if same and all(isinstance(item, float) for item in (*one.flat, *other.flat)):
        same = np.allclose(one.astype(float), other.astype(float), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    elif same:
        same = one.tolist() == other.tolist()
    return None if same else f"is {_shortened(predicted)}, but {_shortened(recorded)} was recorded"


def _instance(line: str, where: str) -> WarmupInstance:
    try:
        return dataclass_from_json(WarmupInstance, parse_json(line))
    except ValueError as error:
        raise ExportError(f"{where} is not a warm-up instance ({error}); remove the file to do without.") from error


def _shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
