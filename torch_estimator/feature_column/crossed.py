"""Combinations of categorical values, numbered by hash."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, Union

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.bucketized import BucketizedColumn
from torch_estimator.feature_column.checks import as_items, plain
from torch_estimator.feature_column.hash_bucket import HashedCategoricalColumn, check_hash_bucket_size
from torch_estimator.feature_column.hashing import HashFunction, check_hash_function
from torch_estimator.feature_column.identity import IdentityCategoricalColumn
from torch_estimator.feature_column.raw_feature import LISTS, RawFeature, check_key
from torch_estimator.feature_column.vocabulary_list import VocabularyListCategoricalColumn

ColumnLeaf: TypeAlias = BucketizedColumn | IdentityCategoricalColumn | VocabularyListCategoricalColumn
Leaf: TypeAlias = str | ColumnLeaf
CrossKey: TypeAlias = Union[Leaf, "CrossedColumn"]

DEFAULT_HASH_KEY = 0xDECAFCAFFE


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossedColumn:
    """A cross of raw string columns and categorical columns; made by `crossed_column`.

    Attributes:
        list_keys: Raw string columns among the keys whose rows hold lists.
    """

    keys: tuple[CrossKey, ...]
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
        """The sorted names of the keys, nested crosses flattened, joined by ``_X_``."""
        names = (leaf if isinstance(leaf, str) else leaf.name for leaf in _flatten(self.keys))
        return "_X_".join(sorted(names))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """What is hashed, in the order of hashing, nested crosses flattened.

        TensorFlow's kernel combines sparse inputs before dense ones, each in declared order. Columns arrive there as
        sparse ids and lists of strings as sparse strings; raw string columns with one value a row are dense.
        """
        flat = tuple(_flatten(self.keys))
        lists = self.lists
        sparse = tuple(leaf for leaf in flat if not isinstance(leaf, str) or leaf in lists)
        return sparse + tuple(leaf for leaf in flat if isinstance(leaf, str) and leaf not in lists)

    @property
    def lists(self) -> frozenset[str]:
        """The raw string columns whose rows hold lists, those of nested crosses among them."""
        nested = (key.lists for key in self.keys if isinstance(key, CrossedColumn))
        return frozenset(self.list_keys).union(*nested)

    @property
    def multivalent(self) -> bool:
        """Whether the number of ids depends on the row: some leaf holds lists."""
        return any(leaf in self.lists if isinstance(leaf, str) else leaf.multivalent for leaf in self.leaves)

    @property
    def start(self) -> int:
        """What the first leaf is combined with; a `hash_key` of 0 counts as None, as in TensorFlow."""
        return self.hash_key or DEFAULT_HASH_KEY

    @property
    def num_buckets(self) -> int:
        """The number of buckets."""
        return self.hash_bucket_size

    @property
    def slots(self) -> int:
        """Ids per row where no leaf holds lists: the product of those of the leaves; the last leaf varies fastest."""
        return math.prod(1 if isinstance(leaf, str) else leaf.slots for leaf in self.leaves)

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """Those of all leaves."""
        features: list[RawFeature] = []
        lists = self.lists
        for leaf in self.leaves:
            if isinstance(leaf, str):
                features.append(RawFeature(key=leaf, dtype="string", shape=LISTS if leaf in lists else (1,)))
            else:
                features += leaf.raw_features
        return tuple(features)


def crossed_column(
    keys: Iterable[CrossKey],
    hash_bucket_size: int,
    hash_key: int | None = None,
    hash_function: HashFunction = "murmur3",
    multivalent: Iterable[str] = (),
) -> CrossedColumn:
    """A column of combined values: ``hash(values) % hash_bucket_size``.

    With ``h = hash_key or 0xDECAFCAFFE`` the hash is ``h = FingerprintCat64(h, v)`` over the leaves, ``v``
    being the hash of a raw string (``''`` is a value like any other) or the id that a column gives (-1 for a
    value that is not in a vocabulary is an id like any other). A row for which a vocabulary or identity column's
    value is missing (``''``, or -1 for integers) has no id. The order of the leaves is that of
    `CrossedColumn.leaves`. With lists, every value is combined with every other; missing ones in a list (``''``
    or -1) are left out.

    Args:
        keys: Names of raw string columns, and bucketized, vocabulary, identity and crossed columns; two or more.
            Integers are crossed by an identity column, as ids, or read as strings, whose hashes are not those that
            TensorFlow's crosses have for integers under their names.
        hash_bucket_size: Number of buckets, at least 1.
        hash_key: Start value of the hash.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids.
        multivalent: Which of the raw string columns hold lists.

    Raises:
        InvalidTypeError: A key is neither a string nor a column.
        InvalidValueError: Fewer than two keys, a hash bucket, numeric or dense column among them, a bad size
            or key.

    >>> crossed_column(["occupation", "education"], 10_000).name
    'education_X_occupation'
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
    if isinstance(key, HashedCategoricalColumn):
        raise InvalidValueError(
            f"hash bucket column {key.name!r} cannot be crossed, since hashing twice adds collisions; "
            f"cross the raw column instead by giving the string {key.key!r}."
        )
    columns = (BucketizedColumn, IdentityCategoricalColumn, VocabularyListCategoricalColumn, CrossedColumn)
    if isinstance(key, str):
        check_key(key)
        return
    if isinstance(key, columns):
        return
    error = InvalidValueError if hasattr(key, "raw_features") else InvalidTypeError
    if hasattr(key, "weight_feature_key") and hasattr(key, "name"):
        raise InvalidValueError(f"weighted column {key.name!r} cannot be crossed; cross its categorical column.")
    raise error(
        "keys of a crossed column must be names of raw string columns or vocabulary, identity, bucketized or crossed "
        f"columns, but got {key!r}."
    )


def _flatten(keys: Iterable[CrossKey]) -> Iterator[Leaf]:
    for key in keys:
        if isinstance(key, CrossedColumn):
            yield from _flatten(key.keys)
        else:
            yield key
