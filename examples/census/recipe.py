"""Wide and deep at its best on census data, in seconds: `python -m examples.census.recipe --help`.

README.md says what each part of it is worth and how it was chosen.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

import torch_estimator as te
from torch_estimator import errors, files
from torch_estimator import feature_column as fc

from ..options import at_least
from .trainer import columns, sample
from .trainer.input import read_csv

ADULT = Path(__file__).resolve().parents[3] / "shared" / "data" / "census"
NUMBERS = ("age", "education_num", "hours_per_week")
# Zero for nearly everybody; where not, single amounts tell more than their size.
AMOUNTS = ("capital_gain", "capital_loss")
EVAL_BATCH_SIZE = 4096

Numbers = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was chosen on a part of the training file."""

    number_buckets: int = 10
    amount_buckets: int = 400
    embedding_size: int = 8
    hidden_units: tuple[int, ...] = (128, 64)
    dropout: float | None = 0.3
    deep_rate: float = 0.01
    deep_decay: float = 0.3
    wide_rate: float = 0.004
    wide_decay: float = 2.0
    one_cycle: bool = True
    batch_size: int = 512
    epochs: int = 10

    def steps(self, rows: int) -> int:
        """Training steps that go through so many rows `epochs` times."""
        return max(1, rows * self.epochs // self.batch_size)


def numeric_values(file: str) -> Numbers:
    """The numeric columns of a census file."""
    batches = [features for features, _ in read_csv([file], batch_size=EVAL_BATCH_SIZE)]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in (*NUMBERS, *AMOUNTS)}


def boundaries(name: str, values: np.ndarray, settings: Settings) -> list[float]:
    """Where a number is cut: at quantiles; amounts at 1 and at the quantiles of those that are not zero."""
    if name in NUMBERS:
        return fc.quantile_boundaries(values, settings.number_buckets)
    some = values[values > 0]
    return [1.0, *(fc.quantile_boundaries(some, settings.amount_buckets) if some.size else ())]


def standardized(name: str, values: np.ndarray) -> fc.NumericColumn:
    """A number, or the logarithm of an amount, with mean 0 and standard deviation 1."""
    scale = torch.log1p if name in AMOUNTS else torch.Tensor.float
    known = scale(torch.from_numpy(values).double())
    mean, deviation = known.mean().item(), known.std().item() or 1.0
    return fc.numeric_column(name, normalizer_fn=lambda x: (scale(x) - mean) / deviation)


def wide_and_deep_columns(numbers: Numbers, settings: Settings) -> tuple[list[Any], list[Any]]:
    """The wide columns (categories, buckets and crosses) and the deep ones (embeddings of both, and the numbers)."""
    buckets = {
        name: fc.bucketized_column(fc.numeric_column(name), boundaries(name, values, settings))
        for name, values in numbers.items()
    }
    categories: list[fc.CategoricalColumn] = [
        *(fc.categorical_column_with_vocabulary_list(name, values) for name, values in columns.VOCABULARIES.items()),
        fc.categorical_column_with_hash_bucket("occupation", hash_bucket_size=1000),
        fc.categorical_column_with_hash_bucket("native_country", hash_bucket_size=1000),
    ]
    crosses = [
        fc.crossed_column(["education", "occupation"], hash_bucket_size=10_000),
        fc.crossed_column([buckets["age"], "race", "occupation"], hash_bucket_size=100_000),
        fc.crossed_column(["native_country", "occupation"], hash_bucket_size=10_000),
    ]
    one_each = [*categories, *buckets.values()]
    embeddings = [fc.embedding_column(column, settings.embedding_size) for column in one_each]
    return [*one_each, *crosses], [*embeddings, *(standardized(name, values) for name, values in numbers.items())]


