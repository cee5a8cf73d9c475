"""A classifier over one large table in a loop by hand, in one process: ``nn.Embedding(sparse=True)``."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import large_table
from benchmarks.peers.report import Pace, Report


def main() -> None:
    """Measure steps per second."""
    args = large_table.parser(__doc__).parse_args()
    table = nn.Embedding(args.rows, args.dim, sparse=True)
    tower = nn.Sequential(nn.Linear(args.dim, large_table.HIDDEN), nn.ReLU(), nn.Linear(large_table.HIDDEN, 1))
    optimizer = torch.optim.Adagrad([*table.parameters(), *tower.parameters()], lr=0.05)
    examples, labels = map(torch.from_numpy, large_table.batches(args.rows, args.batch))
    pace = Pace(args.warmup)
    while pace.steps < args.steps:
        at = pace.steps * args.batch % len(examples)
        ids, label = examples[at : at + args.batch], labels[at : at + args.batch]
        loss = functional.binary_cross_entropy_with_logits(tower(table(ids).mean(1)).squeeze(1), label, reduction="sum")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        pace.step()
    pace.end()
    report = Report(peer="nn.Embedding(sparse=True)", version=torch.__version__)
    report.take(pace, args.batch)
    report.print()


if __name__ == "__main__":
    main()
