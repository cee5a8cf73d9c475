"""Several categorical columns embedded by the same vectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.categorical import CategoricalColumn, check_categorical
from torch_estimator.feature_column.checks import as_items, check_text, plain
from torch_estimator.feature_column.embedding import Combiner, EmbeddingColumn, Initializer
from torch_estimator.feature_column.weighted import WeightedCategoricalColumn


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedEmbeddingColumn(EmbeddingColumn):
    """One vector per id, shared with other columns; made by `shared_embeddings`.

    Attributes:
        collection: Name of the vectors' variable.
    """

    collection: str

    @property
    def name(self) -> str:
        """``<column>_shared_embedding``."""
        return f"{self.categorical_column.name}_shared_embedding"

    @property
    def variable(self) -> str:
        """The collection's name."""
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
    """Turns several categorical columns into vectors of one table, so that an id means the same in all of them.

    Args:
        categorical_columns: Columns of one kind with the same `num_buckets` (of the same words, say); two or more,
            or one. Weighted columns count as what they weigh.
        dimension, combiner, initializer, max_norm, trainable: As for `embedding_column`.
        shared_embedding_collection_name: Name of the vectors' variable; by default the sorted names of the columns
            joined by ``_``, and ``_shared_embedding``.

    Returns:
        One column for each of `categorical_columns`, in their order.

    Raises:
        InvalidTypeError: Something given is no column.
        InvalidValueError: There are none, or they differ in kind or number of ids, or another argument is out of range.

    >>> from torch_estimator.feature_column import categorical_column_with_identity
    >>> seen, bought = (categorical_column_with_identity(key, 1000) for key in ("seen", "bought"))
    >>> [column.name for column in shared_embeddings([seen, bought], dimension=8)]
    ['seen_shared_embedding', 'bought_shared_embedding']
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
            categorical_column=column,
            dimension=plain(dimension),
            combiner=combiner,
            initializer=initializer,
            max_norm=plain(max_norm),
            trainable=trainable,
            collection=collection,
        )
        for column in columns
    ]


shared_embedding_columns = shared_embeddings


def _check_alike(columns: tuple[CategoricalColumn, ...]) -> None:
    first = columns[0]
    for column in columns[1:]:
        if column.num_buckets != first.num_buckets:
            raise InvalidValueError(
                f"columns that share embeddings must have the same number of ids, but {first.name!r} has "
                f"{first.num_buckets} and {column.name!r} {column.num_buckets}."
            )
        if type(_unweighted(column)) is not type(_unweighted(first)):
            raise InvalidValueError(
                f"columns that share embeddings must be of one kind, but {first.name!r} is a "
                f"{type(_unweighted(first)).__name__} and {column.name!r} a {type(_unweighted(column)).__name__}."
            )


def _unweighted(column: CategoricalColumn) -> CategoricalColumn:
    return column.categorical_column if isinstance(column, WeightedCategoricalColumn) else column