def optimizer(
    rate: float, weight_decay: float, steps: int, one_cycle: bool
) -> Callable[[Any], torch.optim.Optimizer | LRScheduler]:
    """AdamW whose learning rate rises to `rate` in the first 30 % of the steps and falls to zero in the others."""

    def make(named: Any) -> torch.optim.Optimizer | LRScheduler:
        adamw = te.optim.AdamW(named, lr=rate, weight_decay=weight_decay)
        return OneCycleLR(adamw, max_lr=rate, total_steps=steps, cycle_momentum=False) if one_cycle else adamw

    return make


def build_estimator(
    config: te.RunConfig, wide: Sequence[Any], deep: Sequence[Any], steps: int, settings: Settings
) -> te.DNNLinearCombinedClassifier:
    """The classifier of `income_bracket`; it is to be trained for `steps` steps."""
    return te.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        linear_optimizer=optimizer(settings.wide_rate, settings.wide_decay, steps, settings.one_cycle),
        dnn_feature_columns=deep,
        dnn_optimizer=optimizer(settings.deep_rate, settings.deep_decay, steps, settings.one_cycle),
        dnn_hidden_units=settings.hidden_units,
        dnn_dropout=settings.dropout,
        label_vocabulary=list(columns.LABELS),
        config=config,
    )


def run(args: argparse.Namespace, settings: Settings) -> Mapping[str, Any]:
    """Trains, evaluates and exports; returns the metrics."""
    numbers = numeric_values(args.train_file)
    wide, deep = wide_and_deep_columns(numbers, settings)
    steps = settings.steps(len(numbers["age"]))
    config = te.RunConfig(model_dir=args.job_dir, random_seed=args.seed)
    estimator = build_estimator(config, wide, deep, steps, settings)
    train_rows = partial(
        read_csv, [args.train_file], batch_size=settings.batch_size, num_epochs=None, shuffle_seed=args.seed
    )
    if str(estimator.latest_checkpoint()).endswith(f"-{steps}"):
        print(f"{args.job_dir} has step {steps} already; name another --job-dir to train anew.")
    started = time.perf_counter()
    estimator.train(train_rows, max_steps=steps)
    seconds = time.perf_counter() - started
    metrics = estimator.evaluate(partial(read_csv, [args.eval_file], batch_size=EVAL_BATCH_SIZE))
    export = estimator.export_saved_model(
        files.join(args.job_dir, "export", "census"), te.serving_input.json([*wide, *deep])
    )
    print(f"trained on {args.train_file}: up to step {steps}, {seconds:.1f} s")
    print(f"reached on {args.eval_file}: accuracy {metrics['accuracy']:.4f}, AUC {metrics['auc']:.4f}")
    print(f"exported: {export}")
    return metrics


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.census.recipe", description=__doc__)
    add = parser.add_argument
    add("--train-file", help=f"CSV file to train on (default: {ADULT}/adult.data.csv, or a generated sample)")
    add("--eval-file", help="CSV file to evaluate on")
    add("--job-dir", default="runs/census-recipe", help="directory or URL for checkpoints and the export")
    add("--seed", type=at_least(0), default=1, help="of the initial weights, dropout and the shuffling")
    add("--verbosity", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO", help="of the log")
    args = parser.parse_args(arguments)
    if bool(args.train_file) != bool(args.eval_file):
        parser.error("--train-file and --eval-file go together: give both or neither")
    return args


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; what the user can mend ends it with one sentence and exit status 2."""
    args = parse(arguments)
    logging.getLogger("torch_estimator").setLevel(args.verbosity)
    with errors.exit_on_user_error():
        if not args.train_file and ADULT.is_dir():
            args.train_file, args.eval_file = str(ADULT / "adult.data.csv"), str(ADULT / "adult.test.csv")
        elif not args.train_file:
            made = sample.write(files.join(args.job_dir, "sample"))
            args.train_file, args.eval_file = made.train_file, made.eval_file
            print(f"Best reachable on the generated sample: accuracy {made.best_accuracy:.4f}, AUC {made.best_auc:.4f}")
        run(args, Settings())


if __name__ == "__main__":
    main()
