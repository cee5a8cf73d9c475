"""Base classes of feature columns, and how to add a column.

A feature column has four jobs, and its class does all of them, in one file:

- name the raw columns that it reads (`raw_features`), from which parsing schemas and serving inputs are derived;
- add its numbers or ids to the inputs of a model (`add_to_linear`, `add_to_network`);
- compute numbers or ids from raw columns on the host, before a batch is made (`encode`, `encoder`, `list_encoder`);
- write the same computation into an ONNX graph (`lower`), so that an export takes raw values.

To add a column, derive from one of four classes here and implement their abstract members:

- `NumberColumn` gives a fixed number of floats for each row (see ``numeric.py``);
- `KeyColumn` gives ids of the values of one raw column, which may hold lists (see ``identity.py``, the shortest);
- `CategoricalColumn` gives ids in any other way (see ``bucketized.py``);
- `DenseColumn` turns the ids of another column into numbers (see ``indicator.py``).

Then name the new class in ``__init__.py``. If `__post_init__` can convert all arguments, the class itself serves as
tf.feature_column's function (``indicator_column = IndicatorColumn``); otherwise a function converts them.
Columns are frozen dataclasses because they are compared and used as keys: equal columns share one encoder.
``tests/feature_column/test_own_column.py`` adds a `NumberColumn` and a `KeyColumn`, from training to serving.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_estimator.errors import ExportError, InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.checks import check_flag, check_key
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.hashing import HashFunction, StringHasher
from torch_estimator.feature_column.ids import IdLists, Ids, Int64Array
from torch_estimator.feature_column.lowering import LoweredIds, Lowering
from torch_estimator.feature_column.raw_feature import RawDtype, RawFeature, categorical_feature
from torch_estimator.feature_column.raw_values import even_offsets

if TYPE_CHECKING:
    from torch_estimator.feature_column.embedding import EmbeddingColumn

IdEncoder: TypeAlias = Callable[[Chunk], Ids]
ListEncoder: TypeAlias = Callable[[Chunk], IdLists]
IdsOfValues: TypeAlias = Callable[[Sequence[Any]], Int64Array]
Normalizer: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class NetworkInputs(Protocol):
    """Collector of a network's inputs. Each column adds its numbers, counts or vectors through these methods."""

    def add_numbers(self, column: NumberColumn) -> None:
        """Make the numbers of a column inputs of the network."""
        ...

    def add_counts(self, name: str, column: CategoricalColumn) -> None:
        """Make the count of each id in a row an input of the network, under the given name."""
        ...

    def add_vectors(self, column: EmbeddingColumn) -> None:
        """Make the learned vector for a row's ids an input of the network."""
        ...


class LinearInputs(NetworkInputs, Protocol):
    """Collector of a linear model's inputs: ids, each with a trainable weight, and inputs as of a network.

    Each number, count and element of a vector has a trainable weight, too.
    """

    def add_ids(self, column: CategoricalColumn) -> None:
        """Make the ids of a column inputs of the model, each with a trainable weight."""
        ...


class Column:
    """Base class of all feature columns.

    `name` is unique within the linear or the network half of a model, and part of variables' names. `is_sequence` says
    whether the values of a row are the steps of a sequence.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # Declare these properties for mypy only.
        # At runtime, a property would become the default value of a derived dataclass's field of the same name.
        @property
        def name(self) -> str: ...
        @property
        def raw_features(self) -> tuple[RawFeature, ...]: ...
        @property
        def is_sequence(self) -> bool: ...
    else:
        is_sequence = False

    def add_to_linear(self, inputs: LinearInputs) -> None:
        """Add this column to a linear model's inputs. Columns that do not override this method raise an error."""
        raise InvalidValueError(
            f"linear columns must be categorical, numeric, indicator or embedding columns, but got {self.name!r} "
            f"({type(self).__name__})."
        )

    def add_to_network(self, inputs: NetworkInputs) -> None:
        """Add this column to a network's inputs. Columns that do not override this method raise an error."""
        raise InvalidValueError(
            f"network columns must be numeric, bucketized, indicator or embedding columns, but got {self.name!r} "
            f"({type(self).__name__})."
        )


