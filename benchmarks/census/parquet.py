"""The census rows as a large Parquet file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from examples.census.trainer import columns

_ROWS_OF_A_GROUP = 100_000


def write_parquet(source: Path, target: Path, rows: int, seed: int = 1) -> None:
    """Writes rows of a census CSV file, drawn with replacement, in groups of 100,000."""
    table = pa.csv.read_csv(source, pa.csv.ReadOptions(column_names=list(columns.CSV_COLUMNS)))
    drawn = np.random.default_rng(seed).integers(0, len(table), rows)
    pa.parquet.write_table(table.take(pa.array(drawn)), target, row_group_size=_ROWS_OF_A_GROUP)
