"""Census rows in memory, their splits, and how well scores rank and decide them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import torch_estimator as te
from benchmarks.peers import scores
from examples.census.trainer import columns
from examples.census.trainer.input import read_csv


@dataclass(frozen=True, slots=True)
class People:
    """Rows of a census file: columns by name, without the unused ones, and whether the income is above 50K."""

    features: dict[str, np.ndarray]
    rich: np.ndarray

    @classmethod
    def of(cls, file: str) -> People:
        """All rows of a file."""
        batches = list(read_csv([file], batch_size=8192))
        names = list(batches[0][0])
        features = {name: np.concatenate([batch[name] for batch, _ in batches]) for name in names}
        return cls(features, np.concatenate([labels for _, labels in batches]) == columns.LABELS[1])

    def __len__(self) -> int:
        return len(self.rich)

    def __getitem__(self, which: np.ndarray) -> People:
        return People({name: values[which] for name, values in self.features.items()}, self.rich[which])

    def dataset(self) -> te.data.Dataset:
        """The same rows with their labels."""
        return te.data.Dataset.from_arrays(
            self.features, np.asarray(columns.LABELS, dtype=object)[self.rich.astype(int)]
        )


@dataclass(frozen=True, slots=True)
class Score:
    """How good a model is on rows that it has not seen, and how long it trained."""

    auc: float
    accuracy: float
    seconds: float

    @classmethod
    def of(cls, probabilities: np.ndarray, rich: np.ndarray, seconds: float) -> Score:
        """Exact AUC (ties count one half), and the share of rows on the right side of 1/2."""
        return cls(scores.auc(probabilities, rich), scores.accuracy(probabilities, rich), seconds)


def folds(people: People, count: int, seed: int = 0) -> Iterator[tuple[People, People]]:
    """The rows to fit and those held out, `count` times; each row is held out once."""
    fold = np.random.default_rng(seed).permutation(len(people)) % count
    for held_out in range(count):
        yield people[fold != held_out], people[fold == held_out]
