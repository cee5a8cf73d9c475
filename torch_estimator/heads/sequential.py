"""Head for models that predict at every step of a sequence: any other head, applied to the steps that exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from torch import Tensor

from torch_estimator.data import arrow
from torch_estimator.data.lists import as_lists, is_lists, list_lengths
from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError
from torch_estimator.heads.base import Head, check_head
from torch_estimator.heads.classification import ClassificationHead
from torch_estimator.heads.multi_head import MultiHead
from torch_estimator.heads.serving import Graph, Prediction, Signature, signatures_of
from torch_estimator.metrics import Features, Metrics

if TYPE_CHECKING:
    from torch_estimator.heads.labels import Labels

Array = np.ndarray[Any, Any]


class SequenceLogits(NamedTuple):
    """Output of a model for a `SequentialHeadWrapper`: the logits of all steps, and which of them exist.

    Attributes:
        logits: float32 ``[N, T, logits dimension]``.
        mask: bool ``[N, T]``, False for the padding of short sequences.

    >>> te.heads.SequenceLogits(torch.zeros(1, 3, 2), torch.tensor([[True, True, False]])).mask.sum()
    tensor(2)
    """

    logits: Tensor
    mask: Tensor


@dataclass(frozen=True)
class SequentialHeadWrapper(Head):
    """Head that applies another head to every step of sequences, and leaves out their padding.

    The model's output is a `SequenceLogits`. Labels are lists with one label for each step, or rows ``[T]`` that are at
    least as long as the sequences. Loss and metrics are those of the other head over all steps of a batch. Predictions
    are those of the other head, ``[N, T, ...]`` (but ``all_class_ids`` and ``all_classes`` ``[N, n_classes]``), and the
    mask, bool ``[N, T]``.

    Args:
        static_head: The other head.
        sequence_length_mask: Key of the mask among the predictions.
        feature_columns: Name of the feature with the weights of the steps, if `static_head` has a `weight_column`. It
            holds lists, as the labels do.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidValueError: `static_head` is a `MultiHead`, its `weight_column` is not in `feature_columns`, or its
            `loss_fn` takes features.

    >>> head = te.heads.SequentialHeadWrapper(te.BinaryClassHead(), sequence_length_mask="mask")
    >>> outputs = te.heads.SequenceLogits(torch.zeros(1, 3, 1), torch.tensor([[True, True, False]]))
    >>> head.loss(outputs, torch.tensor([[0.0, 1.0, 0.0]]))
    tensor(0.6931)
    >>> head.predictions(outputs)["class_ids"].shape, head.predictions(outputs)["mask"].tolist()
    (torch.Size([1, 3, 1]), [[True, True, False]])
    """

    static_head: Head
    sequence_length_mask: str = "sequence_length_mask"
    feature_columns: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        static = check_head(self.static_head)
        if isinstance(static, MultiHead):
            raise InvalidValueError("SequentialHeadWrapper does not take a MultiHead; train a model for each head.")
        if not isinstance(self.sequence_length_mask, str):
            raise InvalidTypeError(
                f"sequence_length_mask must be a string, a key of predictions, but got {self.sequence_length_mask!r}."
            )
        given = self.feature_columns or ()
        names = (given,) if isinstance(given, str) else given
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise InvalidTypeError(f"feature_columns must be names of features, but got {self.feature_columns!r}.")
        if static.weight_column is not None and static.weight_column not in names:
            raise InvalidValueError(
                f"the head weights steps by {static.weight_column!r}, which is not among feature_columns "
                f"{list(names)}; give feature_columns={static.weight_column!r}."
            )
        if static.wants_features:
            raise InvalidValueError("the loss_fn of a SequentialHeadWrapper's head cannot take features.")
        self._set(
            name=None if static.name is None else f"{static.name}_sequential",
            weight_column=static.weight_column,
            loss_reduction=static.loss_reduction,
        )
        super().__post_init__()

    @property
    def logits_dimension(self) -> int:
        """Number of logits of each step."""
        return self.static_head.logits_dimension

    @property
    def prediction_keys(self) -> tuple[str, ...]:
        """Keys of the other head's predictions, and of the mask."""
        return (*self.static_head.prediction_keys, self.sequence_length_mask)

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes; None for a head without classes."""
        return self.static_head.class_names

    @property
    def rows_are_independent(self) -> bool:
        """False, because batches differ in length and cannot be concatenated."""
        return False

    def prepare_labels(self, labels: Labels) -> pa.ListArray:
        """Return the labels of all steps as the other head takes them, in lists, without leaving any out."""
        return self.prepare_steps(labels, None)

    def prepare_steps(self, labels: Labels, lengths: Array | None) -> pa.ListArray:
        """Return the labels of the steps that exist as the other head takes them, in lists.

        Args:
            labels: Lists of labels, or rows of an array ``[N, T]``, whose labels after the last step are left out.
            lengths: Number of steps of each sequence, int64 ``[N]``; None for as many as there are labels.

        Raises:
            RowError: There are not as many labels as steps, or the other head does not take a label.

        >>> import pyarrow as pa
        >>> head = te.heads.SequentialHeadWrapper(te.MultiClassHead(3))
        >>> head.prepare_steps(pa.array([[0, 2], [1]]), np.array([2, 1])).to_pylist()
        [[0, 2], [1]]
        """
        values, offsets = cut_to(labels, lengths, "labels")
        try:
            prepared: Array = self.static_head.prepare_labels(values)
        except RowError as error:
            row = int(np.searchsorted(offsets, error.row, side="right")) - 1
            raise RowError(error.problem, row=row, column=error.column) from error
        if prepared.size != len(values):
            raise InvalidValueError(
                f"a {type(self.static_head).__name__} has several labels in each step, which SequentialHeadWrapper "
                "does not take."
            )
        return _lists(prepared.reshape(-1), offsets)

    def unweighted_loss(self, logits: Any, labels: Tensor, features: Features | None = None) -> Tensor:
        """Return one loss for each step that exists, ``[steps, 1]``."""
        return self.static_head.unweighted_loss(*flat(logits, labels)[:2])

    def loss(
        self, logits: Any, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> Tensor:
        """Return the other head's loss over all steps of a batch, with labels and weights of the steps, ``[N, T]``."""
        return self.static_head.loss(*flat(logits, labels, weights))

    def predictions(self, logits: Any) -> dict[str, Tensor]:
        """Return the other head's predictions for each step, ``[N, T, ...]``, and the mask, bool ``[N, T]``."""
        outputs = check_outputs(logits)
        return {**self.static_head.predictions(outputs.logits), self.sequence_length_mask: outputs.mask}

    def decode(self, predictions: dict[str, Array]) -> dict[str, Array]:
        """Add the other head's predictions that are not numeric, such as names of classes."""
        key = self.sequence_length_mask
        return {**self.static_head.decode(predictions), key: predictions[key]}

    def metrics(self) -> Metrics:
        """Return new metrics for one evaluation: those of the other head, over all steps."""
        return _StepMetrics(self.static_head.metrics())

    def signatures(self) -> dict[str, Signature]:
        """Return the only signature, that of prediction."""
        return signatures_of(self.prediction_keys)

    def lower(self, graph: Graph, logits: Prediction) -> dict[str, Prediction]:
        """Add the computation of the predictions to an ONNX graph; see `Head.lower`."""
        if logits.mask is None:
            raise InvalidValueError("only the models of te.experimental can be exported with a SequentialHeadWrapper.")
        width = self.logits_dimension
        steps = graph.op("Reshape", logits.tensor, graph.constant([-1, width], np.int64))
        static = self.static_head
        made = static.lower(graph, Prediction(tensor=steps, dtype=logits.dtype, row_shape=(width,)))
        sizes = graph.op("Shape", logits.tensor, start=0, end=2)
        predictions = {}
        for key, one in made.items():
            shape = graph.op("Concat", sizes, graph.constant(list(one.row_shape), np.int64), axis=0)
            tensor = graph.op("Reshape", one.tensor, shape)
            predictions[key] = Prediction(tensor=tensor, dtype=one.dtype, row_shape=(-1, *one.row_shape))
        if isinstance(static, ClassificationHead):
            # As in tf.estimator, these are given for each row, not for each step.
            predictions |= static.lower_all_classes(graph, logits.tensor)
        mask = Prediction(tensor=logits.mask, dtype="DT_BOOL", row_shape=(-1,))
        return {**predictions, self.sequence_length_mask: mask}


