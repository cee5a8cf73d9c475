"""Feature specs of tf.Examples, made from feature columns, as in tf.feature_column and tf.estimator."""

from __future__ import annotations

from typing import Any

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.raw_feature import RawFeature, raw_features_of
from torch_estimator.tfrecord.features import Feature, FixedLenFeature, VarLenFeature


def make_parse_example_spec(feature_columns: Any) -> dict[str, Feature]:
    """Return the features of a tf.Example that feature columns read, for `Dataset.from_tfrecord`.

    A numeric column reads a `FixedLenFeature` with its shape and `default_value` (NaN beside a
    `missing_indicator_column`). A categorical column reads one value,
    which may be missing, or a `VarLenFeature` if it is ``multivalent``. (In tf.feature_column it always reads a
    `VarLenFeature`.)

    Args:
        feature_columns: As for `schema`.

    Raises:
        InvalidTypeError: An item is not a feature column.
        InvalidValueError: Two columns read a key as different types.

    >>> age = fc.numeric_column("age", default_value=40)
    >>> tags = fc.categorical_column_with_hash_bucket("tags", 100, multivalent=True)
    >>> for name, feature in fc.make_parse_example_spec([age, tags]).items():
    ...     print(name, feature)
    age FixedLenFeature(shape=(1,), dtype='float32', default_value=(40.0,))
    tags VarLenFeature(dtype='string')
    """
    return {name: _feature(one) for name, one in raw_features_of(feature_columns).items()}


def classifier_parse_example_spec(
    feature_columns: Any,
    label_key: str,
    label_dtype: Any = "int64",
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Feature]:
    """Return the features of a tf.Example that a classifier reads: those of its columns, the label and the weight.

    Args:
        feature_columns: As for `schema`.
        label_key: Name of the feature with the label.
        label_dtype: ``"int64"``, or ``"string"`` for a classifier with a `label_vocabulary`.
        label_default: Label of a tf.Example that has none; None makes it an error.
        weight_column: Name of the feature with the weights, or a numeric column.

    Raises:
        InvalidValueError: A column reads the label.

    >>> te.classifier_parse_example_spec([fc.numeric_column("x")], "y")["y"]
    FixedLenFeature(shape=(1,), dtype='int64', default_value=None)
    """
    label = FixedLenFeature([1], label_dtype, label_default)
    return _with_label(feature_columns, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Any,
    label_key: str,
    label_dtype: Any = "float32",
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Feature]:
    """Return the features of a tf.Example that a regressor reads: those of its columns, the label and the weight.

    Args:
        feature_columns: As for `schema`.
        label_key: Name of the feature with the label.
        label_dtype: Type of the label.
        label_default: Label of a tf.Example that has none; None makes it an error.
        label_dimension: Number of values in a label.
        weight_column: Name of the feature with the weights, or a numeric column.

    Raises:
        InvalidValueError: A column reads the label.

    >>> te.regressor_parse_example_spec([fc.numeric_column("x")], "y", label_default=0.0)["y"]
    FixedLenFeature(shape=(1,), dtype='float32', default_value=(0.0,))
    """
    label = FixedLenFeature([label_dimension], label_dtype, label_default)
    return _with_label(feature_columns, label_key, label, weight_column)


def _with_label(feature_columns: Any, key: str, label: Feature, weight_column: Any) -> dict[str, Feature]:
    spec = make_parse_example_spec(feature_columns)
    if key in spec:
        raise InvalidValueError(
            f"label_key is {key!r}, which a feature column reads; a label cannot be a feature, too."
        )
    spec[key] = label
    if weight_column is None:
        return spec
    if isinstance(weight_column, str):
        return {**spec, weight_column: FixedLenFeature([1], "float32")}
    return {**spec, **make_parse_example_spec([weight_column])}


def _feature(feature: RawFeature) -> Feature:
    if feature.multivalent:
        return VarLenFeature(feature.dtype)
    if feature.dtype == "string":
        return FixedLenFeature([], "string", "")
    if feature.missing is not None and feature.absent is None:
        return FixedLenFeature([], feature.dtype, feature.missing)
    return FixedLenFeature(feature.shape, feature.dtype, feature.absent)
