"""Rows per CPU-second of the input pipeline: `scripts/bench input_pipeline`.

Census CSV -> parsed, shuffled, the ids and numbers of all of the sample's columns, labels, batches of 40. Nothing else
runs: no model, no training. CPU seconds are those of all threads of the process.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path

import pyarrow

from examples.census import columns
from examples.census.trainer import featurizer
from examples.census.trainer.input import read_csv
from torch_estimator.engine.batches import HostTransform
from torch_estimator.feature_column import FeatureTransform
from torch_estimator.heads import BinaryClassHead

MUST_REACH = 500_000
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "census" / "adult.data.csv"


def one_pass(file: str, epochs: int) -> float:
    """Rows per CPU-second of ``epochs`` epochs with a pipeline made anew."""
    wide, deep = featurizer.wide_and_deep_columns()
    head = BinaryClassHead(label_vocabulary=list(columns.LABELS))
    transform = HostTransform(FeatureTransform(wide, deep), head, with_labels=True)
    data = read_csv([file], batch_size=40, num_epochs=epochs, shuffle_seed=1).prefetch(8)
    started, rows = time.process_time(), 0
    with closing(data.iterator(transform)) as batches:
        for batch in batches:
            rows += len(batch.labels)
    return rows / (time.process_time() - started)


def main() -> None:
    """Prints the table; exits with 1 where the median of single epochs is below what is promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", default=str(DATA), help="census CSV file without a header")
    parser.add_argument("--rounds", type=int, default=9, help="measurements, after one that warms up")
    args = parser.parse_args()
    one_pass(args.file, 1)
    # One epoch parses every row; in later ones rows that fit into memory are only shuffled again.
    single = [one_pass(args.file, 1) for _ in range(args.rounds)]
    many = [one_pass(args.file, 10) for _ in range(max(1, args.rounds // 3))]
    holds = statistics.median(single) >= MUST_REACH
    print(f"{platform.platform()}, Python {platform.python_version()}, pyarrow {pyarrow.__version__}")
    print(f"{'rows per CPU-second':32}{'median':>12}{'min':>12}{'max':>12}")
    for name, values in (("one epoch", single), ("ten epochs", many)):
        print(f"{name:32}{statistics.median(values):12,.0f}{min(values):12,.0f}{max(values):12,.0f}")
    print(f"at least {MUST_REACH:,} in one epoch: {'holds' if holds else 'DOES NOT HOLD'}")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
