"""Column whose ids are hashes of combinations of categorical values (a feature cross).

The columns that a cross combines are its leaves: raw string columns, and the ids of other columns. Each leaf has 64-bit
values, and an id is a hash of one value from every leaf. There are two encoders: `_CrossIds` if all leaves have a fixed
number of values in each row, and `_CrossLists` if some leaves hold lists.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import as_items, check_key, plain
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.column import (
    CategoricalColumn,
    Encoders,
    IdEncoder,
    ListEncoder,
    NumberColumn,
    column_error,
)
from torch_estimator.feature_column.hash_bucket import check_hash_bucket_size
from torch_estimator.feature_column.hashing import (
    HashFunction,
    StringHasher,
    UInt64Array,
    check_hash_function,
    fingerprint_cat64,
)
from torch_estimator.feature_column.ids import MISSING, IdLists, Ids, Int64Array
from torch_estimator.feature_column.lowering import (
    ChainValue,
    ComputedSlot,
    HashChain,
    HashedKey,
    ListLeaf,
    LoweredIds,
    Lowering,
)
from torch_estimator.feature_column.raw_feature import LISTS, RawFeature
from torch_estimator.feature_column.raw_values import Codes, even_offsets

Leaf: TypeAlias = str | CategoricalColumn
Mask: TypeAlias = npt.NDArray[np.bool_]

DEFAULT_HASH_KEY = 0xDECAFCAFFE


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossedColumn(CategoricalColumn):
    """Cross of raw string columns and categorical columns. Created by `crossed_column`.

    Attributes:
        keys: Names of raw string columns, and columns.
        hash_bucket_size: Number of ids.
        hash_key: Start value of the hash, or None.
        hash_function: ``"murmur3"`` or ``"farmhash"``.
        list_keys: Raw string columns among the keys whose rows hold lists.

    >>> column = fc.crossed_column(["occupation", "education"], 10_000)
    >>> column.name, column.num_buckets, [feature.key for feature in column.raw_features]
    ('education_X_occupation', 10000, ['occupation', 'education'])
    """

    keys: tuple[Leaf, ...]
    hash_bucket_size: int
    hash_key: int | None = None
    hash_function: HashFunction = "murmur3"
    list_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_hash_function(self.hash_function)
        if len(self.keys) < 2:
            raise InvalidValueError(f"a crossed column needs at least 2 keys, but got {self.keys!r}.")
        for key in self.keys:
            _check_cross_key(key)
        for name in self.list_keys:
            if not isinstance(name, str) or name not in self.keys:
                raise InvalidValueError(
                    f"multivalent of crossed column {self.name!r} has {name!r}, which is not a raw string column among "
                    "its keys."
                )
        check_hash_bucket_size(self.hash_bucket_size, f"crossed column {self.name!r}")
        start = self.hash_key
        if start is not None and (not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < 2**64):
            raise InvalidValueError(
                f"hash_key of crossed column {self.name!r} must be None or an unsigned 64-bit integer, "
                f"but got {start!r}."
            )

    @property
    def name(self) -> str:
        """Name of the column: the sorted names of the crossed columns, joined by ``_X_``."""
        return "_X_".join(sorted(leaf if isinstance(leaf, str) else leaf.name for leaf in self.cross_leaves()))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The crossed columns in the order of hashing. A nested cross is replaced by its own columns.

        This is the order of TensorFlow's kernel, which combines sparse inputs before dense ones, each in declared
        order. There, the ids of columns and lists of strings are sparse; raw string columns with one value per row are
        dense.
        """
        flat, lists = self.cross_leaves(), self.lists
        sparse = tuple(leaf for leaf in flat if not isinstance(leaf, str) or leaf in lists)
        return sparse + tuple(leaf for leaf in flat if isinstance(leaf, str) and leaf not in lists)

    @property
    def lists(self) -> frozenset[str]:
        """Names of the raw string columns whose rows hold lists, including those inside nested crosses."""
        nested = (key.lists for key in self.keys if isinstance(key, CrossedColumn))
        return frozenset(self.list_keys).union(*nested)

    @property
    def multivalent(self) -> bool:
        """Whether a crossed column holds lists, so that the number of ids differs from row to row."""
        return any(leaf in self.lists if isinstance(leaf, str) else leaf.multivalent for leaf in self.leaves)

    @property
    def start(self) -> int:
        """Initial value of the hash: `hash_key`, or TensorFlow's constant if `hash_key` is None or 0."""
        return self.hash_key or DEFAULT_HASH_KEY

    @property
    def num_buckets(self) -> int:
        """Number of ids, which is the number of hash buckets."""
        return self.hash_bucket_size

    @property
    def slots(self) -> int:
        """Number of ids in each row without lists: one for each combination of the row's values."""
        return math.prod(1 if isinstance(leaf, str) else leaf.slots for leaf in self.leaves)

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The raw columns that all crossed columns read."""
        features: list[RawFeature] = []
        lists = self.lists
        for leaf in self.leaves:
            if isinstance(leaf, str):
                features.append(RawFeature(key=leaf, dtype="string", shape=LISTS if leaf in lists else (1,)))
            else:
                features += leaf.raw_features
        return tuple(features)

    @property
    def number_columns(self) -> tuple[NumberColumn, ...]:
        """The numeric columns whose numbers the crossed columns turn into ids."""
        return tuple(number for leaf in self.leaves if not isinstance(leaf, str) for number in leaf.number_columns)

    def cross_leaves(self) -> Sequence[Leaf]:
        """Return the crossed columns in declared order. A nested cross is replaced by its own columns."""
        return tuple(_flatten(self.keys))

    def check_weighable(self) -> None:
        """Raise InvalidValueError if a crossed column holds lists: the number of ids per row then varies."""
        if self.multivalent:
            raise InvalidValueError(
                f"crossed column {self.name!r} cannot have weights, since how many values a row has depends on its "
                "lists; give weights to a column that is not crossed."
            )

    def encoder(self, encoders: Encoders) -> IdEncoder:
        """Return a function that computes the ids of a chunk, for a cross without lists."""
        return _CrossIds(self, encoders)

    def list_encoder(self, encoders: Encoders) -> ListEncoder:
        """Return a function that computes the ids of a chunk as one list per row."""
        return _CrossLists(self, encoders) if self.multivalent else CategoricalColumn.list_encoder(self, encoders)

    def lower(self, lowering: Lowering) -> LoweredIds:
        """Return a `HashChain` per id of a row: a description of the hash, from which the exporter builds nodes."""
        choices: list[list[ChainValue]] = []
        missing: list[str] = []
        for leaf in self.leaves:
            if isinstance(leaf, str):
                choices.append([HashedKey(key=leaf, function=self.hash_function)])
                continue
            tensor = lowering.ids(leaf)
            choices.append([ComputedSlot(tensor=tensor, slot=slot) for slot in range(leaf.slots)])
            if leaf.missing_key is not None and leaf.missing_key not in missing:
                missing.append(leaf.missing_key)
        return [
            HashChain(start=self.start, values=values, buckets=self.hash_bucket_size, missing=tuple(missing))
            for values in itertools.product(*choices)
        ]

    def lower_lists(self, lowering: Lowering) -> str:
        """Add the hashes of all combinations of list values to an ONNX graph; return the tensor of ids."""
        if not self.multivalent:
            return lowering.ids(self)
        leaves: list[ListLeaf] = []
        for leaf in self.leaves:
            if isinstance(leaf, str):
                value = HashedKey(key=leaf, function=self.hash_function)
                leaves.append(ListLeaf(value=value, missing=leaf if leaf in self.lists else None))
            else:
                leaves.append(ListLeaf(value=leaf.lower_lists(lowering), missing=leaf.missing_key))
        return lowering.hashed_products(self.start, leaves, self.hash_bucket_size)


def crossed_column(
    keys: Iterable[Leaf],
    hash_bucket_size: int,
    hash_key: int | None = None,
    hash_function: HashFunction = "murmur3",
    multivalent: Iterable[str] = (),
) -> CrossedColumn:
    """Return a column that combines several columns. Its ids are ``hash(values) % hash_bucket_size``.

    The hash starts with ``h = hash_key or 0xDECAFCAFFE``, and every leaf updates it by ``h = FingerprintCat64(h, v)``,
    in the order of `CrossedColumn.leaves`. For a raw string column, v is the hash of the string, and ``''`` is hashed
    like any other string. For another column, v is its id; a value that is not in a vocabulary has v = -1. A row has no
    id if the value of a vocabulary or identity column is missing (``''``, or -1 for integers). With lists, there is an
    id for every combination of the lists' values; missing values in a list (``''`` or -1) are left out.

    Args:
        keys: Names of raw string columns, and bucketized, vocabulary, identity and crossed columns; two or more.
            To cross integers, wrap them in an identity column, or read them as strings. TensorFlow hashes integers in
            another way.
        hash_bucket_size: Number of buckets, at least 1.
        hash_key: Start value of the hash.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids.
        multivalent: Names of the raw string columns among `keys` that hold lists.

    Raises:
        InvalidTypeError: A key is neither a string nor a column.
        InvalidValueError: There are fewer than two keys, a key is a column that cannot be crossed, or a size or
            `hash_key` is out of range.

    >>> age = fc.bucketized_column(fc.numeric_column("age"), [30])
    >>> cross = fc.crossed_column(["job", age], hash_bucket_size=1000)
    >>> cross.name
    'age_bucketized_X_job'
    >>> rows = {"job": np.array(["clerk", "clerk", "farmer"]), "age": np.array([20, 21, 20])}
    >>> ids = fc.FeatureTransform([cross])(rows)["linear/ids"].ravel()
    >>> bool(ids[0] == ids[1]), bool(ids[0] == ids[2])
    (True, False)
    """
    if isinstance(keys, str):
        raise InvalidValueError(f"keys of a crossed column must be a list of at least 2 keys, but got {keys!r}.")
    lists = (multivalent,) if isinstance(multivalent, str) else multivalent
    return CrossedColumn(
        keys=as_items(keys, "keys of a crossed column"),
        hash_bucket_size=plain(hash_bucket_size),
        hash_key=plain(hash_key),
        hash_function=hash_function,
        list_keys=as_items(lists, "multivalent of a crossed column"),
    )


def _check_cross_key(key: object) -> None:
    if isinstance(key, str):
        check_key(key)
    elif isinstance(key, CategoricalColumn):
        key.cross_leaves()
    else:
        raise column_error(
            key,
            "keys of a crossed column must be names of raw string columns or vocabulary, identity, bucketized or "
            f"crossed columns, but got {key!r}.",
        )


def _flatten(keys: Iterable[Leaf]) -> Iterator[Leaf]:
    for key in keys:
        yield from (key,) if isinstance(key, str) else key.cross_leaves()


@dataclass(frozen=True, slots=True)
class _Hashes:
    """64-bit values of one crossed column (leaf) in a chunk of rows, or of several columns combined by hashing.

    Attributes:
        values: uint64 ``[N, slots]`` if `codes` is None, else a table ``[M]`` of distinct values.
        missing: True for each of `values` that has no id because a value of a leaf is missing; None if no value is
            missing.
        codes: Positions in the table, ``[N, slots]``, or None.
    """

    values: UInt64Array
    missing: Mask | None
    codes: Codes | None

    def by_row(self) -> tuple[UInt64Array, Mask | None]:
        """Return `values` and `missing` for every row, each ``[N, slots]``, with `codes` looked up."""
        if self.codes is None:
            return self.values, self.missing
        return self.values.take(self.codes), None if self.missing is None else self.missing.take(self.codes)


class _CrossIds:
    """Encoder of a cross without lists: each crossed column has a fixed number of values in each row."""

    def __init__(self, column: CrossedColumn, encoders: Encoders) -> None:
        self._start = np.uint64(column.start)
        self._buckets = np.uint64(column.hash_bucket_size)
        self._leaves: list[Callable[[Chunk], _Hashes]] = [
            _string_leaf(leaf, encoders.hasher(leaf, column.hash_function))
            if isinstance(leaf, str)
            else _column_leaf(encoders.ids(leaf))
            for leaf in column.leaves
        ]

    def __call__(self, chunk: Chunk) -> Ids:
        """Return the ids of a chunk. Equal combinations are hashed once if there are few distinct ones."""
        first = self._leaves[0](chunk)
        result = _Hashes(fingerprint_cat64(self._start, first.values), first.missing, first.codes)
        for leaf in self._leaves[1:]:
            result = _combined(result, leaf(chunk), chunk.rows)
        ids = (result.values % self._buckets).astype(np.int64)
        if result.missing is not None:
            ids[result.missing] = MISSING
        return Ids(ids, result.codes)


def _string_leaf(key: str, hasher: StringHasher) -> Callable[[Chunk], _Hashes]:
    def hashes(chunk: Chunk) -> _Hashes:
        distinct = chunk.values(key, "string")
        values = chunk.once(hasher, lambda: hasher(distinct.values))
        return _Hashes(values, None, distinct.codes[:, None])

    return hashes


def _column_leaf(encoder: IdEncoder) -> Callable[[Chunk], _Hashes]:
    def hashes(chunk: Chunk) -> _Hashes:
        ids = chunk.encoded(encoder)
        missing = ids.table == MISSING
        return _Hashes(ids.table.astype(np.uint64), missing if missing.any() else None, ids.codes)

    return hashes


def _combined(left: _Hashes, right: _Hashes, rows: int) -> _Hashes:
    """Hash each row's values in `left` with its values in `right`. The value of `right` varies fastest.

    Only distinct values are combined if both sides have codes and there are at most as many pairs of them as rows.
    """
    if left.codes is not None and right.codes is not None and len(left.values) * len(right.values) <= rows:
        values, missing = _pairs(left.values[None], left.missing, right.values[None], right.missing)
        codes = left.codes[:, :, None] * len(right.values) + right.codes[:, None, :]
        return _Hashes(
            values[0],
            None if missing is None else missing[0],
            codes.reshape(rows, left.codes.shape[1] * right.codes.shape[1]),
        )
    values, missing = _pairs(*left.by_row(), *right.by_row())
    return _Hashes(values, missing, None)


def _pairs(
    left: UInt64Array, left_missing: Mask | None, right: UInt64Array, right_missing: Mask | None
) -> tuple[UInt64Array, Mask | None]:
    """Hash all pairs of values in each row: values ``[n, a]`` and ``[n, b]`` give hashes ``[n, a * b]``."""
    shape = (left.shape[0], left.shape[1] * right.shape[1])
    values = fingerprint_cat64(left[:, :, None], right[:, None, :]).reshape(shape)
    if left_missing is None and right_missing is None:
        return values, None
    missing = np.zeros((*left.shape, right.shape[1]), dtype=np.bool_)
    if left_missing is not None:
        missing |= left_missing.reshape(left.shape)[:, :, None]
    if right_missing is not None:
        missing |= right_missing.reshape(right.shape)[:, None, :]
    return values, missing.reshape(shape)


@dataclass(frozen=True, slots=True)
class _HashLists:
    """64-bit values of a crossed column with lists. Row i has ``values[offsets[i] : offsets[i + 1]]``."""

    values: UInt64Array
    offsets: Int64Array


class _CrossLists:
    """Encoder of a cross in which some columns hold lists. It hashes all combinations of a row's values."""

    def __init__(self, column: CrossedColumn, encoders: Encoders) -> None:
        self._start = np.uint64(column.start)
        self._buckets = np.uint64(column.hash_bucket_size)
        self._leaves: list[Callable[[Chunk], _HashLists]] = [
            _string_list_leaf(leaf, encoders.hasher(leaf, column.hash_function), lists=leaf in column.lists)
            if isinstance(leaf, str)
            else _column_list_leaf(encoders.lists(leaf))
            for leaf in column.leaves
        ]

    def __call__(self, chunk: Chunk) -> IdLists:
        """Return the ids of a chunk as one list per row. The value of the last crossed column varies fastest."""
        first = self._leaves[0](chunk)
        result = _HashLists(fingerprint_cat64(self._start, first.values), first.offsets)
        for leaf in self._leaves[1:]:
            result = _combined_lists(result, leaf(chunk))
        return IdLists((result.values % self._buckets).astype(np.int64), result.offsets)


