"""Rows per CPU-second with and without `Dataset.cache`, by epoch: `scripts/bench input_cache`.

The census file, repeated until it takes several windows: parsed, turned into ids, shuffled, batches of 512.
CPU seconds are those of all threads of the process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from benchmarks.input_pipeline import DATA
from benchmarks.protocol import show, show_machine, table
from examples.census.trainer import columns, featurizer
from torch_estimator.data import Dataset
from torch_estimator.feature_column import FeatureTransform
from torch_estimator.heads import BinaryClassHead
from torch_estimator.train.batches import HostTransform

EPOCHS = 4


def epochs(file: Path, cached: Callable[[Dataset], Dataset], rows: int) -> list[float]:
    """Rows per CPU-second of every epoch."""
    transform = HostTransform(
        FeatureTransform(*featurizer.wide_and_deep_columns()),
        BinaryClassHead(label_vocabulary=list(columns.LABELS)),
        with_labels=True,
    )
    used = [name for name in columns.CSV_COLUMNS if name not in columns.UNUSED]
    data = Dataset.from_csv(file, column_names=columns.CSV_COLUMNS, select_columns=used, label=columns.LABEL)
    speeds, seen, started = [], 0, time.process_time()
    with closing(cached(data).shuffle(10_000, seed=1).repeat(EPOCHS).batch(512).iterator(transform)) as batches:
        for batch in batches:
            seen += len(batch.labels)
            if seen >= rows * (len(speeds) + 1):
                now = time.process_time()
                speeds.append(rows / (now - started))
                started = now
    return speeds


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", default=str(DATA), help="census CSV file without a header")
    parser.add_argument("--times", type=int, default=10, help="how often the file is repeated")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file, cache = Path(folder) / "large.csv", Path(folder) / "cache"
        text = Path(args.file).read_bytes().strip() + b"\n"
        file.write_bytes(text * args.times)
        rows = text.count(b"\n") * args.times
        ways: dict[str, Callable[[Dataset], Dataset]] = {
            "no cache": lambda data: data,
            "cache()": lambda data: data.cache(),
            "cache(file), first run": lambda data: data.cache(cache),
            "cache(file), next run": lambda data: data.cache(cache),
            "cache(file).cache()": lambda data: data.cache(cache).cache(),
        }
        speeds = [[name, *epochs(file, cached, rows)] for name, cached in ways.items()]
        header = ["", *(f"epoch {number + 1}" for number in range(EPOCHS))]
        show("cache", f"{rows:,} rows; rows per CPU-second by epoch", table(header, speeds))
        print(f"CSV {file.stat().st_size:,} bytes, cache {cache.stat().st_size:,} bytes")
        show_machine()


if __name__ == "__main__":
    main()
