"""Refusal of rows that a premade head cannot predict: the prediction is NaN, or a number without default is.

A model of one's own may give NaN on purpose. The predictions of a premade head are NaN only if an input or a weight is
not finite, so that whoever asked has to know it. `Manifest.head_outputs` says which outputs a premade head made, and
`Manifest.required_numbers` which inputs it needs: a bucketized column would make a range of a NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
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
    """Raise a NanPredictionError if a row of what premade heads made or need has a NaN; all arrays are by tensor."""
    made = _rows_with_nan(manifest.head_outputs, results)
    wrong = made | _rows_with_nan(manifest.required_numbers, feeds)
    if not wrong:
        return
    problems = {}
    for row in sorted(wrong):
        causes = ", ".join(_not_finite(row, feeds, signature, manifest))
        if not causes:
            reason = (
                "the prediction is NaN, although its inputs are finite: some are too large, or a weight is not finite."
            )
        elif row in made:
            reason = f"the prediction is NaN because of its inputs: {causes}; give finite numbers."
        else:
            reason = f"a number without default is NaN: {causes}; give finite numbers."
        problems[row] = reason
    raise NanPredictionError(problems, rows=len(next(iter(results.values()))))


def _rows_with_nan(names: Sequence[str] | None, arrays: Mapping[str, Array]) -> set[int]:
    """Return the rows in which one of the named arrays has a NaN."""
    return {
        row
        for array in (arrays[name] for name in names or () if name in arrays)
        if has_nan(array)
        for row in np.flatnonzero(np.isnan(array).reshape(len(array), -1).any(axis=1)).tolist()
    }


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