class _StepMetrics:
    """Metrics over the steps that exist: removes the padding of each batch, and hands the rest to other metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def update(
        self, logits: Any, labels: Tensor, weights: Tensor | None = None, features: Features | None = None
    ) -> None:
        self._metrics.update(*flat(logits, labels, weights))

    def compute(self) -> dict[str, float]:
        return self._metrics.compute()


def check_outputs(outputs: object) -> SequenceLogits:
    """Return the output of a model, a tuple of logits and mask, as a `SequenceLogits`."""
    if isinstance(outputs, tuple) and len(outputs) == 2:
        logits, mask = outputs
        if isinstance(logits, Tensor) and isinstance(mask, Tensor) and mask.shape == logits.shape[:2]:
            return SequenceLogits(logits, mask)
    raise InvalidValueError(
        "SequentialHeadWrapper takes te.heads.SequenceLogits, logits [N, T, D] with their mask [N, T], but the model "
        f"gave {[list(one.shape) for one in outputs] if isinstance(outputs, tuple) else type(outputs).__name__}."
    )


def flat(outputs: object, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the logits ``[steps, D]``, the labels and the weights ``[steps, 1]`` of the steps that exist."""
    logits, mask = check_outputs(outputs)

    def existing(values: Tensor, what: str) -> Tensor:
        # A batch without any step has one step of padding, but no label.
        if values.shape[1] < mask.shape[1] and mask[:, values.shape[1] :].any():
            raise InvalidValueError(f"sequences have {mask.shape[1]} steps, but there are {values.shape[1]} {what}.")
        values = values[:, : mask.shape[1]]
        return values[mask[:, : values.shape[1]]].unsqueeze(-1)

    return logits[mask], existing(labels, "labels"), None if weights is None else existing(weights, "weights")


