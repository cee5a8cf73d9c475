"""TFRecord files of the census rows up to batches of raw columns; runs in the project's own environment.

Parsed with the spec of the sample's columns, shuffled, labels as numbers: what tf.data's `parse_example` gives.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import torch_estimator as te
from benchmarks.peers import input_report
from examples.census.trainer import columns
from examples.census.trainer.input import SHUFFLE_BATCHES

_NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")


def dataset(file: Path, *, batch: int, in_order: bool) -> te.data.Dataset:
    """The rows of a file, shuffled as the census example does it unless they are wanted in order."""
    schema = {
        name: te.data.FixedLenFeature([], "float32" if name in _NUMBERS else "string")
        for name in columns.CSV_COLUMNS
        if name not in columns.UNUSED
    }
    labels = {text: number for number, text in enumerate(columns.LABELS)}
    data = te.data.Dataset.from_tfrecord(file, schema=schema).label(columns.LABEL, labels)
    return (data if in_order else data.shuffle(SHUFFLE_BATCHES * batch, seed=1)).batch(batch)


def sizes(data: te.data.Dataset) -> Iterator[int]:
    """Rows of each batch."""
    with data.iterator() as batches:
        for batch in batches:
            yield len(batch.labels)


def main() -> None:
    """Measures what was asked for."""
    args = input_report.parser(__doc__).parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    batches = sizes(dataset(args.file, batch=args.batch, in_order=args.in_order))
    input_report.report("torch-estimator", te.__version__, batches, args.rows)


if __name__ == "__main__":
    main()
