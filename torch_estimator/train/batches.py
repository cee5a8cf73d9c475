"""Conversion of batches: from the columns of an input to tensors on the model's device."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from torch_estimator import tree
from torch_estimator.data.columns import Column, Columns, to_numpy
from torch_estimator.data.lists import as_matrix, is_lists, list_lengths
from torch_estimator.errors import DataError, RowError, UserError
from torch_estimator.feature_column.layouts import SEQUENCE_LENGTHS
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.floating import as_float32, cast, check_fits
from torch_estimator.heads.base import Head
from torch_estimator.heads.function_head import FunctionHead
from torch_estimator.heads.sequential import SequentialHeadWrapper, step_weights

logger = logging.getLogger("torch_estimator")

_WEIGHTS = "head/weights"
_LOSS_FEATURES = "head/features"
_RAW = "raw columns"


class TensorBatch(NamedTuple):
    """One batch as tensors on the model's device.

    Attributes:
        features: The module's input: a tensor, or a dict or tuple of tensors.
        labels: A tensor, a dict or tuple of tensors, or None.
        weights: ``[batch, 1]``, or None. With a `MultiHead`, a dict by head; `WeightsAndFeatures` if the loss function
            takes features.
        raw: The raw columns that metrics or predictions need, by name, in host memory; or None.
    """

    features: Any
    labels: Any
    weights: Any
    raw: Any = None


@dataclass(frozen=True, slots=True)
class Batches:
    """Range of consecutive batches of equal length in one block of memory.

    Attributes:
        whole: The whole block: the rows of these batches, and of other batches before and after them.
        of: Number of batches in ``whole``.
        start: Index in ``whole`` of the first of these batches.
        count: Number of these batches, 1 or more.
        lasting: Whether later batches will be in the same block of memory.
    """

    whole: TensorBatch
    of: int = 1
    start: int = 0
    count: int = 1
    lasting: bool = False

    def batch(self, number: int) -> TensorBatch:
        """Return the batch at index ``number`` of this range, counted from 0."""
        if self.of == 1:
            return self.whole
        rows = batch_size(self.whole.features) // self.of
        first = (self.start + number) * rows
        return tree.slice_rows(self.whole, first, first + rows)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[TensorBatch]:
        return map(self.batch, range(self.count))


class WeightsAndFeatures(NamedTuple):
    """Weights and numeric features of a batch, for a head whose ``loss_fn`` takes features as well.

    The features are the numeric raw columns by name.
    """

    weights: Any
    features: dict[str, Tensor]


def weight_arguments(weights: Any) -> tuple[Any, ...]:
    """Return what a head's loss and metrics take after the labels: weights and, if needed, features.

    `weights` is that of a `TensorBatch`.
    """
    return tuple(weights) if isinstance(weights, WeightsAndFeatures) else (weights,)


class HostTransform:
    """Preparation of a batch's raw columns on the CPU: transformed features, weights and labels.

    Args:
        transform: The part of the feature columns that runs here, or None to leave the features unchanged.
        head: Prepares the labels; None leaves labels unchanged.
        needs: The head, or the `FunctionHead` in place of one, which says whether weights and features are needed.
        with_labels: Whether labels are needed; prediction needs none.
        raw: Names of raw columns to keep in addition to the output of ``transform``; None keeps all of them.
        floating: Dtype to which `to_tensors` will convert floating features (if there is no transform) and labels (if
            there is no head). Numbers that are too large for this dtype are an error.
        forwarded: Features that predictions and exports will forward, but training does not read.

    Attributes:
        others: Whether columns other than those in `required` are needed as well.
        wants_raw: Whether raw columns are kept.
        note: Called once with the next raw features, if it is not None.
    """

    def __init__(
        self,
        transform: FeatureTransform | None,
        head: Head | None,
        *,
        needs: Head | FunctionHead | None = None,
        with_labels: bool,
        raw: Sequence[str] | None = (),
        floating: torch.dtype | None = None,
        forwarded: Sequence[str] = (),
    ) -> None:
        self._transform = transform
        self._forwarded = forwarded
        self._raw = None if raw is None else tuple(raw)
        self.wants_raw = self._raw != ()
        self._head = head
        self._sequential = head if isinstance(head, SequentialHeadWrapper) else None
        self._floating = floating
        self._with_labels = with_labels
        needs = needs or head
        self._loss_features = needs is not None and with_labels and needs.wants_features
        self.others = raw is None or self._loss_features
        self._weight_columns = needs.weight_columns if needs is not None and with_labels else {}
        self.note: Callable[[Columns], None] | None = None

    @property
    def required(self) -> dict[str, pa.DataType | None] | None:
        """Names of the raw columns to read, with the Arrow type to convert each to; None to read all, unconverted."""
        if self._transform is None:
            return None
        required: dict[str, pa.DataType | None] = dict(self._transform.required)
        for column in self._weight_columns.values():
            required.setdefault(column, pa.list_(pa.float32()) if self._sequential else pa.float32())
        for key in self._raw or ():
            required.setdefault(key, None)
        return required

    @property
    def list_padding(self) -> dict[str, int]:
        """Padding value of each raw column that contains lists of ids, by the name of the column.

        If a `map` of the input takes batches, lists are padded to one length for it, before the feature columns process
        them. The padding value is -1, which feature columns treat as a missing id.
        """
        required = {} if self._transform is None else self._transform.required
        lists = {name: kind.value_type for name, kind in required.items() if pa.types.is_list(kind)}
        return {name: -1 for name, kind in lists.items() if pa.types.is_integer(kind)}

    @property
    def missing(self) -> dict[str, float]:
        """Number that replaces a missing one, by the name of the raw column; only of columns with such a number.

        For vectors it is NaN, since each of their numbers has a default of its own.
        """
        features = {} if self._transform is None else self._transform.raw_features
        there = {name: one.absent if one.missing is None else one.missing for name, one in features.items()}
        weights = set(self._weight_columns.values())
        return {
            name: math.nan if isinstance(value, list) else value
            for name, value in there.items()
            if value is not None and name not in weights
        }

    def see_names(self, names: Sequence[str]) -> None:
        """Log a line if the input lacks features that are to be forwarded; only the first call can do so."""
        absent, self._forwarded = [key for key in self._forwarded if key not in names], ()
        if absent:
            logger.info(
                "te.forward_features names %s, but the training input has only %s. Estimator.predict needs it in "
                "its input, and an export in its serving input.",
                ", ".join(map(repr, absent)),
                ", ".join(map(str, names)),
            )

    def __call__(self, features: Columns, labels: Column | None) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Return the prepared features of a batch, and its labels in the form that the head takes."""
        if self.note is not None:
            note, self.note = self.note, None
            note(features)
        if self._transform is None and self._floating is not None:
            _check_columns(features, self._floating, "number")
        prepared: Any = features if self._transform is None else self._transform(features)
        lengths = prepared.get(SEQUENCE_LENGTHS) if isinstance(prepared, Mapping) else None
        if self._weight_columns:
            weights = {
                head: _weights(features, column)
                if self._sequential is None
                else step_weights(_weight_column(features, column), lengths, column)
                for head, column in self._weight_columns.items()
            }
            prepared = {**prepared, _WEIGHTS: weights}
        if self._loss_features:
            numbers = _numbers(features)
            prepared = {**prepared, _LOSS_FEATURES: numbers}
        if self._transform is not None and self.wants_raw:
            prepared = {**prepared, _RAW: {key: features[key] for key in (self._raw or features)}}
        if not self._with_labels:
            return prepared, None
        if self._head is None:
            if self._floating == torch.float32:
                _check_columns(labels, torch.float32, "label")
            return prepared, tree.map(_even_lists, labels)
        if labels is None:
            raise DataError(
                "The input gives features only, but training and evaluation need labels: let input_fn return "
                "(features, labels) pairs, or name the label column of the Dataset."
            )
        if self._sequential is not None:
            return prepared, self._sequential.prepare_steps(labels, lengths)
        return prepared, self._head.prepare_labels(labels)


