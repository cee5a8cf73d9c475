"""Evaluation and prediction of the census example through torch-estimator's public API, from Parquet or CSV."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

import torch_estimator as te
from benchmarks.peers.report import Report, parser
from examples.census.trainer import columns, input, model

TRAIN_BATCH = 512


def read(args: argparse.Namespace) -> te.data.Dataset:
    """The rows in batches."""
    if args.file.suffix == ".parquet":
        return te.data.Dataset.from_parquet(str(args.file), label=columns.LABEL).batch(args.eval_batch)
    rows = input.read_csv([str(args.file)], batch_size=args.eval_batch, num_epochs=None)
    return rows.take(args.repeat_to // args.eval_batch)


def build_estimator(args: argparse.Namespace, model_dir: str) -> te.Estimator:
    """The example's classifier after some steps."""
    config = te.RunConfig(model_dir=model_dir, compile=False, random_seed=1)
    estimator = model.build_estimator(config, embedding_size=8, units=model.hidden_units(100, 4, 0.7))
    rows = input.read_csv([str(args.data / "adult.data.csv")], batch_size=TRAIN_BATCH, num_epochs=None, shuffle_seed=1)
    return estimator.train(lambda: rows, max_steps=args.steps)


def main() -> None:
    """Measures one call of `evaluate` and one of `predict`, everything included."""
    arguments = parser(__doc__)
    add = arguments.add_argument
    add("--file", type=Path, required=True, help="the rows to evaluate: .parquet, or CSV without a header")
    add("--repeat-to", type=int, default=1_000_000, help="how many rows of a CSV file, again and again")
    add("--eval-batch", type=int, default=40, help="rows in a batch of evaluation and prediction")
    args = arguments.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)
    report = Report(peer="torch-estimator", version=te.__version__)
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = build_estimator(args, model_dir)
        started = time.perf_counter()
        metrics = estimator.evaluate(lambda: read(args))
        evaluated = time.perf_counter()
        batches = estimator.predict(lambda: read(args), yield_single_examples=False)
        rows = sum(len(batch["logits"]) for batch in batches)
        predicted = time.perf_counter()
    report.eval_examples_per_s = rows / (evaluated - started)
    report.predict_examples_per_s = rows / (predicted - evaluated)
    report.auc, report.average_loss, report.accuracy = (metrics[name] for name in ("auc", "average_loss", "accuracy"))
    report.print()


if __name__ == "__main__":
    main()
