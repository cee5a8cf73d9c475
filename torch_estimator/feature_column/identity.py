"""Integers that are ids already."""

from __future__ import annotations

from dataclasses import dataclass

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import check_flag, is_count, plain
from torch_estimator.feature_column.raw_feature import RawFeature, categorical_feature, check_key


@dataclass(frozen=True, kw_only=True, slots=True)
class IdentityCategoricalColumn:
    """A categorical column whose values are ids; made by `categorical_column_with_identity`."""

    key: str
    num_buckets: int
    default_value: int | None = None
    multivalent: bool = False

    def __post_init__(self) -> None:
        check_key(self.key)
        check_flag(self.multivalent, f"multivalent of column {self.key!r}")
        if not is_count(self.num_buckets, 1):
            raise InvalidValueError(
                f"num_buckets of column {self.key!r} must be an integer of at least 1, but got {self.num_buckets!r}."
            )
        default = self.default_value
        if default is not None and not (is_count(default, 0) and default < self.num_buckets):
            raise InvalidValueError(
                f"default_value of column {self.key!r} must be None or an id below {self.num_buckets}, "
                f"but got {default!r}."
            )

    @property
    def name(self) -> str:
        """The key."""
        return self.key

    @property
    def slots(self) -> int:
        """Ids per row: one, unless rows hold lists."""
        return 1

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The one raw column it reads."""
        return (categorical_feature(self.key, "int64", multivalent=self.multivalent),)


def categorical_column_with_identity(
    key: str, num_buckets: int, default_value: int | None = None, multivalent: bool = False
) -> IdentityCategoricalColumn:
    """A categorical column of integers that are ids already: from 0 to ``num_buckets - 1``.

    A value outside that range gets `default_value`, or without one has no id: it adds nothing to an indicator, an
    embedding or a linear model, and counts as -1 in a cross, as a value outside a vocabulary does. -1 is a missing
    value, which never has an id.

    Args:
        key: Name of the raw column, of integers.
        num_buckets: Number of ids.
        default_value: Id of values outside the range.
        multivalent: Whether rows hold lists of values.

    Raises:
        InvalidValueError: `num_buckets` is not positive, or `default_value` is no id.

    >>> categorical_column_with_identity("rating", num_buckets=6).num_buckets
    6
    """
    return IdentityCategoricalColumn(
        key=key, num_buckets=plain(num_buckets), default_value=plain(default_value), multivalent=multivalent
    )