def to_tensors(features: Any, labels: Any, device: torch.device, floating: torch.dtype | None = None) -> TensorBatch:
    """Return one batch of a Dataset as tensors on a device; arrays of strings stay numpy arrays.

    Floating features get the dtype `floating`, unless it is None. If this is float32, float64 labels become float32 as
    well, because float64 is only numpy's default. Integers stay integers.
    """
    weights, raw = None, features
    if isinstance(features, Mapping):
        if _WEIGHTS in features:
            raw = features = dict(features)
            weights = _tensors(features.pop(_WEIGHTS), device)
            weights = weights.get(None, weights)
        if _LOSS_FEATURES in features:
            raw = features = dict(features)
            weights = WeightsAndFeatures(weights, _tensors(features.pop(_LOSS_FEATURES), device))
        if isinstance(features.get(_RAW), Mapping):
            features = dict(features)
            raw = features.pop(_RAW)
    tensors = TensorBatch(_tensors(features, device), _tensors(labels, device), weights, raw)
    if floating is None:
        return tensors
    labels = cast(tensors.labels, floating, only=torch.float64) if floating == torch.float32 else tensors.labels
    return tensors._replace(features=cast(tensors.features, floating), labels=labels)


def batch_size(features: Any) -> int:
    """Return the number of rows of a batch of features."""
    first = features
    while isinstance(first, Mapping | tuple | list):
        first = next(iter(first.values())) if isinstance(first, Mapping) else first[0]
    return len(first)


def _check_columns(
    columns: Any, dtype: torch.dtype, what: str, *, column: str | None = None, label: str | None = None
) -> None:
    """Raise a `RowError` if a number in a column, or in a dict or tuple of columns, is too large for a dtype."""
    if isinstance(columns, Mapping):
        for key, one in columns.items():
            name = {"label" if what == "label" else "column": str(key)}
            _check_columns(one, dtype, what, **name)
    elif isinstance(columns, tuple):
        for one in columns:
            _check_columns(one, dtype, what, column=column, label=label)
    elif isinstance(columns, np.ndarray):
        check_fits(columns, dtype, what, column=column, label=label)
    elif is_lists(columns) and pa.types.is_floating(columns.type.value_type):
        try:
            check_fits(to_numpy(columns.flatten()), dtype, what)
        except RowError as error:
            row = int(np.searchsorted(np.cumsum(list_lengths(columns)), error.row, side="right"))
            raise RowError(error.problem, row=row, column=column, label=label) from error


