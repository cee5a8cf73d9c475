"""Trains, evaluates and exports TabM on census rows: `python -m examples.own_module.task --help`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import torch_estimator as te
from torch_estimator import errors, files
from torch_estimator import feature_column as fc

from ..census import columns, sample
from ..options import at_least, positive
from . import tabm

EMBEDDING_SIZE = 8


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked as far as argparse can."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.own_module.task",
        description="Train, evaluate and export TabM on census rows.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--train-files", nargs="+", help="CSV files to train on; without them a sample is generated")
    add("--eval-files", nargs="+", help="CSV files to evaluate on")
    add("--job-dir", default="runs/own_module", help="directory or URL for checkpoints, summaries and exports")
    add("--num-epochs", type=at_least(1), default=6, help="passes over the training files")
    add("--batch-size", type=at_least(1), default=256, help="rows in a step")
    add("--hidden-units", type=at_least(1), nargs="+", default=[128, 128], help="sizes of the hidden layers")
    add("--members", type=at_least(1), default=16, help="networks in the ensemble")
    add("--learning-rate", type=positive, default=0.002, help="of AdamW")
    add("--save-checkpoints-steps", type=at_least(1), default=500, help="steps between checkpoints")
    add("--seed", type=at_least(0), default=1, help="of the initial weights, the shuffling and the generated sample")
    add("--verbosity", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO", help="of the log")
    args = parser.parse_args(arguments)
    if bool(args.train_files) != bool(args.eval_files):
        parser.error("--train-files and --eval-files go together: give both, or neither for a generated sample")
    return args


def feature_columns() -> list[Any]:
    """Numbers, the skewed ones as logarithms, and an embedding of every category."""
    vocabularies = {
        "gender": columns.GENDER,
        "race": columns.RACE,
        "education": columns.EDUCATION,
        "marital_status": columns.MARITAL_STATUS,
        "relationship": columns.RELATIONSHIP,
        "workclass": columns.WORKCLASS,
    }
    categories: list[Any] = [
        fc.categorical_column_with_vocabulary_list(name, words) for name, words in vocabularies.items()
    ]
    hashed: list[Any] = [fc.categorical_column_with_hash_bucket(name, 100) for name in ("occupation", "native_country")]
    return [
        fc.numeric_column("age", normalizer_fn=lambda years: (years - 38.6) / 13.6),
        fc.numeric_column("education_num", normalizer_fn=lambda years: (years - 10) / 2.5),
        fc.numeric_column("hours_per_week", normalizer_fn=lambda hours: (hours - 40) / 12),
        fc.numeric_column("capital_gain", normalizer_fn=lambda dollars: torch.log1p(dollars) / 3),
        fc.numeric_column("capital_loss", normalizer_fn=lambda dollars: torch.log1p(dollars) / 3),
        *(fc.embedding_column(column, EMBEDDING_SIZE) for column in (*categories, *hashed)),
    ]


def as_targets(features: Mapping[str, Any], labels: Any) -> tuple[Mapping[str, Any], Any]:
    """Labels as 1 for the higher bracket and 0 for the lower."""
    return features, (labels == columns.LABELS[1]).astype(np.float32)


def read_csv(csv_files: Sequence[str]) -> te.data.Dataset:
    """Census rows with their labels."""
    used = [name for name in columns.CSV_COLUMNS if name not in columns.UNUSED]
    return te.data.Dataset.from_csv(
        csv_files, column_names=columns.CSV_COLUMNS, select_columns=used, label=columns.LABEL
    )


def metrics(labels: torch.Tensor, predictions: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Accuracy and area under the ROC curve of the ensemble."""
    from torchmetrics.functional.classification import binary_accuracy, binary_auroc

    probability, target = predictions["probability"].reshape(-1), labels.reshape(-1).long()
    return {"accuracy": binary_accuracy(probability, target), "auc": binary_auroc(probability, target)}


def build_estimator(args: argparse.Namespace) -> te.Estimator:
    """TabM behind the feature columns, as an estimator."""
    all_columns = feature_columns()
    width = sum(column.width for column in all_columns)
    torch.manual_seed(args.seed)
    estimator = te.Estimator.from_module(
        tabm.TabM(width, args.hidden_units, members=args.members),
        columns=all_columns,
        loss=tabm.loss,
        predictions=tabm.predictions,
        optimizer=te.optim.AdamW(lr=args.learning_rate, weight_decay=3e-4),
        model_dir=args.job_dir,
        config=te.RunConfig(random_seed=args.seed, save_checkpoints_steps=args.save_checkpoints_steps),
    )
    return te.add_metrics(estimator, metrics)


def run(args: argparse.Namespace) -> None:
    """Trains on the given files or on a generated sample, and prints what was reached."""
    best = None
    if not args.train_files:
        try:
            best = sample.write(files.join(args.job_dir, "sample"), seed=args.seed)
        except OSError as error:
            raise errors.InvalidValueError(
                f"job directory {args.job_dir} cannot be written: {files.reason(error)}."
            ) from error
        args.train_files, args.eval_files = [best.train_file], [best.eval_file]
        print(f"No --train-files were given: training on the generated {best.train_file}.")
    reached, exports = te.train_and_evaluate(
        build_estimator(args),
        te.TrainSpec(
            lambda: (
                read_csv(args.train_files)
                .shuffle(50_000, seed=args.seed)
                .repeat(args.num_epochs)
                .batch(args.batch_size)
                .map(as_targets)
            )
        ),
        te.EvalSpec(
            lambda: read_csv(args.eval_files).batch(1024).map(as_targets),
            steps=None,
            throttle_secs=10,
            exporters=te.FinalExporter("tabm", te.serving_input.json(feature_columns())),
        ),
    )
    for path in exports:
        print(f"exported: {path}")
    print(f"reached at step {reached['global_step']}: accuracy {reached['accuracy']:.4f}, AUC {reached['auc']:.4f}")
    if best is not None:
        print(
            "best reachable, by the process that made the sample: "
            f"accuracy {best.best_accuracy:.4f}, AUC {best.best_auc:.4f}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; what the user can mend ends it with one sentence and exit status 2."""
    args = parse(arguments)
    logging.getLogger("torch_estimator").setLevel(args.verbosity)
    with errors.exit_on_user_error():
        run(args)


if __name__ == "__main__":
    main()