class NumberColumn(Column):
    """Base of columns that give a fixed number of floats for each row.

    A derived class has a `name` and `raw_features`, and implements `encode` and `lower`.

    Attributes:
        shape: Shape of one row's value; by default one number.
        normalizer_fn: Function that maps a float32 tensor ``[rows, *shape]`` to one of the same shape, row by row, or
            None. It is applied to the results of `encode` and `lower`. An export traces the functions of all columns
            together, because one trace takes most of a second.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # Declare these properties for mypy only; see `Column`.
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def normalizer_fn(self) -> Normalizer | None: ...
    else:
        shape = (1,)
        normalizer_fn = None

    @property
    def width(self) -> int:
        """Number of floats in each row."""
        return math.prod(self.shape)

    def encode(self, chunk: Chunk) -> npt.NDArray[np.float32]:
        """Return the numbers of a chunk before `normalizer_fn` is applied, float32 ``[rows, *shape]``."""
        raise NotImplementedError

    def lower(self, lowering: Lowering) -> str:
        """Add what `encode` computes to an ONNX graph; return the name of a float32 tensor ``[N, width]``."""
        raise ExportError(f"a column of the kind {type(self).__name__} cannot be exported.")

    def numbers(self, chunk: Chunk) -> npt.NDArray[np.float32]:
        """Return the numbers of a chunk after `normalizer_fn` is applied, float32 ``[rows, width]``."""
        return chunk.once(("normalized", id(self)), lambda: self.normalized(self.encode(chunk)))

    def normalized(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return numbers ``[rows, *shape]`` after `normalizer_fn` is applied, float32 ``[rows, width]``."""
        if self.normalizer_fn is not None:
            # Pass a copy, so that a function that works in place cannot change the caller's data.
            given = torch.from_numpy(values.copy())
            with torch.no_grad():
                result = self.normalizer_fn(given)
            if not isinstance(result, torch.Tensor) or result.shape != given.shape:
                got = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
                raise InvalidValueError(
                    f"normalizer_fn of numeric column {self.name!r} must return a tensor of the shape "
                    f"{tuple(given.shape)} "
                    f"that it was given, but returned {got}."
                )
            values = result.to(torch.float32).numpy()
        return values.reshape(len(values), self.width)

    def add_to_linear(self, inputs: LinearInputs) -> None:
        """Add the numbers to the inputs of a linear model, each with a weight."""
        inputs.add_numbers(self)

    def add_to_network(self, inputs: NetworkInputs) -> None:
        """Add the numbers to the inputs of a network."""
        inputs.add_numbers(self)


class CategoricalColumn(Column):
    """Base of columns that turn values into ids from 0 to ``num_buckets - 1``. A missing value has no id.

    A linear model has a weight for every id; `indicator_column` and `embedding_column` put ids into a network. A
    derived class has a `name`, `raw_features` and `num_buckets`, and implements `encoder` and `lower`.

    Attributes:
        num_buckets: Number of ids.
        slots: Ids in each row, unless `multivalent`; by default one.
        multivalent: Whether rows hold lists, so that the number of ids differs from row to row; by default False.

    >>> column = fc.categorical_column_with_hash_bucket("job", 100)
    >>> isinstance(column, fc.CategoricalColumn), column.num_buckets
    (True, 100)
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # Declare these properties for mypy only; see `Column`.
        @property
        def num_buckets(self) -> int: ...
        @property
        def slots(self) -> int: ...
        @property
        def multivalent(self) -> bool: ...
    else:
        slots = 1
        multivalent = False

    @property
    def weight_feature(self) -> RawFeature | None:
        """The raw column that holds a weight for every id; None for columns without weights."""
        return None

    @property
    def unweighted(self) -> CategoricalColumn:
        """The column without weights: itself, or the categorical column inside a weighted column."""
        return self

    @property
    def is_bag(self) -> bool:
        """Whether rows hold lists of ids, or ids have weights. A model then has separate tensors for the column."""
        return self.multivalent or self.weight_feature is not None

    @property
    def number_columns(self) -> tuple[NumberColumn, ...]:
        """The numeric columns whose numbers this column turns into ids; by default none."""
        return ()

    @property
    def missing_key(self) -> str | None:
        """Raw column, or None. If its value is missing in a row, a cross gives the row no id."""
        return None

    def cross_leaves(self) -> Sequence[str | CategoricalColumn]:
        """Return what a cross combines for this column: the column itself, or the inputs of a nested cross."""
        return (self,)

    def check_weighable(self) -> None:
        """Raise InvalidValueError if the ids of this column cannot have weights. By default they can."""

    def encoder(self, encoders: Encoders) -> IdEncoder:
        """Return a function that computes the ids of a chunk, for columns with a fixed number of ids per row."""
        raise NotImplementedError

    def list_encoder(self, encoders: Encoders) -> ListEncoder:
        """Return a function that computes the ids of a chunk as one list per row. Columns of lists override it."""
        encoder = encoders.ids(self)

        def encode(chunk: Chunk) -> IdLists:
            ids = chunk.encoded(encoder)
            rows = ids.table if ids.codes is None else ids.table.take(ids.codes)
            return IdLists(rows.reshape(-1), even_offsets(len(rows), rows.shape[1]))

        return encode

    def lower(self, lowering: Lowering) -> LoweredIds:
        """Add what `encoder` computes to an ONNX graph; return the tensor of ids, or `HashChain`s.

        A column that reads one raw column should work elementwise, so that it computes ids ``[N, n]`` of lists
        ``[N, n]``.
        """
        raise ExportError(f"a column of the kind {type(self).__name__} cannot be exported.")

    def lower_lists(self, lowering: Lowering) -> str:
        """Add what `list_encoder` computes to an ONNX graph; return an int64 tensor ``[N, n]``, -1 for no id."""
        return lowering.ids(self)

    def add_to_linear(self, inputs: LinearInputs) -> None:
        """Add the ids to the inputs of a linear model, each with a weight."""
        inputs.add_ids(self)

    def add_to_network(self, inputs: NetworkInputs) -> None:
        """Raise InvalidValueError, because a network takes numbers, not ids."""
        raise InvalidValueError(
            "network columns must be numeric, bucketized, indicator or embedding columns, but got the "
            "categorical "
            f"column {self.name!r}; wrap it in embedding_column() or indicator_column()."
        )


@dataclass(frozen=True, slots=True)
class KeyColumn(CategoricalColumn):
    """Base of categorical columns that map each value of one raw column to an id.

    A derived class has the fields `dtype` (``"string"`` or ``"int64"``, with ``''`` and -1 as missing values), unless
    its values are strings, and `multivalent` (if it takes lists), and implements `ids_of_values` and `lower`. Its
    `__post_init__` calls `check_key_column`.
    """

    key: str

    if TYPE_CHECKING:
        # Declare this property for mypy only; see `Column`.
        @property
        def dtype(self) -> RawDtype: ...
    else:
        dtype = "string"

    def check_key_column(self) -> None:
        """Check `key` and `multivalent`; raise InvalidValueError or InvalidTypeError if they are wrong."""
        check_key(self.key)
        check_flag(self.multivalent, f"multivalent of column {self.key!r}")

    @property
    def name(self) -> str:
        """Name of the column: the name of its raw column."""
        return self.key

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The raw column that `key` names."""
        return (categorical_feature(self.key, self.dtype, multivalent=self.multivalent),)

    @property
    def missing_key(self) -> str | None:
        """The key: if its value is missing in a row, a cross of this column gives the row no id."""
        return self.key

    @property
    def missing_value(self) -> Any:
        """The value that marks a missing value: ``''`` for strings, -1 for integers."""
        return "" if self.dtype == "string" else -1

    def ids_of_values(self, encoders: Encoders) -> IdsOfValues:
        """Return a function from values to int64 ids. A value without id gets `NOT_IN_VOCABULARY` or `MISSING`."""
        raise NotImplementedError

    def encoder(self, encoders: Encoders) -> IdEncoder:
        """Return a function that computes the ids of a chunk and looks up each distinct value only once."""
        ids_of = self.ids_of_values(encoders)

        def encode(chunk: Chunk) -> Ids:
            distinct = chunk.values(self.key, self.dtype)
            return Ids(ids_of(distinct.values), distinct.codes[:, None])

        return encode

    def list_encoder(self, encoders: Encoders) -> ListEncoder:
        """Return a function that computes the ids of a chunk as one list per row."""
        if not self.multivalent:
            return CategoricalColumn.list_encoder(self, encoders)
        ids_of = self.ids_of_values(encoders)

        def encode(chunk: Chunk) -> IdLists:
            lists = chunk.list_values(self.key, self.dtype)
            return IdLists(ids_of(lists.values.values).take(lists.values.codes), lists.offsets)

        return encode