def _string_list_leaf(key: str, hasher: StringHasher, *, lists: bool) -> Callable[[Chunk], _HashLists]:
    def one_value(chunk: Chunk) -> _HashLists:
        distinct = chunk.values(key, "string")
        values = chunk.once(hasher, lambda: hasher(distinct.values))
        return _HashLists(values.take(distinct.codes), even_offsets(chunk.rows))

    def any_number(chunk: Chunk) -> _HashLists:
        found = chunk.list_values(key, "string")
        values = chunk.once(hasher, lambda: hasher(found.values.values)).take(found.values.codes)
        empty = np.array([value == "" for value in found.values.values], dtype=np.bool_)
        missing = empty.take(found.values.codes) if len(empty) else np.zeros(0, np.bool_)
        kept = IdLists(values.view(np.int64), found.offsets).keep(~missing)
        return _HashLists(kept.ids.view(np.uint64), kept.offsets)

    return any_number if lists else one_value


def _column_list_leaf(encoder: ListEncoder) -> Callable[[Chunk], _HashLists]:
    def hashes(chunk: Chunk) -> _HashLists:
        found = chunk.encoded(encoder)
        kept = found.keep(found.ids != MISSING)
        return _HashLists(kept.ids.astype(np.uint64), kept.offsets)

    return hashes


def _combined_lists(left: _HashLists, right: _HashLists) -> _HashLists:
    """Hash each row's values in `left` with its values in `right`. The value of `right` varies fastest."""
    left_counts, right_counts = np.diff(left.offsets), np.diff(right.offsets)
    row_of_left = np.repeat(np.arange(len(left_counts)), left_counts)
    # Repeat every value of `left` once for each value that `right` has in the same row.
    # `rights` holds the position of the partner in `right.values` for each repeated value.
    repeats = right_counts[row_of_left]
    ends = np.cumsum(repeats)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - repeats, repeats)
    rights = np.repeat(right.offsets[:-1][row_of_left], repeats) + within
    values = fingerprint_cat64(np.repeat(left.values, repeats), right.values[rights])
    offsets = np.zeros(len(left_counts) + 1, dtype=np.int64)
    np.cumsum(left_counts * right_counts, out=offsets[1:])
    return _HashLists(values, offsets)
