"""The census sample's input in tf.data; runs in `.bench/tensorflow`.

Decoded, shuffled, labels as numbers; strings stay strings, whose ids TensorFlow's feature columns compute in the
training step.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.peers import input_report
from examples.census.trainer import columns

SHUFFLE_BATCHES = 10
_NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week", *columns.UNUSED)
_DEFAULTS = [[0.0] if name in _NUMBERS else [""] for name in columns.CSV_COLUMNS]


def batches(args: argparse.Namespace) -> tf.data.Dataset:
    """Columns by name, and labels."""
    rows = tf.data.TextLineDataset(str(args.file))
    if args.decode == "line":
        rows = rows.map(_decode, num_parallel_calls=tf.data.AUTOTUNE)
    if not args.in_order:
        rows = rows.shuffle(SHUFFLE_BATCHES * args.batch)
    rows = rows.batch(args.batch)
    if args.decode == "batch":
        rows = rows.map(_decode, num_parallel_calls=tf.data.AUTOTUNE)
    return rows.prefetch(tf.data.AUTOTUNE)


def _decode(lines: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    fields = tf.io.decode_csv(lines, record_defaults=_DEFAULTS)
    row = dict(zip(columns.CSV_COLUMNS, fields, strict=True))
    for name in columns.UNUSED:
        del row[name]
    return row, tf.equal(row.pop(columns.LABEL), columns.LABELS[1])


def sizes(data: tf.data.Dataset) -> Iterator[int]:
    """Rows of each batch."""
    for _, labels in data:
        yield int(labels.shape[0])


def main() -> None:
    """Measures what was asked for."""
    arguments = input_report.parser(__doc__)
    help = "parse line by line as Google's sample, or by the batch"
    arguments.add_argument("--decode", choices=("line", "batch"), default="line", help=help)
    args = arguments.parse_args()
    input_report.report("tf.data", tf.__version__, sizes(batches(args)), args.rows)


if __name__ == "__main__":
    main()
