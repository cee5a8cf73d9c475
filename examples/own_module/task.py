"""Trains, evaluates and exports TabM on census rows: `python -m examples.own_module.task --help`."""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

import torch_estimator as te
from torch_estimator import errors, files

from ..census import recipe
from ..census.trainer import columns, sample
from ..options import at_least, leaves_evaluating, positive
from . import tabm

WEIGHT_DECAY = 0.03


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked as far as argparse can."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.own_module.task",
        description="Train, evaluate and export TabM on census rows.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--train-file", help="CSV file to train on; without it a sample is generated")
    add("--eval-file", help="CSV file to evaluate on")
    add("--job-dir", default="runs/own_module", help="directory or URL for checkpoints, summaries and exports")
    add("--num-epochs", type=at_least(1), default=6, help="passes over the training files")
    add("--batch-size", type=at_least(1), default=256, help="rows in a step")
    add("--hidden-units", type=at_least(1), nargs="+", default=[128, 128], help="sizes of the hidden layers")
    add("--members", type=at_least(1), default=16, help="networks in the ensemble")
    add("--learning-rate", type=positive, default=0.004, help="highest of the one-cycle schedule")
    add("--save-checkpoints-steps", type=at_least(1), default=500, help="steps between checkpoints")
    add("--seed", type=at_least(0), default=1, help="of the initial weights, the shuffling and the generated sample")
    add("--verbosity", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO", help="of the log")
    args = parser.parse_args(arguments)
    if bool(args.train_file) != bool(args.eval_file):
        parser.error("--train-file and --eval-file go together: give both, or neither for a generated sample")
    return args


def as_targets(features: Mapping[str, Any], labels: Any) -> tuple[Mapping[str, Any], Any]:
    """Labels as 1 for the higher bracket and 0 for the lower."""
    return features, (labels == columns.LABELS[1]).astype(np.float32)


def read_csv(csv_file: str) -> te.data.Dataset:
    """Census rows with their labels."""
    used = [name for name in columns.CSV_COLUMNS if name not in columns.UNUSED]
    return te.data.Dataset.from_csv(
        csv_file, column_names=columns.CSV_COLUMNS, select_columns=used, label=columns.LABEL
    )


def metrics(labels: torch.Tensor, predictions: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Accuracy and area under the ROC curve of the ensemble."""
    from torchmetrics.functional.classification import binary_accuracy, binary_auroc

    probability, target = predictions["probability"].reshape(-1), labels.reshape(-1).long()
    return {"accuracy": binary_accuracy(probability, target), "auc": binary_auroc(probability, target)}


def build_estimator(args: argparse.Namespace, deep: list[Any], steps: int) -> te.Estimator:
    """TabM behind the deep columns, as an estimator that is to be trained for `steps` steps."""
    width = sum(column.width for column in deep)

    def optimizer(named: Iterable[tuple[str, nn.Parameter]]) -> LRScheduler:
        adamw = torch.optim.AdamW(named, lr=args.learning_rate, weight_decay=WEIGHT_DECAY)
        return OneCycleLR(adamw, max_lr=args.learning_rate, total_steps=steps)

    torch.manual_seed(args.seed)
    estimator = te.Estimator.from_module(
        tabm.TabM(width, args.hidden_units, members=args.members),
        columns=deep,
        loss=tabm.loss,
        predictions=tabm.predictions,
        optimizer=optimizer,
        model_dir=args.job_dir,
        config=te.RunConfig(random_seed=args.seed, save_checkpoints_steps=args.save_checkpoints_steps),
    )
    return te.add_metrics(estimator, metrics)


def run(args: argparse.Namespace) -> None:
    """Trains on the given files or on a generated sample, and prints what was reached."""
    best = None
    if not args.train_file:
        try:
            best = sample.write(files.join(args.job_dir, "sample"), seed=args.seed)
        except OSError as error:
            raise errors.InvalidValueError(
                f"job directory {args.job_dir} cannot be written: {files.reason(error)}."
            ) from error
        args.train_file, args.eval_file = best.train_file, best.eval_file
        print(f"No --train-file was given: training on the generated {best.train_file}.")
    numbers = recipe.numeric_values(args.train_file)
    _, deep = recipe.wide_and_deep_columns(numbers, recipe.Settings())
    steps = math.ceil(len(numbers["age"]) * int(args.num_epochs) / int(args.batch_size))
    estimator = build_estimator(args, deep, steps)
    train_spec = te.TrainSpec(
        lambda: (
            read_csv(args.train_file)
            .shuffle(50_000, seed=args.seed)
            .repeat(args.num_epochs)
            .batch(args.batch_size)
            .map(as_targets)
        ),
        max_steps=steps,
    )
    eval_spec = te.EvalSpec(
        lambda: read_csv(args.eval_file).batch(1024).map(as_targets),
        steps=None,
        throttle_secs=10,
        exporters=te.FinalExporter("tabm", te.serving_input.json(deep)),
    )
    reached, exports = te.train_and_evaluate(estimator, train_spec, eval_spec)
    if reached is None and leaves_evaluating(estimator.config):
        return
    if reached is None:
        print(f"{args.job_dir} already has step {steps}; evaluating it once more.")
        reached = estimator.evaluate(eval_spec.input_fn)
    for path in exports or ():
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
