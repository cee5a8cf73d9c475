"""TFRecord files of the census rows in tf.data; runs in `.bench/tensorflow`.

Parsed with the spec of the sample's columns, shuffled, labels as numbers.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.peers import input_report
from benchmarks.peers.tensorflow_input import SHUFFLE_BATCHES, sizes
from examples.census.trainer import columns

_NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
SPEC = {
    name: tf.io.FixedLenFeature([], tf.float32 if name in _NUMBERS else tf.string)
    for name in columns.CSV_COLUMNS
    if name not in columns.UNUSED
}


def batches(args: argparse.Namespace) -> tf.data.Dataset:
    """Columns by name, and labels."""
    rows = tf.data.TFRecordDataset(str(args.file))
    if args.parse == "single":
        rows = rows.map(lambda one: tf.io.parse_single_example(one, SPEC), num_parallel_calls=tf.data.AUTOTUNE)
    if not args.in_order:
        rows = rows.shuffle(SHUFFLE_BATCHES * args.batch)
    rows = rows.batch(args.batch)
    if args.parse == "batch":
        rows = rows.map(lambda many: tf.io.parse_example(many, SPEC), num_parallel_calls=tf.data.AUTOTUNE)
    return rows.map(_labelled).prefetch(tf.data.AUTOTUNE)


def _labelled(row: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    return row, tf.equal(row.pop(columns.LABEL), columns.LABELS[1])


def main() -> None:
    """Measures what was asked for."""
    arguments = input_report.parser(__doc__)
    help = "parse_single_example for each record, or parse_example by the batch"
    arguments.add_argument("--parse", choices=("single", "batch"), default="single", help=help)
    args = arguments.parse_args()
    input_report.report("tf.data", tf.__version__, sizes(batches(args)), args.rows)


if __name__ == "__main__":
    main()
