"""Serving inputs, which describe the inputs of an exported model: raw columns, JSON values, rows of CSV or tf.Examples.

Pass a serving input to `Estimator.export_saved_model` or to an exporter.

>>> from torch_estimator import feature_column as fc
>>> age = fc.numeric_column("age")
>>> sorted(raw_features([age], defaults={"key": "nokey"}).inputs)
['age', 'key']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

import torch
from torch import nn

from torch_estimator import tree
from torch_estimator.data.chunk import as_columns
from torch_estimator.data.columns import is_strings
from torch_estimator.data.feature_structure import Leaf, Structure, describe, leaves
from torch_estimator.data.operations.batching import LENGTH_SUFFIX
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.checks import is_float
from torch_estimator.feature_column.raw_feature import LISTS, RawDtype, RawFeature, raw_features_of
from torch_estimator.strings import Expression
from torch_estimator.tfrecord.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    ServedFeature,
    as_feature_spec,
)

Default = str | float | int | list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingInput:
    """Description of an exported model's inputs; made by `raw_features`, `json`, `like`, `csv`, `examples`, `receiver`.

    Attributes:
        kind: ``"raw_features"``, ``"json"``, ``"csv"`` or ``"examples"``.
        inputs: Inputs by name. For CSV, the fields of a row that the model uses.
        defaults: Values of inputs that are missing in a row. For CSV, values of empty fields.
        transform: Module that runs before the model, or None.
        column_names: For CSV, the names of all fields of a row.
        input_name: For CSV, the name of the input.
        structure: Structure of the features that a module without columns takes, as given to `like`, or None.
        feature_spec: For tf.Examples, their features by name.
        variable: For a module without columns, the inputs whose rows are sequences of any length.
        features: For `receiver`, the features that the model takes, as expressions of the inputs.
        ignore_unknown: Whether names that are no inputs are left out of what callers send, in place of an error.

    >>> columns = [fc.numeric_column("age"), fc.categorical_column_with_hash_bucket("job", 100)]
    >>> receiver = te.serving_input.raw_features(columns, defaults={"job": ""})
    >>> receiver.kind, list(receiver.inputs), receiver.defaults
    ('raw_features', ['age', 'job'], {'job': ''})
    """

    kind: Literal["raw_features", "json", "csv", "examples"]
    inputs: dict[str, RawFeature]
    defaults: dict[str, Default] = field(default_factory=dict)
    transform: nn.Module | None = None
    column_names: tuple[str, ...] = ()
    input_name: str = "csv_row"
    structure: Structure | None = None
    feature_spec: dict[str, ServedFeature] = field(default_factory=dict)
    variable: tuple[str, ...] = ()
    features: dict[str, Expression] = field(default_factory=dict)
    ignore_unknown: bool = False


def raw_features(
    columns: Any,
    defaults: Mapping[str, Default] | None = None,
    transform: nn.Module | None = None,
    *,
    ignore_unknown: bool = False,
) -> ServingInput:
    """Return a serving input with one input for each column of raw data that the feature columns read.

    The shape of an input is ``[batch, 1]``, ``[batch, *shape]``, or ``[batch, n]`` for lists. A missing string is
    ``''``, a missing list is empty, and a missing integer of a categorical column is -1. A caller may omit these, and
    numbers with a default, or give None or NaN. Other numbers must be given.

    Args:
        columns: Feature columns, a `FeatureTransform`, `RawFeature`s, `te.feature_column.schema(...)` of columns, or a
            dict of dtypes such as ``{"job": "string"}``.
        defaults: Values of inputs that are missing. Columns with a `default_value` have one already. A name that
            no column reads declares an input that the model does not use, such as a key to pass through; a list
            declares an input of that length.
        transform: Module from a dict of raw numbers, float32 ``[batch, 1]``, to a dict of features that the columns
            read. Its attribute `input_names` lists the names of the numbers. The features that it computes are not
            inputs.
        ignore_unknown: Whether names that are no inputs, such as the label or an identifier, are left out of what
            callers send. Otherwise they are an error, since a misspelt input with a default would go unnoticed.

    Returns:
        Serving input for an exporter, or for `Estimator.export_saved_model`.

    Raises:
        InvalidTypeError: `columns` contains an object that is not a column, or a default has the wrong type.
        InvalidValueError: `transform` lacks `input_names`, or computes a feature that no column reads.

    >>> columns = [fc.numeric_column("age", default_value=40), fc.categorical_column_with_hash_bucket("job", 100)]
    >>> receiver = te.serving_input.raw_features(columns, defaults={"id": "none"})
    >>> list(receiver.inputs), receiver.defaults
    (['age', 'job', 'id'], {'age': 40.0, 'id': 'none'})
    """
    return _by_name("raw_features", columns, defaults, transform, ignore_unknown)


def json(
    columns: Any,
    defaults: Mapping[str, Default] | None = None,
    transform: nn.Module | None = None,
    *,
    ignore_unknown: bool = False,
) -> ServingInput:
    """Return a serving input for JSON instances: each column of raw data is an input ``[batch]``, one value per row.

    An instance may lack what may be missing, or have null or NaN there: strings, integers of categorical columns, lists
    of these, and numbers with a default. Other numbers must be given.

    Args:
        columns: As for `raw_features`.
        defaults: As for `raw_features`.
        transform: As for `raw_features`.
        ignore_unknown: As for `raw_features`.

    >>> tags = fc.categorical_column_with_hash_bucket("tags", 100, multivalent=True)
    >>> receiver = te.serving_input.json([fc.numeric_column("age"), tags], defaults={"tags": []})
    >>> list(receiver.inputs), receiver.defaults
    (['age', 'tags'], {'tags': []})
    """
    return _by_name("json", columns, defaults, transform, ignore_unknown)


def like(
    features: Any,
    defaults: Mapping[str, Default] | None = None,
    variable: Sequence[str] = (),
    *,
    ignore_unknown: bool = False,
) -> ServingInput:
    """Return a serving input with the dtypes and shapes of example features, for a module without feature columns.

    Args:
        features: A batch of features as an input_fn returns it; only its dtypes and shapes are used. An array or tensor
            ``[N, ...]`` becomes the input ``features``, a tuple the inputs ``features_0``, ``features_1``, …, and a
            dict becomes inputs with the names of its keys.
        defaults: As for `raw_features`.
        variable: Names of inputs that take sequences of any length: the first dimension after the batch varies. Rows
            are never padded. Those of different lengths are run apart, so that each is answered as if it came alone.
            For a feature ``words``, the feature ``words_length`` that `Dataset.padded_batch` adds is no input then. The
            graph computes it.
        ignore_unknown: As for `raw_features`.

    Raises:
        InvalidTypeError: A feature is not an array, or `variable` is not a list of names.
        InvalidValueError: `variable` has a name that is no feature, or a feature with one number or string per row.

    >>> images = te.serving_input.like(torch.zeros(1, 28, 28))
    >>> images.inputs["features"].shape
    (28, 28)
    >>> list(te.serving_input.like({"age": [31.0], "job": ["clerk"]}).inputs)
    ['age', 'job']
    >>> te.serving_input.like({"words": torch.zeros(1, 9)}, variable=["words"]).inputs["words"].shape
    (-1,)
    """
    structure = describe(_tensors(as_columns(features)))
    described = dict(leaves(structure))
    names = _variable_names(variable, described)
    inputs = {name: _feature_of(name, leaf) for name, leaf in described.items()}
    for name in names:
        inputs[name] = replace(inputs[name], shape=(-1, *inputs[name].shape[1:]))
        inputs.pop(name + LENGTH_SUFFIX, None)
    given = dict(defaults or {})
    for key, value in given.items():
        if key not in inputs:
            inputs[key] = _undeclared(key, value)
    checked = {key: _checked_default(inputs[key], value) for key, value in given.items()}
    return ServingInput(
        kind="raw_features",
        inputs=inputs,
        defaults=checked,
        structure=structure,
        variable=names,
        ignore_unknown=ignore_unknown,
    )


def _variable_names(variable: Sequence[str], described: Mapping[str, Leaf]) -> tuple[str, ...]:
    if isinstance(variable, str) or not isinstance(variable, Iterable):
        raise InvalidTypeError(f"variable must be a list of names, such as ['words'], but got {variable!r}.")
    for name in variable:
        if name not in described:
            raise InvalidValueError(f"variable has {name!r}, which is no feature; the features are {[*described]}.")
        if not described[name]["shape"]:
            raise InvalidValueError(
                f"variable has {name!r}, which has one value per row; give example features with a list per row."
            )
    return tuple(variable)


def _tensors(columns: Any) -> Any:
    """Return the first row of each column as a tensor; columns of strings are returned unchanged."""

    def tensor(column: Any) -> Any:
        return column if is_strings(column) else torch.from_numpy(column[:1].copy())

    return tree.map(tensor, columns)


def _feature_of(name: str, leaf: Leaf) -> RawFeature:
    kind: RawDtype = "float32" if is_float(leaf["dtype"]) else "string" if leaf["dtype"] == "string" else "int64"
    return RawFeature(key=name, dtype=kind, shape=tuple(leaf["shape"]) or (1,))


def csv(
    column_names: Sequence[str],
    columns: Any,
    defaults: Mapping[str, Default] | None = None,
    transform: nn.Module | None = None,
    input_name: str = "csv_row",
    *,
    ignore_unknown: bool = False,
) -> ServingInput:
    """Return a serving input with a single input, ``csv_row``: strings ``[batch]``, each of which is a row of CSV.

    Fields that the model does not use are ignored. The graph itself splits rows without quotes; `ExportedModel` also
    reads quoted fields. An empty field of a number gets the value in `defaults`, or else the `default_value` of its
    column, and is an error without either. An empty integer that only categorical columns read counts as missing and
    has no id.

    Args:
        column_names: Names of the fields of a row, in order.
        columns: Feature columns, a `FeatureTransform`, or raw features.
        defaults: Values of empty fields. The name of a field that no column reads declares an input that the model
            does not use, such as a key to pass through.
        transform: As for `raw_features`.
        input_name: Name of the input, by which callers give the rows.
        ignore_unknown: As for `raw_features`, of what callers send beside the rows.

    Raises:
        InvalidTypeError: As for `raw_features`, or `input_name` is not a string.
        InvalidValueError: A name is empty or repeats, or a column is not among the fields or has more than one value
            per row.

    >>> receiver = te.serving_input.csv(["id", "age"], [fc.numeric_column("age")], defaults={"id": "none"})
    >>> sorted(receiver.inputs)
    ['age', 'id']
    """
    names = tuple(column_names)
    if isinstance(column_names, str) or not names or any(not isinstance(name, str) for name in names):
        raise InvalidTypeError(f"column_names must be a list of strings, but got {column_names!r}.")
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidValueError(f"column_names has {repeated!r} more than once.")
    if not isinstance(input_name, str):
        raise InvalidTypeError(f"input_name must be a string, but got {input_name!r}.")
    if not input_name:
        raise InvalidValueError("input_name must not be empty; it is the name by which callers give the rows.")
    inputs, transformer = _inputs(columns, transform)
    for key, feature in inputs.items():
        if key not in names:
            raise InvalidValueError(f"the columns read {key!r}, which is not among column_names {list(names)}.")
        if feature.multivalent:
            raise InvalidValueError(f"{key!r} holds lists, but a CSV field holds one value; use raw_features or json.")
        if feature.shape != (1,):
            raise InvalidValueError(
                f"{key!r} has the shape {feature.shape} per row, but a CSV field holds one value; use raw_features."
            )
    given = dict(defaults or {})
    for key, value in given.items():
        if key not in names:
            raise InvalidValueError(f"defaults has {key!r}, which is not among column_names {list(names)}.")
        if key not in inputs:
            inputs[key] = RawFeature(key=key, dtype=_dtype_of(key, value))
    given = _column_defaults(inputs) | given
    for key, feature in inputs.items():
        if feature.missing is not None:
            given.setdefault(key, feature.missing)
    checked = {key: _checked_default(inputs[key], value) for key, value in given.items()}
    return ServingInput(
        kind="csv",
        inputs=inputs,
        defaults=checked,
        transform=transformer,
        column_names=names,
        input_name=input_name,
        ignore_unknown=ignore_unknown,
    )


def examples(feature_spec: Mapping[str, Any], *, ignore_unknown: bool = False) -> ServingInput:
    """Return a serving input with the single input ``examples``: serialized tf.Examples, bytes ``[batch]``.

    In JSON an instance is ``{"b64": "..."}``. A feature that a tf.Example lacks gets its `default_value`, and is an
    error without one; a missing list is empty. The features are parsed before the graph runs, so that only
    `ExportedModel`, ``estimator serve`` and ``estimator predict`` take such requests. This is the counterpart of
    ``tf.estimator.export.build_parsing_serving_input_receiver_fn``.

    Args:
        feature_spec: `FixedLenFeature`, `VarLenFeature` or `FixedLenSequenceFeature` by name, such as
            ``te.feature_column.make_parse_example_spec(columns)``.
        ignore_unknown: As for `raw_features`, of what callers send beside the tf.Examples.

    Raises:
        InvalidTypeError: The spec is not a dict of such features, or has one of bytes.
        InvalidValueError: A `FixedLenSequenceFeature` has no ``allow_missing=True``.

    >>> receiver = te.serving_input.examples(fc.make_parse_example_spec([fc.numeric_column("age", default_value=40)]))
    >>> receiver.kind, list(receiver.inputs)
    ('examples', ['age'])
    """
    spec: dict[str, ServedFeature] = {}
    inputs: dict[str, RawFeature] = {}
    for name, feature in as_feature_spec(feature_spec).items():
        if not isinstance(feature, ServedFeature) or feature.dtype == "bytes":
            raise InvalidTypeError(
                "a served tf.Example holds FixedLenFeature, VarLenFeature and FixedLenSequenceFeature of numbers or "
                f"text, but {name!r} is {feature!r}."
            )
        if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing:
            raise InvalidValueError(
                f"{name!r} is a FixedLenSequenceFeature, which tf.Examples may lack; give it allow_missing=True."
            )
        if isinstance(feature, FixedLenFeature):
            shape = tuple(feature.shape) or (1,)
        else:
            shape = (*LISTS, *getattr(feature, "shape", ()))
        spec[name] = feature
        inputs[name] = RawFeature(key=name, dtype=feature.dtype, shape=shape)
    defaults: dict[str, Default] = {}
    for name, feature in spec.items():
        if isinstance(feature, FixedLenFeature) and feature.default_value is not None:
            values = list(feature.default_value)
            defaults[name] = values[0] if len(values) == 1 else values
    return ServingInput(
        kind="examples", inputs=inputs, defaults=defaults, feature_spec=spec, ignore_unknown=ignore_unknown
    )


def receiver(inputs: Any, transform: Callable[[dict[str, Expression]], Mapping[str, Expression]]) -> ServingInput:
    """Return a serving input whose features are computed from what callers send, also from strings.

    This is the counterpart of a ``serving_input_receiver_fn`` with placeholders. `transform` is called once, by this
    function, with an expression for each input. What it makes of them by `te.strings` becomes part of the graph. Given
    to `Dataset.map`, the same function makes the same features of the training data.

    A list that `te.strings.split` has made is padded, as rows differ in length: for feature columns with missing values
    (``''`` and -1), for a module without columns as in `Dataset.padded_batch` (``''`` and 0). A module that was trained
    on a feature ``words_length`` gets it, too.

    Args:
        inputs: What callers send: a dict of dtypes, such as ``{"text": "string", "age": "float32"}``, which are inputs
            ``[batch]``; or another serving input. With `csv` these are the fields of a row.
        transform: Function from a dict of `te.strings.Expression` to a dict of the features that the model takes. An
            input that the model takes as it is must be among them. The function may return a changed dict.

    Raises:
        InvalidTypeError: `transform` returns no dict of expressions, or does something that an export cannot compute.
        InvalidValueError: A feature is a condition, an operation got a value that it cannot use, or `transform` reads
            an input that is not there.

    >>> def words(inputs):
    ...     return {"age": inputs["age"], "words": te.strings.split(te.strings.lower(inputs["text"]))}
    >>> receiver = te.serving_input.receiver({"text": "string", "age": "float32"}, words)
    >>> list(receiver.inputs), receiver.features
    (['age', 'text'], {'age': age, 'words': split(text)})
    """
    given = inputs if isinstance(inputs, ServingInput) else json(inputs)
    features: Any = transform(_Inputs(given.features or _expressions(given)))
    if not isinstance(features, Mapping) or not features:
        raise InvalidTypeError(f"transform must return a dict of features, but returned {features!r}.")
    for key, feature in features.items():
        if not isinstance(key, str) or not isinstance(feature, Expression):
            raise InvalidTypeError(
                f"transform must return expressions by name, but {key!r} is {feature!r}; make it from an input."
            )
        if feature.dtype == "bool":
            raise InvalidValueError(
                f"the feature {key!r} is a condition; give te.strings.where(condition, 1.0, 0.0) in its place."
            )
    return replace(given, features=dict(features))


class _Inputs(dict[str, Expression]):
    def __missing__(self, key: str) -> NoReturn:
        raise InvalidValueError(f"transform reads the input {key!r}, but the inputs are {', '.join(self)}.")


def _expressions(given: ServingInput) -> dict[str, Expression]:
    """Return an expression for each input, and for each feature that the module `transform` computes from them."""
    shapes = {key: (feature.dtype, feature.shape) for key, feature in given.inputs.items()}
    if given.transform is not None:
        computed = transform_outputs(given.transform, _input_names(given.transform))
        shapes |= {key: ("float32", (math.prod(shape),)) for key, shape in computed.items()}
    return {key: Expression(key, dtype, shape) for key, (dtype, shape) in shapes.items()}


def _by_name(
    kind: Literal["raw_features", "json"],
    columns: Any,
    defaults: Mapping[str, Default] | None,
    transform: nn.Module | None,
    ignore_unknown: bool,
) -> ServingInput:
    inputs, transformer = _inputs(columns, transform)
    given = _column_defaults(inputs) | dict(defaults or {})
    for key, value in given.items():
        if key not in inputs:
            inputs[key] = _undeclared(key, value)
    checked = {key: _checked_default(inputs[key], value) for key, value in given.items()}
    return ServingInput(
        kind=kind, inputs=inputs, defaults=checked, transform=transformer, ignore_unknown=ignore_unknown
    )


def _column_defaults(inputs: Mapping[str, RawFeature]) -> dict[str, Default]:
    """Return the value that an omitted input has in the feature columns, by the name of its input."""
    return {key: feature.absent for key, feature in inputs.items() if feature.absent is not None}


def _inputs(columns: Any, transform: nn.Module | None) -> tuple[dict[str, RawFeature], nn.Module | None]:
    """Return the inputs of the columns and the transform; features that it computes are replaced by its inputs."""
    features = raw_features_of(columns)
    if transform is None:
        return features, None
    taken = _input_names(transform)
    given = transform_outputs(transform, taken)
    for key in given:
        if key not in features:
            raise InvalidValueError(
                f"the transform {type(transform).__name__} gives {key!r}, which no column reads; "
                f"the columns read {sorted(features)}."
            )
    inputs = {key: feature for key, feature in features.items() if key not in given}
    for key in taken:
        kept = inputs.get(key)
        if kept is not None and (kept.dtype == "string" or kept.shape != (1,)):
            raise InvalidValueError(
                f"the transform {type(transform).__name__} takes {key!r}, but that is {kept.dtype} of shape "
                f"{kept.shape} per row; a transform takes one number."
            )
        # -1 stands for a missing value in a categorical column, but is an ordinary number for a transform.
        inputs[key] = RawFeature(key=key, dtype="float32") if kept is None else replace(kept, missing=None)
    return dict(sorted(inputs.items(), key=lambda item: item[0].encode())), transform


def transform_outputs(transform: nn.Module, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shape per row of each feature that a transform computes, by running it on two rows of ones.

    The transform maps a dict of raw numbers, by name, to a dict of features, tensors with the batch as first dimension;
    anything else is an InvalidTypeError or an InvalidValueError.
    """
    with torch.no_grad():
        result = transform({name: torch.ones(2, 1) for name in names})
    kind = type(transform).__name__
    if not isinstance(result, Mapping) or not result:
        raise InvalidTypeError(f"the transform {kind} must return a dict of features, but returned {result!r}.")
    for key, value in result.items():
        if not isinstance(value, torch.Tensor) or value.dim() < 1 or value.shape[0] != 2:
            raise InvalidValueError(
                f"the transform {kind} must give tensors with the batch first, "
                f"but {key!r} is {_describe(value)} for a batch of 2."
            )
    return {key: tuple(value.shape[1:]) for key, value in result.items()}