def _tensors(values: Any, device: torch.device) -> Any:
    return tree.map(lambda value: _tensor(value, device), values)


def _tensor(value: Any, device: torch.device) -> Any:
    if isinstance(value, pa.Array):
        value = to_numpy(value)
    if isinstance(value, np.ndarray):
        if value.dtype == object or value.dtype.kind in "SUM":
            return value
        # Arrays of Arrow, in memory and in a cache are read-only. Copy them, because torch has no read-only tensors.
        value = torch.from_numpy(value if value.flags.writeable else value.copy())
    if isinstance(value, Tensor) and device.type != "cpu":
        if device.type == "cuda":
            # Pin the memory, because only a copy from pinned memory to the GPU is asynchronous.
            value = value.pin_memory()
        return value.to(device, non_blocking=True)
    return value


def _even_lists(labels: Column) -> Column:
    """Return labels that are lists of equal length as an array, and other labels unchanged.

    This is for models without a head; a head converts its labels itself.
    """
    if is_lists(labels) and len(set(list_lengths(labels).tolist())) == 1:
        return as_matrix(labels, None)
    return labels


def _numbers(features: Any) -> dict[str, np.ndarray]:
    if not isinstance(features, Mapping):
        raise DataError("The loss or a metric takes features, but the input's have no names; give a dict.")
    return {
        name: column
        for name, column in features.items()
        if isinstance(column, np.ndarray) and column.dtype.kind in "biuf"
    }


def _weight_column(features: Columns, name: str) -> Any:
    if not isinstance(features, Mapping):
        raise DataError(f"The weight column {name!r} needs features with names, but they have none; give a dict.")
    if name not in features:
        raise DataError(
            f"The weight column {name!r} is not among the features {sorted(features)}; add it to the input or "
            "change weight_column."
        )
    return features[name]


def _weights(features: Columns, name: str) -> np.ndarray:
    column = to_numpy(_weight_column(features, name))
    try:
        weights = as_float32(column, "weight", name)
    except RowError:
        raise
    except (TypeError, ValueError) as error:
        raise RowError(f"weights must be numbers ({error})", row=0, column=name) from error
    weights = weights.reshape(len(weights), -1)
    if weights.shape[1] != 1:
        raise RowError(f"a weight must be one number, but these are {weights.shape[1]}", row=0, column=name)
    bad = np.flatnonzero(~np.isfinite(weights))
    if len(bad):
        raise RowError(
            f"a weight must be a finite number, but this is {weights[bad[0], 0]}", row=int(bad[0]), column=name
        )
    return weights


_NO_LABELS = object()


@contextmanager
def noting_batch(module: nn.Module, features: Any, labels: Any = _NO_LABELS) -> Iterator[None]:
    """Add a note to an error from the body: which module failed, and the shapes and dtypes of its batch.

    The type and the message of the error do not change. Errors of this package get no note, because their messages are
    written for the user already.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        with_labels = "" if labels is _NO_LABELS else f" and labels {described(labels)}"
        error.add_note(
            f"The module {type(module).__name__} failed in mode {'train' if module.training else 'eval'} on a batch of "
            f"features {described(features)}{with_labels}.{_cause(module, error)}"
        )
        raise


def _cause(module: nn.Module, error: Exception) -> str:
    """Return which layer cannot take its input, for an id outside of a table and for batch norm of one row, or ""."""
    names = {id(layer): f"{name} ({type(layer).__name__})" for name, layer in module.named_modules()}
    traceback = error.__traceback__
    while traceback is not None:
        local = traceback.tb_frame.f_locals
        layer, given = local.get("self"), local.get("input")
        traceback = traceback.tb_next
        if id(layer) not in names or not isinstance(given, Tensor):
            continue
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            wrong = given[(given < 0) | (given >= layer.num_embeddings)]
            if len(wrong):
                rows = layer.num_embeddings
                return f" {names[id(layer)]} has {rows} rows, for ids from 0 to {rows - 1}, but got the id {wrong[0]}."
        elif isinstance(layer, nn.modules.batchnorm._NormBase) and "more than 1 value" in str(error):
            return (
                f" {names[id(layer)]} cannot normalize one row in training; leave out the last batch if it is "
                "shorter: batch(size, drop_remainder=True)."
            )
    if "Target" in str(error) and "out of bounds" in str(error):
        return " The labels must go from 0 to the number of the module's outputs less one."
    return ""


def described(value: Any) -> str:
    """Return the dtypes and shapes of a tensor, or of a dict or tuple of tensors, as text."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {described(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(described, value)) + ")"
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "None" if value is None else f"strings {list(value.shape)}" if hasattr(value, "shape") else repr(value)
