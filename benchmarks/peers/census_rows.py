"""The census rows as numpy arrays, encoded ahead of time for peers: ids by column, numbers, labels.

For the interpreters of peers: needs numpy alone. The columns and sizes are those of
`examples/census/trainer/featurizer.py`; hashes are CRC-32 of the values. Peers are spared all parsing and hashing while
they train, which flatters them.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from examples.census.trainer import columns

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

AGE_BOUNDARIES = (18, 25, 30, 35, 40, 45, 50, 55, 60, 65)
HASH_BUCKETS = {"native_country": 100, "occupation": 100}
CROSSES = {
    ("education", "occupation"): 10_000,
    ("age_buckets", "race", "occupation"): 1_000_000,
    ("native_country", "occupation"): 10_000,
}
NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
LOGARITHMS = ("capital_gain", "capital_loss")
EMBEDDING_SIZE = 8
HIDDEN_UNITS = (100, 70, 48, 34)

_VOCABULARY_SIZES = {name: len(values) for name, values in columns.VOCABULARIES.items()}
_BUCKETS = {**_VOCABULARY_SIZES, **HASH_BUCKETS, "age_buckets": len(AGE_BOUNDARIES) + 1}
_WIDE = (
    "gender",
    "native_country",
    "education",
    "occupation",
    "workclass",
    "marital_status",
    "relationship",
    "age_buckets",
)

WIDE = {"_X_".join(keys): buckets for keys, buckets in CROSSES.items()} | {name: _BUCKETS[name] for name in _WIDE}
"""Buckets of each column of the linear part."""

INDICATORS = {
    name: _BUCKETS[name] for name in ("workclass", "education", "marital_status", "gender", "race", "relationship")
}
"""Values of each column that the network sees as zeros and a one."""

WIDE_ROWS = sum(WIDE.values())
EMBEDDED_ROWS = sum(HASH_BUCKETS.values())
DENSE_INPUTS = sum(INDICATORS.values()) + len(NUMBERS)
DEEP_INPUTS = DENSE_INPUTS + EMBEDDING_SIZE * len(HASH_BUCKETS)


@dataclass(frozen=True, slots=True)
class CensusRows:
    """Rows in the order of the file.

    `ids` has, by column of `WIDE`, `INDICATORS` and `HASH_BUCKETS`, int64 ``[rows]``, each from 0. `numbers` are
    float32 ``[rows, 5]`` in the order of `NUMBERS`; gains and losses are log(1 + x). `labels` are float32 ``[rows]``, 1
    above 50K.
    """

    ids: dict[str, Ids]
    numbers: Floats
    labels: Floats

    def __len__(self) -> int:
        return len(self.labels)

    def wide_ids(self) -> Ids:
        """int64 ``[rows, 11]``: ids in one space of `WIDE_ROWS`, column after column."""
        return self._in_one_space(WIDE)

    def embedded_ids(self) -> Ids:
        """int64 ``[rows, 2]``: ids in one space of `EMBEDDED_ROWS`."""
        return self._in_one_space(HASH_BUCKETS)

    def dense(self) -> Floats:
        """float32 ``[rows, 50]``: indicators and numbers, all of the network's input but the embeddings."""
        hot = np.zeros((len(self), sum(INDICATORS.values())), np.float32)
        np.put_along_axis(hot, self._in_one_space(INDICATORS), 1.0, axis=1)
        return np.concatenate([hot, self.numbers], axis=1)

    def _in_one_space(self, buckets: dict[str, int]) -> Ids:
        offsets = np.cumsum([0, *buckets.values()])[:-1]
        ids: Ids = np.stack([self.ids[name] for name in buckets], axis=1) + offsets
        return ids


def read(file: str | Path) -> CensusRows:
    """Read and encode a census CSV file without a header; raise a ValueError if it is not of the census."""
    with Path(file).open(newline="") as lines:
        table = dict(zip(columns.CSV_COLUMNS, zip(*filter(None, csv.reader(lines)), strict=True), strict=True))
    ids = {name: _vocabulary_ids(name, table[name], values) for name, values in columns.VOCABULARIES.items()}
    numbers = np.stack([np.fromiter(map(float, table[name]), np.float32) for name in NUMBERS], axis=1)
    ids["age_buckets"] = np.searchsorted(AGE_BOUNDARIES, numbers[:, NUMBERS.index("age")], side="right")
    for name, buckets in HASH_BUCKETS.items():
        ids[name] = _hashed([table[name]], buckets)
    raw = {**table, "age_buckets": tuple(map(str, ids["age_buckets"].tolist()))}
    for keys, buckets in CROSSES.items():
        ids["_X_".join(keys)] = _hashed([raw[key] for key in keys], buckets)
    for place in map(NUMBERS.index, LOGARITHMS):
        numbers[:, place] = np.log1p(numbers[:, place])
    labels = _vocabulary_ids(columns.LABEL, table[columns.LABEL], columns.LABELS)
    return CensusRows(ids, numbers, labels.astype(np.float32))


def orders(rows: int, batch: int, *, seed: int = 1) -> Iterator[Ids]:
    """For ever the places of a batch's rows, int64 ``[batch]``: every epoch in an order of its own.

    Batches go on over the end of an epoch, so that all are full.
    """
    if batch < 1 or rows < 1:
        raise ValueError(f"{batch} rows of {rows} make no batch; both must be at least 1.")
    draw = np.random.default_rng(seed)
    epochs = math.ceil(batch / rows)
    left = np.empty(0, np.int64)
    while True:
        if len(left) < batch:
            left = np.concatenate([left, *(draw.permutation(rows) for _ in range(epochs))])
        yield left[:batch]
        left = left[batch:]


def _vocabulary_ids(name: str, values: Sequence[str], vocabulary: Sequence[str]) -> Ids:
    known = {value: place for place, value in enumerate(vocabulary)}
    try:
        return np.fromiter(map(known.__getitem__, values), np.int64, len(values))
    except KeyError as error:
        raise ValueError(f"{name} is {error.args[0]!r} in a row, which no census file has.") from None


def _hashed(keys: Sequence[Sequence[str]], buckets: int) -> Ids:
    """CRC-32 of the values of one column or of several together, each distinct one hashed once."""
    rows = list(zip(*keys, strict=True))
    hashes = {row: zlib.crc32("\x1f".join(row).encode()) % buckets for row in set(rows)}
    return np.fromiter(map(hashes.__getitem__, rows), np.int64, len(rows))
