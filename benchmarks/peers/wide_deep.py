"""The census sample's model and data for peers that train PyTorch modules; runs in `.bench/torch`.

The wide half is an `EmbeddingBag` with sparse gradients. Its optimizer is Adagrad, which takes them
and is what Ftrl without regularization amounts to.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers import census_rows, report, scores

# What tf.estimator's v1 classes take for eleven wide columns and for the network.
WIDE_RATE, DEEP_RATE, START = 0.005, 0.05, 0.1


class WideDeep(nn.Module):
    """Logits, ``[N]``, of wide ids, dense inputs and embedded ids."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.EmbeddingBag(census_rows.WIDE_ROWS, 1, mode="sum", sparse=True)
        nn.init.zeros_(self.wide.weight)
        self.bias = nn.Parameter(torch.zeros(1))
        self.embeddings = nn.Embedding(census_rows.EMBEDDED_ROWS, census_rows.EMBEDDING_SIZE)
        nn.init.trunc_normal_(self.embeddings.weight, std=census_rows.EMBEDDING_SIZE**-0.5)
        sizes = (census_rows.DEEP_INPUTS, *census_rows.HIDDEN_UNITS)
        layers = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        self.deep = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))
        for layer in self.deep:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, wide: Tensor, dense: Tensor, embedded: Tensor) -> Tensor:
        hidden = torch.cat([dense, self.embeddings(embedded).flatten(1)], dim=1)
        logits: Tensor = self.deep(hidden) + self.wide(wide) + self.bias
        return logits.squeeze(1)

    def deep_parameters(self) -> list[nn.Parameter]:
        """All but the wide table."""
        return [parameter for parameter in self.parameters() if parameter is not self.wide.weight]


def loss_of(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
    """The binary cross entropy, summed over the batch as tf.estimator's v1 classes do."""
    *features, labels = batch
    return functional.binary_cross_entropy_with_logits(model(*features), labels, reduction="sum")


def two_optimizers(model: WideDeep) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Adagrad for the wide table, which takes its sparse gradients, and the fused one for all else."""
    return (
        torch.optim.Adagrad([model.wide.weight], lr=WIDE_RATE, initial_accumulator_value=START),
        torch.optim.Adagrad(model.deep_parameters(), lr=DEEP_RATE, initial_accumulator_value=START, fused=True),
    )


def train_on(model: Any, optimizers: Sequence[torch.optim.Optimizer], batch: tuple[Tensor, ...]) -> None:
    """A step."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        optimizer.step()


def one_optimizer(model: WideDeep) -> torch.optim.Optimizer:
    """Both halves' Adagrad as groups of one optimizer, for libraries that want one."""
    groups = [{"params": [model.wide.weight], "lr": WIDE_RATE}, {"params": model.deep_parameters(), "lr": DEEP_RATE}]
    return torch.optim.Adagrad(groups, initial_accumulator_value=START)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of peers that use a DataLoader."""
    made = report.parser(description)
    made.add_argument("--workers", type=int, help="of the DataLoader; by default what is faster on two cores")
    return made


def prepare(args: argparse.Namespace) -> TensorDataset:
    """Does what `args` say of threads, and reads the training rows."""
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    return dataset(census_rows.read(args.data / "adult.data.csv"))


def dataset(rows: census_rows.CensusRows) -> TensorDataset:
    """Wide ids, dense inputs, embedded ids and labels, row by row."""
    arrays = rows.wide_ids(), rows.dense(), rows.embedded_ids(), rows.labels
    return TensorDataset(*map(torch.from_numpy, arrays))


def loader(rows: TensorDataset, args: argparse.Namespace) -> DataLoader[tuple[Tensor, ...]]:
    """Shuffled batches, collated row by row as a DataLoader does."""
    workers = _workers(args.batch) if args.workers is None else args.workers
    return DataLoader(
        rows, batch_size=args.batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
    )


def _workers(batch: int) -> int:
    """Handing a batch over from another process costs more than collating a small one."""
    return 2 if batch >= 256 else 0


def evaluate(model: WideDeep, args: argparse.Namespace, found: report.Report) -> None:
    """Enters the scores on the test file."""
    *features, labels = dataset(census_rows.read(args.data / "adult.test.csv")).tensors
    with torch.no_grad():
        chances = model(*features).sigmoid()
    scores.enter(found, chances.numpy(), labels.numpy())