def cut_to(column: Any, lengths: Array | None, what: str) -> tuple[Any, Array]:
    """Return the values of all steps, one row after the other, and their offsets, int64 ``[N + 1]``.

    `column` holds lists of values, one for each step, or rows of an array, whose values after the last step are left
    out. None as `lengths` stands for as many steps as there are values.
    """
    may_be_longer = isinstance(column, np.ndarray)
    lists = as_lists(column[..., 0] if may_be_longer and column.ndim == 3 and column.shape[2] == 1 else column)
    if not is_lists(lists) or (may_be_longer and column.ndim == 1):
        raise InvalidValueError(f"a SequentialHeadWrapper takes {what} for each step: lists, or an array [N, T].")
    counts = list_lengths(lists)
    lengths = counts if lengths is None else lengths
    wrong = counts < lengths if may_be_longer else counts != lengths
    if wrong.any():
        row = int(wrong.argmax())
        raise RowError(f"there are {counts[row]} {what}, but the sequence has {lengths[row]} steps", row=row)
    values = lists.flatten()
    starts = np.cumsum(counts) - counts
    within = np.arange(len(values)) - np.repeat(starts, counts) < np.repeat(lengths, counts)
    kept = values if within.all() else values.filter(pa.array(within))
    return kept, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def step_weights(column: Any, lengths: Array | None, name: str) -> pa.ListArray:
    """Return the weights of all steps as lists of float32."""
    values, offsets = cut_to(column, lengths, "weights")
    weights = arrow.to_numpy(values)
    if weights.dtype.kind not in "biuf":
        raise RowError("weights must be numbers", row=0, column=name)
    bad = np.flatnonzero(~np.isfinite(weights))
    if len(bad):
        row = int(np.searchsorted(offsets, bad[0], side="right")) - 1
        raise RowError(f"a weight must be a finite number, but this is {weights[bad[0]]}", row=row, column=name)
    return _lists(weights.astype(np.float32), offsets)


def _lists(values: Array, offsets: Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(arrow.from_numpy(offsets.astype(np.int32)), arrow.from_numpy(values))
