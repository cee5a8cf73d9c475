"""The census example's input up to the tensors of a batch; runs in the project's own environment.

Parsed, shuffled, the ids and numbers of all columns of the sample, labels: what the training loop takes from the thread
that works ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import torch_estimator as te
from benchmarks.peers import input_report
from examples.census.trainer import columns, featurizer
from examples.census.trainer.input import SHUFFLE_BATCHES
from torch_estimator.train.model import Model


def dataset(file: Path, *, batch: int, in_order: bool) -> te.data.Dataset:
    """The rows of a file, shuffled as the example does it unless they are wanted in order."""
    used = [name for name in columns.CSV_COLUMNS if name not in columns.UNUSED]
    if file.suffix == ".parquet":
        data = te.data.Dataset.from_parquet(file, columns=used, label=columns.LABEL)
    else:
        data = te.data.Dataset.from_csv(
            file, column_names=columns.CSV_COLUMNS, select_columns=used, label=columns.LABEL
        )
    return (data if in_order else data.shuffle(SHUFFLE_BATCHES * batch, seed=1)).batch(batch)


def model() -> Model:
    """The host half of the sample's model; the other half has nothing to do here."""
    wide, deep = featurizer.wide_and_deep_columns()
    transform = te.feature_column.FeatureTransform(wide, deep)
    assert transform.dnn is not None
    spec = te.EstimatorSpec(
        mode=te.ModeKeys.TRAIN,
        module=te.feature_column.InputLayer(transform.dnn),
        head=te.BinaryClassHead(label_vocabulary=list(columns.LABELS)),
        optimizer=te.optim.Adagrad(lr=0.1),
        transform=transform,
    )
    return Model(spec)


def sizes(model: Model, data: te.data.Dataset) -> Iterator[int]:
    """Rows of each batch, which is on its device when it is counted."""
    with model.batches(data) as batches:
        for batch in batches:
            yield len(batch.labels)


def main() -> None:
    """Measures what was asked for."""
    args = input_report.parser(__doc__).parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    batches = sizes(model(), dataset(args.file, batch=args.batch, in_order=args.in_order))
    input_report.report("torch-estimator", te.__version__, batches, args.rows)


if __name__ == "__main__":
    main()
