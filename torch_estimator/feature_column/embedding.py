"""Embedding columns: categorical columns as learned vectors, which several columns can share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.checks import as_items, check_flag, check_text, is_count, plain, set_fields
from torch_estimator.feature_column.column import CategoricalColumn, DenseColumn, NetworkInputs, check_categorical

Combiner = Literal["mean", "sqrtn", "sum"]
Initializer: TypeAlias = Callable[[torch.Tensor], object]


@dataclass(frozen=True, slots=True)
class EmbeddingColumn(DenseColumn):
    """Column that gives a network a learned vector for each id of a categorical column.

    The vectors of a row with several ids are combined; a row without an id gives zeros.

    Args:
        categorical_column: The column whose ids have vectors.
        dimension: Length of the vectors.
        combiner: ``"mean"``, ``"sqrtn"`` (sum over the square root of the count) or ``"sum"``.
        initializer: Fills a float32 tensor ``[num_buckets, dimension]`` in place. It draws from torch's global random
            state, as ``torch.nn.init.xavier_uniform_`` does. By default vectors have a normal distribution with a
            standard deviation of ``1 / sqrt(dimension)``, truncated at two standard deviations.
        max_norm: Length to which longer vectors are shortened when they are looked up, before they are combined. The
            variable itself does not change.
        trainable: Whether training changes the vectors.

    Raises:
        InvalidTypeError: `categorical_column` is not a column.
        InvalidValueError: `categorical_column` is not a categorical column, or another argument is out of range.

    >>> job = fc.embedding_column(fc.categorical_column_with_hash_bucket("job", 100), dimension=8)
    >>> transform = fc.FeatureTransform(dnn_columns=[job])
    >>> features = transform({"job": np.array(["clerk", "farmer", ""])})
    >>> vectors = fc.InputLayer(transform.dnn)({key: torch.as_tensor(value) for key, value in features.items()})
    >>> vectors.shape, bool((vectors[2] == 0).all())
    (torch.Size([3, 8]), True)
    """

    dimension: int
    combiner: Combiner = "mean"
    initializer: Initializer | None = None
    max_norm: float | None = None
    trainable: bool = True

    def __post_init__(self) -> None:
        check_categorical(self.categorical_column, "embedding_column")
        set_fields(self, dimension=plain(self.dimension), max_norm=plain(self.max_norm))
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
        """Name of the column: ``<column>_embedding``."""
        return f"{self.categorical_column.name}_embedding"

    @property
    def variable(self) -> str:
        """Name of the variable that holds the vectors: the name of the column."""
        return self.name

    @property
    def width(self) -> int:
        """Number of floats in each row: the length of a vector."""
        return self.dimension

    def add_to_network(self, inputs: NetworkInputs) -> None:
        """Add the vectors to the inputs of a network."""
        inputs.add_vectors(self)


embedding_column = EmbeddingColumn


@dataclass(frozen=True, slots=True)
class SharedEmbeddingColumn(EmbeddingColumn):
    """Embedding column that shares its vectors with other columns. Created by `shared_embeddings`.

    Attributes:
        collection: Name of the vectors' variable.

    >>> seen, bought = (fc.categorical_column_with_identity(key, 1000) for key in ("seen", "bought"))
    >>> fc.shared_embeddings([seen, bought], dimension=8)[0].collection
    'bought_seen_shared_embedding'
    """

    collection: str = field(kw_only=True)

    @property
    def name(self) -> str:
        """Name of the column: ``<column>_shared_embedding``."""
        return f"{self.categorical_column.name}_shared_embedding"

    @property
    def variable(self) -> str:
        """Name of the variable that holds the vectors, which several columns share."""
        return self.collection


def shared_embeddings(
    categorical_columns: Iterable[CategoricalColumn],
    dimension: int,
    combiner: Combiner = "mean",
    initializer: Initializer | None = None,
    shared_embedding_collection_name: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> list[SharedEmbeddingColumn]:
    """Return an embedding column for each categorical column. All of them look up vectors in one table.

    Args:
        categorical_columns: One or more columns of the same class with the same `num_buckets`, for instance with the
            same vocabulary. For a weighted column, the class of the column that it adds weights to counts.
        dimension: Length of the vectors.
        combiner: How the vectors of a row with several ids are combined, as in `embedding_column`.
        initializer: Fills the table, as in `embedding_column`.
        shared_embedding_collection_name: Name of the vectors' variable; by default the sorted names of the columns
            joined by ``_``, and ``_shared_embedding``.
        max_norm: Length to which longer vectors are shortened, as in `embedding_column`.
        trainable: Whether training changes the vectors.

    Returns:
        One column for each of `categorical_columns`, in their order.

    Raises:
        InvalidTypeError: An item is not a column.
        InvalidValueError: There are no columns, or they differ in kind or number of ids, or another argument is out of
            range.

    >>> seen, bought = (fc.categorical_column_with_identity(key, 1000) for key in ("seen", "bought"))
    >>> transform = fc.FeatureTransform(dnn_columns=fc.shared_embeddings([seen, bought], dimension=8))
    >>> features = transform({"seen": np.array([3]), "bought": np.array([3])})
    >>> vectors = fc.InputLayer(transform.dnn)({key: torch.as_tensor(value) for key, value in features.items()})
    >>> vectors.shape, torch.equal(vectors[:, :8], vectors[:, 8:])
    (torch.Size([1, 16]), True)
    """
    columns = as_items(categorical_columns, "categorical_columns of shared_embeddings")
    if not columns:
        raise InvalidValueError("shared_embeddings takes one or more categorical columns, but got none.")
    for column in columns:
        check_categorical(column, "shared_embeddings")
    _check_alike(columns)
    name = shared_embedding_collection_name
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidTypeError(f"shared_embedding_collection_name must be a non-empty string, but got {name!r}.")
    check_text(name or "", "shared_embedding_collection_name")
    collection = name or "_".join(sorted(column.name for column in columns)) + "_shared_embedding"
    return [
        SharedEmbeddingColumn(
            column, dimension, combiner, initializer, max_norm=max_norm, trainable=trainable, collection=collection
        )
        for column in columns
    ]


shared_embedding_columns = shared_embeddings


def _check_alike(columns: tuple[CategoricalColumn, ...]) -> None:
    """Raise InvalidValueError unless columns have the same class and the same number of ids."""
    first = columns[0]
    for column in columns[1:]:
        if column.num_buckets != first.num_buckets:
            raise InvalidValueError(
                f"columns that share embeddings must have the same number of ids, but {first.name!r} has "
                f"{first.num_buckets} and {column.name!r} {column.num_buckets}."
            )
        kinds = [type(one.unweighted) for one in (first, column)]
        if kinds[0] is not kinds[1]:
            raise InvalidValueError(
                f"columns that share embeddings must be of one kind, but {first.name!r} is a "
                f"{kinds[0].__name__} and {column.name!r} a {kinds[1].__name__}."
            )
