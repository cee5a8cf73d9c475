"""A DataLoader over a list of rows, each a dictionary; runs in the project's own environment, which has PyTorch.

Rows are encoded ahead of time and in memory, which spares it parsing and hashing; what is measured is how rows become
batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.peers import census_rows, input_report
from benchmarks.peers.census_rows import CensusRows


def as_dictionaries(rows: CensusRows, count: int | None) -> list[dict[str, Any]]:
    """One dictionary a row: numbers and ids by column, and the label."""
    columns = {name: ids.tolist() for name, ids in rows.ids.items()}
    columns |= dict(zip(census_rows.NUMBERS, rows.numbers.T.tolist(), strict=True))
    columns["label"] = rows.labels.tolist()
    return [dict(zip(columns, row, strict=True)) for row in list(zip(*columns.values(), strict=True))[:count]]


def sizes(loader: DataLoader[dict[str, Any]]) -> Iterator[int]:
    """Rows of each batch."""
    for batch in loader:
        yield len(batch["label"])


def main() -> None:
    """Measures what was asked for."""
    arguments = input_report.parser(__doc__)
    arguments.add_argument("--workers", type=int, default=0, help="the DataLoader's num_workers")
    args = arguments.parse_args()
    rows: Any = as_dictionaries(census_rows.read(args.file), args.rows)
    loader = DataLoader(rows, batch_size=args.batch, shuffle=not args.in_order, num_workers=args.workers)
    input_report.report("DataLoader", torch.__version__, sizes(loader), args.rows)


if __name__ == "__main__":
    main()
