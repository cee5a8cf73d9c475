"""Random columns of every kind, and random rows for them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from torch_estimator import feature_column as fc

Row = dict[str, Any]

WORDS = ["a", "b", "Ünïcode", "日本", " ", "-1", "a,b\n"]
INTEGERS = [-1, 0, 1, 2, 3, 7, -5, 2**62, -(2**63), 2**63 - 1]

TEXTS = ("s0", "s1")
TEXT_LISTS = ("t0", "t1")
NUMBERS = ("i0", "i1")
NUMBER_LISTS = ("j0", "j1")
NUMERIC = [
    fc.numeric_column("x0"),
    fc.numeric_column("x1", 2, default_value=[0.1, -1.0]),
    fc.numeric_column("x2", default_value=0.5),
    fc.numeric_column("n0", dtype="int64", default_value=3),
    fc.numeric_column("n1", 2, dtype="int64", default_value=-7, normalizer_fn=lambda x: (x - 1) * 0.5),
]
# Some of these become larger when rounded to float32, others smaller.
BOUNDARIES = [-2.5, -1.0, 0.0, 0.1, 0.5, 0.7, 3.0, 16777217.0]
NUMBERS_OF = {column.key: column for column in NUMERIC}
WEIGHTS_OF = {**{key: f"{key}_weights" for key in (*TEXTS, *TEXT_LISTS, *NUMBERS, *NUMBER_LISTS)}, "x1": "x1_weights"}

Draw = Callable[..., Any]


@st.composite
def categorical(draw: Draw, *, crossing: bool = True) -> Any:
    """Draw any categorical column that has no weights."""
    plain = st.one_of(*(make() for make in (vocabularies, hashes, identities, buckets)))
    return draw(st.one_of(plain, crosses()) if crossing else plain)


def _hash_functions() -> st.SearchStrategy[Any]:
    return st.sampled_from(["murmur3", "farmhash"])


@st.composite
def vocabularies(draw: Draw, size: int | None = None) -> Any:
    """Draw a vocabulary column of strings or integers, with or without lists, of a list or a file."""
    lists, text = draw(st.booleans()), draw(st.booleans())
    keys = (TEXT_LISTS if lists else TEXTS) if text else (NUMBER_LISTS if lists else NUMBERS)
    words = draw(
        st.lists(
            st.one_of(st.sampled_from(WORDS), texts()) if text else integers(),
            min_size=size or 1,
            max_size=size or 4,
            unique=True,
        )
    )
    oov = 0 if size else draw(st.integers(0, 3))
    arguments = {
        "key": draw(st.sampled_from(keys)),
        "num_oov_buckets": oov,
        "default_value": -1 if oov else draw(st.integers(-1, len(words) - 1)),
        "hash_function": draw(_hash_functions()),
        "multivalent": lists,
    }
    if draw(st.booleans()) and all(str(word).isprintable() for word in words):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
            file.writelines(f"{word}\n" for word in words)
            file.flush()
            return fc.categorical_column_with_vocabulary_file(
                vocabulary_file=file.name, dtype="string" if text else "int64", **arguments
            )
    return fc.categorical_column_with_vocabulary_list(vocabulary_list=words, **arguments)


@st.composite
def hashes(draw: Draw, size: int | None = None) -> Any:
    """Draw a hash bucket column."""
    lists, text = draw(st.booleans()), draw(st.booleans())
    keys = (TEXT_LISTS if lists else TEXTS) if text else (NUMBER_LISTS if lists else NUMBERS)
    return fc.categorical_column_with_hash_bucket(
        draw(st.sampled_from(keys)),
        size or draw(st.sampled_from([1, 2, 50])),
        dtype="string" if text else "int64",
        hash_function=draw(_hash_functions()),
        multivalent=lists,
    )


@st.composite
def identities(draw: Draw, size: int | None = None) -> Any:
    """Draw an identity column."""
    lists = draw(st.booleans())
    buckets = size or draw(st.integers(1, 5))
    return fc.categorical_column_with_identity(
        draw(st.sampled_from(NUMBER_LISTS if lists else NUMBERS)),
        buckets,
        default_value=draw(st.one_of(st.none(), st.integers(0, buckets - 1))),
        multivalent=lists,
    )


@st.composite
def buckets(draw: Draw) -> Any:
    """Draw a bucketized column of one number or two."""
    boundaries = draw(st.lists(st.sampled_from(BOUNDARIES), min_size=1, max_size=3, unique=True))
    return fc.bucketized_column(draw(st.sampled_from(NUMERIC)), sorted(boundaries))


@st.composite
def crosses(draw: Draw, depth: int = 2) -> Any:
    """Draw a cross, perhaps of crosses."""
    leaves = [st.sampled_from(TEXTS + TEXT_LISTS), vocabularies(), identities(), buckets()]
    if depth > 1:
        leaves.append(crosses(depth=depth - 1))
    # A row of a cross has as many ids as the product of its lists' lengths. An inner cross therefore has two keys, and
    # lists have few values.
    keys = draw(st.lists(st.one_of(*leaves), min_size=2, max_size=depth + 1))
    return fc.crossed_column(
        keys,
        draw(st.sampled_from([10**6, 1000, 50, 10, 1])),
        hash_key=draw(st.one_of(st.sampled_from([None, 0, 1, 2**64 - 1]), st.integers(0, 2**64 - 1))),
        hash_function=draw(_hash_functions()),
        multivalent=sorted({key for key in keys if isinstance(key, str) and key in TEXT_LISTS}),
    )


@st.composite
def weighted(draw: Draw) -> Any:
    """Draw a column whose weights are in a raw column that no other column reads."""
    column = draw(categorical(crossing=False))
    (feature,) = column.raw_features
    if feature.key not in WEIGHTS_OF:
        return column
    return fc.weighted_categorical_column(column, WEIGHTS_OF[feature.key])


@st.composite
def wide(draw: Draw) -> list[Any]:
    """Draw the columns of a linear model."""
    numbers = st.sampled_from(NUMERIC)
    return _unique(draw(st.lists(st.one_of(categorical(), weighted(), numbers), min_size=1, max_size=4)))


@st.composite
def deep(draw: Draw) -> list[Any]:
    """Draw the columns of a network."""
    numbers = st.sampled_from(NUMERIC)
    chosen = draw(st.lists(st.one_of(embeddings(), indicators(), buckets(), numbers), min_size=1, max_size=4))
    return _unique([*chosen, *draw(st.one_of(st.just([]), shared()))])


@st.composite
def embeddings(draw: Draw) -> Any:
    """Draw an embedding column."""
    return fc.embedding_column(
        draw(st.one_of(categorical(), weighted()).filter(lambda column: column.num_buckets <= 1000)),
        draw(st.integers(1, 3)),
        combiner=draw(combiners()),
        max_norm=draw(st.sampled_from([None, None, 0.3])),
    )


@st.composite
def indicators(draw: Draw) -> Any:
    """Draw an indicator column."""
    small = st.one_of(categorical(), weighted()).filter(lambda column: column.num_buckets <= 50)
    return fc.indicator_column(draw(small))


@st.composite
def shared(draw: Draw) -> Any:
    """Draw columns that share embeddings."""
    size = draw(st.integers(2, 5))
    make = draw(st.sampled_from([identities, hashes, vocabularies]))
    columns = _unique(draw(st.lists(make(size), min_size=1, max_size=2)))
    return fc.shared_embeddings(columns, 2, combiner=draw(combiners()), max_norm=draw(st.sampled_from([None, 0.5])))


def combiners() -> st.SearchStrategy[Any]:
    """Draw the name of a combiner."""
    return st.sampled_from(["sum", "mean", "sqrtn"])


def texts() -> st.SearchStrategy[str]:
    """Draw strings that UTF-8 can encode, not empty, and no longer than `reference.farmhash` supports."""
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=15)


def integers() -> st.SearchStrategy[int]:
    """Draw integers of 64 bits, small ones more often."""
    return st.one_of(st.integers(0, 3), st.sampled_from(INTEGERS), st.integers(-(2**63), 2**63 - 1))


def floats() -> st.SearchStrategy[float]:
    """Draw NaN, infinities, and numbers small enough that their sums stay within the range of float32."""
    finite = st.floats(-100, 100, width=32)
    return st.one_of(finite, st.sampled_from([-0.0, *BOUNDARIES[:-1], float("nan"), float("inf"), -float("inf")]))


@st.composite
def rows_of(draw: Draw, features: Sequence[fc.RawFeature]) -> list[Row]:
    """Draw one to eight rows of raw columns."""
    return [draw(_row(features)) for _ in range(draw(st.integers(1, 8)))]


@st.composite
def _row(draw: Draw, features: Sequence[fc.RawFeature]) -> Row:
    word = st.one_of(st.sampled_from(["", *WORDS]), texts(), st.none())
    number = st.one_of(integers(), st.none())
    row: Row = {}
    for feature in sorted(features, key=lambda feature: feature.key.endswith("_weights")):
        key = feature.key
        if key.endswith("_weights"):
            # "sqrtn" divides by the root of squares. The square of a weight below 1e-18 is 0 in float32, in TensorFlow
            # as well.
            real = st.floats(-3, 3, width=32).filter(lambda weight: abs(weight) > 1e-18)
            weight = st.one_of(st.sampled_from([0.0, 1.0, -2.0, float("nan")]), real)
            values = row[key.removesuffix("_weights")]
            row[key] = [draw(weight) for _ in values] if isinstance(values, list) else draw(weight)
        elif key in NUMBERS_OF:
            one = floats() if feature.dtype == "float32" else st.integers(-100, 100)
            row[key] = draw(one) if feature.shape == (1,) else [draw(one) for _ in range(feature.shape[0])]
        else:
            one = word if feature.dtype == "string" else number
            row[key] = draw(st.lists(one, max_size=3)) if feature.multivalent else draw(one)
    return row


def sent(rows: Sequence[Row], features: Sequence[fc.RawFeature]) -> dict[str, Any]:
    """Return rows as an export takes them: missing integers are -1."""
    whole = [{**row, **_integers(row, features)} for row in rows]
    return {feature.key: [row[feature.key] for row in whole] for feature in features}


def filled(row: Row, features: Sequence[fc.RawFeature]) -> Row:
    """Return a row with the default of a number in place of NaN, as an export takes it."""
    numbers = {one.key: np.ravel(row[one.key]) for one in features if one.default and one.dtype == "float32"}
    defaults = {one.key: np.resize(one.default, len(numbers[one.key])) for one in features if one.key in numbers}
    made = {key: np.where(np.isnan(values), defaults[key], values).tolist() for key, values in numbers.items()}
    return {**row, **{key: values if isinstance(row[key], list) else values[0] for key, values in made.items()}}


def trainable(row: Row, features: Sequence[fc.RawFeature]) -> Row:
    """Return a row without missing numbers and infinities, which would stop a training."""
    numbers = {
        one.key: np.nan_to_num(row[one.key], posinf=9, neginf=-9).tolist() for one in features if one.dtype == "float32"
    }
    return {**row, **numbers, **_integers(row, features)}


def _integers(row: Row, features: Sequence[fc.RawFeature]) -> Row:
    values = {one.key: row[one.key] for one in features if one.dtype == "int64"}
    return {
        key: [_or_missing(v) for v in one] if isinstance(one, list) else _or_missing(one) for key, one in values.items()
    }


def _or_missing(value: int | None) -> int:
    return -1 if value is None else value


@st.composite
def held(draw: Draw, rows: Sequence[Row], features: Sequence[fc.RawFeature]) -> dict[str, Any]:
    """Draw a container for each raw column of some rows, for instance Arrow lists or an object array."""
    return {feature.key: draw(_column([row[feature.key] for row in rows], feature)) for feature in features}


@st.composite
def _column(draw: Draw, values: list[Any], feature: fc.RawFeature) -> Any:
    if feature.key in NUMBERS_OF or (feature.dtype == "float32" and not feature.multivalent):
        return np.array(values, feature.dtype)
    inner = {"string": pa.string(), "int64": pa.int64(), "float32": pa.float32()}[feature.dtype]
    form = draw(st.sampled_from(["arrow", "large", "objects"]))
    if form == "objects":
        array = np.empty(len(values), object)
        array[:] = values
        if feature.multivalent or feature.dtype == "string":
            return array
        return np.array([-1 if value is None else value for value in values], np.int64)
    if not feature.multivalent:
        array = pa.array(values, inner)
        return array.dictionary_encode() if form == "large" and feature.dtype == "string" else array
    return pa.array(values, pa.large_list(inner) if form == "large" else pa.list_(inner))


def _unique(columns: Sequence[Any]) -> list[Any]:
    return list({column.name: column for column in columns}.values())
