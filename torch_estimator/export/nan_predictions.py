"""Refusal of predictions that are NaN, where a premade head made them.

A user's own model may give NaN on purpose. The predictions of a premade head are NaN only if an input or a weight is
not finite, which the caller has to know. `Manifest.head_outputs` says which outputs a premade head made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from torch_estimator.export.dtypes import DTYPES, Array
from torch_estimator.export.feeds import WrongRowError, fields_of, has_nan
from torch_estimator.export.signatures import Manifest, Signature


class NanPredictionError(WrongRowError):
    """Error for predictions that are NaN, with the message of each of these rows by its number, from 0."""

    def __init__(self, problems: Mapping[int, str], *, rows: int) -> None:
        row, problem = next(iter(problems.items()))
        super().__init__(f"row {row} (from 0): {problem}" if rows > 1 else problem, of_row=problem, row=row)
        self.problems = problems


def check_predictions(
    results: Mapping[str, Any], feeds: Mapping[str, Array], signature: Signature, manifest: Manifest
) -> None:
    """Raise a NanPredictionError if a premade head's output has a NaN in a row; all arrays are by tensor."""
    wrong = [results[name] for name in manifest.head_outputs or () if name in results and has_nan(results[name])]
    if not wrong:
        return
    is_nan = np.any([np.isnan(array).reshape(len(array), -1).any(axis=1) for array in wrong], axis=0)
    problems = {}
    for row in np.flatnonzero(is_nan).tolist():
        causes = ", ".join(_not_finite(row, feeds, signature, manifest))
        problems[row] = (
            f"the prediction is NaN because of its inputs: {causes}; give finite numbers."
            if causes
            else "the prediction is NaN, although its inputs are finite: some are too large, or a weight is not finite."
        )
    raise NanPredictionError(problems, rows=len(is_nan))


def _not_finite(row: int, feeds: Mapping[str, Array], signature: Signature, manifest: Manifest) -> Iterator[str]:
    """Yield each input that is not finite in a row, and its value."""
    inputs = {info.tensor: (name, info.step_size) for name, info in signature.inputs.items()}
    if manifest.examples is not None:
        inputs |= {name: (name, field.step_size) for name, field in manifest.examples.fields.items()}
    for tensor, array in feeds.items():
        if array.dtype.kind == "f":
            name, step_size = inputs.get(tensor, (tensor, None))
            values = array[row].ravel()
            # A NaN in a sequence is padding.
            odd = values[np.isinf(values) if step_size else ~np.isfinite(values)].tolist()
            if odd:
                yield f"{name} {'is' if len(values) == 1 else 'has'} {json.dumps(odd[0])}"
    csv = manifest.csv
    if csv is not None and csv.tensor in feeds:
        fields = dict(zip(csv.column_names, fields_of(feeds[csv.tensor].ravel()[row], csv.column_names), strict=True))
        for name, field in csv.fields.items():
            if DTYPES[field.dtype].numpy.kind == "f" and not math.isfinite(number := float(fields[name] or 0)):
                yield f"{name} is {json.dumps(number)}"
