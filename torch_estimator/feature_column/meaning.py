"""What feature columns mean to the weights of a model, in a form that a checkpoint can hold and compare.

Weights fit only the ids and numbers that a column had in training, but keep their shapes if, for example, a vocabulary
gets another order. So checkpoints hold a description of each column, and models refuse those that differ from theirs.
The descriptions are part of the checkpoint's format: a change of their text would refuse older checkpoints.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.column import Column, NumberColumn
from torch_estimator.feature_column.crossed import CrossedColumn
from torch_estimator.feature_column.embedding import EmbeddingColumn

Meaning: TypeAlias = dict[str, Any]
"""Settings by name: texts, numbers, None, and for a normalizer a list of its values."""

Meanings: TypeAlias = dict[str, dict[str, Meaning]]
"""Meanings by section (such as "linear column") and name."""

# Numbers that stand for all others when two normalizers are compared.
_PROBES = (-1000.0, -100.0, -10.0, -3.0, -1.0, -0.3, -0.1, 0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1000.0, 100000.0)
# Some of them, whose mean, median, smallest and largest numbers are others, show whether rows depend on each other.
_FEW = slice(1, 6)
# Machines may compute functions such as `exp` with different last digits.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6

_LISTS = ("vocabulary_list", "boundaries", "shape")
_SETTINGS = (
    *("num_oov_buckets", "default_value", "hash_bucket_size", "hash_function", "hash_key"),
    *("combiner", "max_norm"),
)
_NORMALIZER = "normalizer_fn"

# Show a list of at most this many characters whole, so that a message can say what has changed.
_MOST_CHARACTERS = 80


def meaning_of(column: Column) -> Meaning:
    """Return the settings of a column, and of the columns inside it, on which the meaning of its weights depends.

    Settings that only say how data is read are left out, and so are those that only training uses.

    >>> meaning_of(fc.bucketized_column(fc.numeric_column("age"), [18, 30]))
    {'shape': '1', 'boundaries': '18.0, 30.0'}
    """
    found: Meaning = {}
    if isinstance(column, CrossedColumn):
        found["keys"] = described([leaf if isinstance(leaf, str) else leaf.name for leaf in column.leaves])
        for leaf in column.leaves:
            if not isinstance(leaf, str):
                found |= {f"{name} of {leaf.name}": value for name, value in meaning_of(leaf).items()}
    unused = _unused(column)
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(column) if dataclasses.is_dataclass(column) else ()
    for name in [field.name for field in fields if field.name not in unused]:
        value = getattr(column, name)
        if isinstance(value, Column):
            found |= meaning_of(value)
        elif name == _NORMALIZER and isinstance(column, NumberColumn) and value is not None:
            found[name] = _normalized(column)
        elif name in _LISTS and isinstance(value, tuple):
            found[name] = described(value)
        elif name in _SETTINGS and isinstance(value, str | int | float | None):
            found[name] = value
    return found


def described(entries: Sequence[object]) -> str:
    """Return a text that is the same for equal lists only: the list, or its length, first entries and a digest.

    >>> described(["no", "yes"])
    "'no', 'yes'"
    >>> described(range(1000))
    '1,000 entries from 0, 1, 2 on, with the digest 6135b44fe9cb3772'
    """
    if len(entries) <= _MOST_CHARACTERS and len(whole := ", ".join(map(repr, entries))) <= _MOST_CHARACTERS:
        return whole
    digest = sha256()
    for entry in entries:
        # The length keeps entries apart, whatever characters they hold.
        text = str(entry).encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(text), text))
    first = ", ".join(repr(entry)[:_MOST_CHARACTERS] for entry in entries[:3])
    return f"{len(entries):,} entries from {first} on, with the digest {digest.hexdigest()[:16]}"


def difference(saved: Mapping[str, Any], own: Meanings) -> str:
    """Return the part of a sentence about the first difference in meaning, or an empty string if there is none.

    What only one of them describes is not compared. But if columns of other names have replaced columns of the same
    kind, that is a difference: a network's variables do not name its numeric and indicator columns.
    """
    for section, meanings in own.items():
        before = saved.get(section, {})
        for name, meaning in meanings.items():
            if problem := _difference(before.get(name, {}), meaning):
                return f"another {section}{f' {name!r}' if name else ''}: the setting {problem}"
        gone, new = sorted(before.keys() - meanings.keys()), sorted(meanings.keys() - before.keys())
        if section.endswith("column") and gone and new:
            return f"the {section} {gone[0]!r}, which the model lacks, and not with the model's {new[0]!r}"
    return ""


def _unused(column: Column) -> frozenset[str]:
    """Return names of the settings of a column that change nothing."""
    if isinstance(column, NumberColumn):
        return frozenset({"default_value"})
    if isinstance(column, EmbeddingColumn):
        ids = column.categorical_column
        return frozenset() if not ids.is_sequence and (ids.is_bag or ids.slots > 1) else frozenset({"combiner"})
    return frozenset() if getattr(column, "num_oov_buckets", 1) else frozenset({"hash_function"})


def _normalized(column: NumberColumn) -> list[Any] | None:
    """Return what a normalizer makes of fixed numbers, or None if it cannot be called with them.

    The numbers of a row are added up with different weights, so that one number for each row remains.
    """
    numbers = np.array(_PROBES, np.float32).reshape(-1, *[1] * len(column.shape))
    numbers = np.broadcast_to(numbers, (len(_PROBES), *column.shape))
    # A normalizer that draws random numbers must not change those of the training.
    with torch.random.fork_rng(devices=[]), np.errstate(all="ignore"):
        torch.default_generator.manual_seed(0)
        try:
            rows = column.normalized(numbers)
            few, again = column.normalized(numbers[_FEW]), column.normalized(numbers)
        except Exception:
            # The first batch raises this error, too, and tells where.
            return None
        # What draws random numbers differs from one call to the next, and cannot be compared.
        close = functools.partial(np.allclose, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
        if close(rows, again) and not close(rows[_FEW], few):
            raise InvalidValueError(
                f"normalizer_fn of numeric column {column.name!r} must compute each row by itself, but what it makes "
                "of a row depends on the other rows, as with x.mean() or x.max(), and would differ in an export; "
                "compute such numbers once, from the training data, and write them into the function."
            )
        weights = 1 + np.arange(column.width) / column.width
        values = (rows.astype(np.float64) * (weights / weights.sum())).sum(1).tolist()
    return [value if math.isfinite(value) else str(value) for value in values]


def _difference(before: Mapping[str, Any], now: Meaning) -> str:
    for name in dict.fromkeys([*now, *before] if before else ()):
        setting, old, new = name.split(" of ")[0], before.get(name), now.get(name)
        pairs = [(name, old, new)]
        if setting == _NORMALIZER:
            # No normalizer leaves numbers as they are; None is one that could not be called.
            both = zip(_PROBES, before.get(name, _PROBES) or (), now.get(name, _PROBES) or (), strict=False)
            pairs = [(f"{name}({number:g})", *values) for number, *values in both]
        for what, old, new in pairs:
            # The combiner of a column whose rows had one id each made no difference.
            if not _is_same(old, new) and not (setting == "combiner" and None in (old, new)):
                return f"{what} was {old} there, and is {new} now"
    return ""


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return bool(old == new)
