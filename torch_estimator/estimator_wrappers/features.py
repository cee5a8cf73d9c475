"""Features given back with the predictions, such as the key of a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.estimator_wrappers.checks import check_estimator
from torch_estimator.specs import EstimatorSpec


def forward_features(estimator: Estimator, keys: str | Sequence[str] | None = None) -> Estimator:
    """Returns an Estimator that gives features back with its predictions, as they came in.

    They are among the predictions of `predict`, and of an export in the signatures ``predict`` and
    ``serving_default`` (and those of `forward_layers`). The model need not read them. The serving input has to have
    them: an input that the model does not read is declared by its default,
    ``te.serving_input.raw_features(columns, defaults={"key": "nokey"})``.

    Args:
        estimator: What to extend; stays as it is.
        keys: Names of features; None for all that the input, or the serving input, has.

    Raises:
        InvalidTypeError: ``estimator`` is no Estimator, or a key no string.
        InvalidValueError: There is no key. Predicting and exporting raise it, or `ExportError`, where the input has no
            such feature, or a prediction is called like one.
    """
    check_estimator("forward_features", estimator)
    given = _checked_keys(keys)

    def with_features(spec: EstimatorSpec) -> EstimatorSpec:
        before = spec.forward_features
        all_keys = None if before is None or given is None else tuple(dict.fromkeys((*before, *given)))
        return dataclasses.replace(spec, forward_features=all_keys)

    return estimator._extended(with_features)


def _checked_keys(keys: object) -> tuple[str, ...] | None:
    if keys is None:
        return None
    names = (keys,) if isinstance(keys, str) else keys
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f"forward_features: keys must be a string or a list of strings, but got {keys!r}.")
    if not names:
        raise InvalidValueError("forward_features: keys must not be empty; leave it out for all features.")
    return tuple(names)