def _input_names(transform: nn.Module) -> tuple[str, ...]:
    if not isinstance(transform, nn.Module):
        raise InvalidTypeError(f"transform must be an nn.Module, but got {transform!r}.")
    names = getattr(transform, "input_names", None)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidValueError(
            f"the transform {type(transform).__name__} needs an attribute input_names, "
            "a list of the raw inputs it takes."
        )
    return tuple(str(name) for name in names)


def _undeclared(key: str, value: Any) -> RawFeature:
    """Return the description of an input that no column reads, with the type and shape of its default value."""
    if not isinstance(value, list | tuple) or not value:
        return RawFeature(key=key, dtype=_dtype_of(key, value))
    kinds = {_dtype_of(key, one) for one in value}
    # Use the most general type of the values, so that integers among floats become floats. `_checked_default` later
    # rejects strings among numbers.
    return RawFeature(key=key, dtype=max(kinds, key=("int64", "float32", "string").index), shape=(len(value),))


def _dtype_of(key: str, value: Any) -> RawDtype:
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidTypeError(f"the default of {key!r} must be a string or a number, but got {value!r}.")
    return "int64" if isinstance(value, int) else "float32"


def _checked_default(feature: RawFeature, value: Any) -> Default:
    """Check a default of an input; return it in the form that the export stores."""
    items = value if isinstance(value, (list, tuple)) else [value]
    if feature.dtype == "string":
        fits = all(isinstance(item, str) for item in items)
    else:
        kinds = (int,) if feature.dtype == "int64" else (int, float)
        fits = all(isinstance(item, kinds) and not isinstance(item, bool) for item in items)
        fits = fits and (feature.dtype != "int64" or all(-(2**63) <= item < 2**63 for item in items))
    if feature.multivalent and fits:
        return list(items)
    if not fits or len(items) != torch.Size(feature.shape).numel():
        wanted = feature.dtype if feature.shape == (1,) else f"a list of {feature.dtype} of shape {feature.shape}"
        raise InvalidTypeError(f"the default of {feature.key!r} must be {wanted}, but got {value!r}.")
    if feature.shape != (1,):
        return list(value)
    plain: Default = items[0] if feature.dtype != "float32" else float(items[0])
    return plain


def _describe(value: Any) -> str:
    return f"of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