@dataclass(frozen=True, slots=True)
class DenseColumn(Column):
    """Base of columns that turn the ids of a categorical column into numbers, for networks and linear models.

    A derived class has a `name` and implements `add_to_network`. Its `__post_init__` calls `check_categorical`.
    """

    categorical_column: CategoricalColumn

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The raw columns that the categorical column reads."""
        return self.categorical_column.raw_features

    @property
    def is_sequence(self) -> bool:
        """Whether the categorical column is one of sequences."""
        return self.categorical_column.is_sequence

    def add_to_linear(self, inputs: LinearInputs) -> None:
        """Add to a linear model what the column adds to a network; each number gets a weight."""
        self.add_to_network(inputs)


class Encoders:
    """Cache of one `FeatureTransform`: an encoder for each categorical column, and the hashers of raw columns."""

    def __init__(self) -> None:
        self.hashers: dict[tuple[str, HashFunction], StringHasher] = {}
        self._ids: dict[CategoricalColumn, IdEncoder] = {}
        self._lists: dict[CategoricalColumn, ListEncoder] = {}

    def ids(self, column: CategoricalColumn) -> IdEncoder:
        """Return the encoder of a column with a fixed number of ids in each row."""
        if column not in self._ids:
            self._ids[column] = column.encoder(self)
        return self._ids[column]

    def lists(self, column: CategoricalColumn) -> ListEncoder:
        """Return the encoder that gives the ids of any categorical column as one list per row."""
        if column not in self._lists:
            self._lists[column] = column.list_encoder(self)
        return self._lists[column]

    def hasher(self, key: str, function: HashFunction) -> StringHasher:
        """Return the object that hashes the strings of the raw column `key` with `function`."""
        return self.hashers.setdefault((key, function), StringHasher(key, function))


def check_categorical(column: object, where: str) -> None:
    """Raise an error unless a column is categorical."""
    if isinstance(column, CategoricalColumn):
        return
    raise column_error(
        column,
        f"{where} takes a categorical column (vocabulary, hash bucket, identity, weighted, crossed or bucketized), "
        f"but got {column!r}.",
    )


def column_error(column: object, message: str) -> InvalidTypeError | InvalidValueError:
    """Return an error with a message: InvalidValueError if `column` is a feature column, else InvalidTypeError."""
    return InvalidValueError(message) if isinstance(column, Column) else InvalidTypeError(message)
