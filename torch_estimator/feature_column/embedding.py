"""A categorical column as learned vectors, for networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.categorical import CategoricalColumn, check_categorical
from torch_estimator.feature_column.checks import check_flag, is_count, plain
from torch_estimator.feature_column.raw_feature import RawFeature

Combiner = Literal["mean", "sqrtn", "sum"]
Initializer: TypeAlias = Callable[[torch.Tensor], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingColumn:
    """One vector per id of a categorical column; made by `embedding_column`."""

    categorical_column: CategoricalColumn
    dimension: int
    combiner: Combiner = "mean"
    initializer: Initializer | None = None
    max_norm: float | None = None
    trainable: bool = True

    def __post_init__(self) -> None:
        check_categorical(self.categorical_column, "embedding_column")
        check_flag(self.trainable, f"trainable of embedding column {self.name!r}")
        if not is_count(self.dimension, 1):
            raise InvalidValueError(
                f"dimension of embedding column {self.name!r} must be a positive integer, but got {self.dimension!r}."
            )
        if not isinstance(self.combiner, str) or self.combiner not in get_args(Combiner):
            raise InvalidValueError(
                f"combiner of embedding column {self.name!r} must be 'mean', 'sqrtn' or 'sum', but got "
                f"{self.combiner!r}."
            )
        if self.initializer is not None and not callable(self.initializer):
            raise InvalidValueError(
                f"initializer of embedding column {self.name!r} must be None or a callable that fills a "
                "tensor, "
                f"but got {self.initializer!r}."
            )
        norm = self.max_norm
        if norm is not None and (
            not isinstance(norm, int | float) or isinstance(norm, bool) or not 0 < norm < math.inf
        ):
            raise InvalidValueError(
                f"max_norm of embedding column {self.name!r} must be None or a positive number, but got {norm!r}."
            )

    @property
    def name(self) -> str:
        """``<column>_embedding``."""
        return f"{self.categorical_column.name}_embedding"

    @property
    def variable(self) -> str:
        """Name of the vectors' variable: that of the column."""
        return self.name

    @property
    def width(self) -> int:
        """Numbers per row: the dimension."""
        return self.dimension

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """Those of the categorical column."""
        return self.categorical_column.raw_features


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: Combiner = "mean",
    initializer: Initializer | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> EmbeddingColumn:
    """Turns a categorical column into a learned vector.

    The vectors of a row with several ids are combined; a row without an id gives zeros.

    Args:
        categorical_column: What is embedded.
        dimension: Length of the vectors.
        combiner: ``"mean"``, ``"sqrtn"`` (sum over the square root of the count) or ``"sum"``.
        initializer: Fills a float32 tensor ``[num_buckets, dimension]`` in place, drawing from torch's global
            random state, for instance ``torch.nn.init.xavier_uniform_``. By default a normal distribution
            with a standard deviation of ``1 / sqrt(dimension)``, cut at two of them.
        max_norm: Vectors longer than this are shortened to it where they are looked up, before they are combined; the
            variable itself keeps them as they are.
        trainable: False keeps the vectors as they are.

    Raises:
        InvalidTypeError: What is given is no column.
        InvalidValueError: It is no categorical column, or another argument is out of range.

    >>> from torch_estimator.feature_column import categorical_column_with_hash_bucket
    >>> embedding_column(categorical_column_with_hash_bucket("occupation", 100), dimension=8).name
    'occupation_embedding'
    """
    return EmbeddingColumn(
        categorical_column=categorical_column,
        dimension=plain(dimension),
        combiner=combiner,
        initializer=initializer,
        max_norm=plain(max_norm),
        trainable=trainable,
    )
