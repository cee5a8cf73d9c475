"""Interfaces through which a feature column adds its computation to an ONNX graph.

A column's `lower` method gets a `Lowering`, which `torch_estimator.export` implements. This module defines only the
interfaces, so that a column needs neither the export package nor onnx to be imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy.typing as npt

from torch_estimator.feature_column.hashing import HashFunction

if TYPE_CHECKING:
    from torch_estimator.feature_column.column import CategoricalColumn, NumberColumn


class Graph(Protocol):
    """An ONNX graph under construction. The methods return the names of tensors."""

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the name of the output. An equal node is added only once."""
        ...

    def multi(
        self, kind: str, inputs: Sequence[str], *, outputs: int, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with several outputs and return their names. An equal node is added only once."""
        ...

    def constant(self, value: Any, dtype: npt.DTypeLike | None = None, *, hint: str = "constant") -> str:
        """Add a constant of numbers or strings and return its name, which starts with `hint`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTensor:
    """Tensor ``[N, width]`` of an ONNX graph that holds a raw column, which is an input of the exported model.

    `dtype` is ``"string"``, ``"float32"`` or ``"int64"``. A width of -1 stands for lists, which vary in length.
    """

    tensor: str
    dtype: str
    width: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedKey:
    """Description of a value in an ONNX graph: the 64-bit hash of the raw column `key`."""

    key: str
    function: HashFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedSlot:
    """Column `slot` of a tensor of ids, int64 ``[N, slots]``, that an ONNX graph contains already."""

    tensor: str
    slot: int


ChainValue: TypeAlias = HashedKey | ComputedSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class HashChain:
    """Description of an id that is a hash of values of a row, combined one after the other, modulo `buckets`.

    If `start` is None, there is a single value, which is itself the hash. A row in which one of the raw columns
    `missing` is missing gets no id (-1).
    """

    start: int | None
    values: tuple[ChainValue, ...]
    buckets: int
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLeaf:
    """One of the columns that a cross combines (a leaf), if some of these columns hold lists.

    `value` is a raw column, whose values are hashed, or a tensor of ids, int64 ``[N, n]``; `missing` is the key of the
    raw column whose missing values are left out.
    """

    value: HashedKey | str
    missing: str | None


LoweredIds: TypeAlias = str | list[HashChain]
"""Ids in the graph: a tensor int64 ``[N, slots]`` with -1 for no id, or one hash chain for each slot.

Return chains if possible: all chains of a model are computed together, by a few operators on one wide tensor, instead
of by some twenty operators for every column.
"""


class Lowering(Protocol):
    """ONNX graph under construction, with operations that several kinds of feature columns use."""

    @property
    def graph(self) -> Graph:
        """The graph that nodes are added to."""
        ...

    @property
    def raw(self) -> Mapping[str, RawTensor]:
        """The tensors of the raw columns, by key."""
        ...

    def cast(self, tensor: str, dtype: Literal["float32", "int64"]) -> str:
        """Add a conversion of a tensor to another type; return the name of the result."""
        ...

    def floats(self, key: str) -> str:
        """Return the name of a float32 tensor ``[N, width]``: the raw column of numbers `key`, with its default."""
        ...

    def numbers(self, column: NumberColumn) -> str:
        """Return the name of a float32 tensor ``[N, width]``: a column's numbers after its `normalizer_fn`."""
        ...

    def ids(self, column: CategoricalColumn) -> str:
        """Return the name of an int64 tensor ``[N, slots]`` that holds a column's ids, -1 for no id."""
        ...

    def hashed(self, chains: Sequence[HashChain]) -> str:
        """Return the name of an int64 tensor ``[N, len(chains)]``: the id of each `HashChain`, -1 for no id."""
        ...

    def hashed_products(self, start: int, leaves: Sequence[ListLeaf], buckets: int) -> str:
        """Return the name of an int64 tensor ``[N, n]`` that holds the ids of all combinations of values.

        The value of the last leaf varies fastest.
        """
        ...
