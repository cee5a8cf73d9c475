"""Trains, evaluates and exports the baby-weight model: `python -m examples.babyweight.task --help`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch_estimator as te
from torch_estimator import errors, files

from ..options import at_least, leaves_evaluating
from . import columns, model, sample

SHUFFLE_ROWS = 50_000


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked as far as argparse can."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.babyweight.task",
        description="Train, evaluate and export the baby-weight model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--train-files", nargs="+", help="CSV files to train on; without them a sample is generated")
    add("--eval-files", nargs="+", help="CSV files to evaluate on")
    add("--job-dir", default="runs/babyweight", help="directory or URL for checkpoints, summaries and exports")
    add("--train-steps", type=at_least(1), default=1000, help="train up to this step, counted over all runs")
    add("--train-batch-size", type=at_least(1), default=512, help="rows in a training step")
    add("--eval-batch-size", type=at_least(1), default=2**15, help="rows in an evaluation step")
    add("--embedding-size", type=at_least(1), default=3, help="dimension of the cross's embedding")
    add("--hidden-units", type=at_least(1), nargs="+", default=[64, 16, 4], help="sizes of the hidden layers")
    add("--export-embedding", action="store_true", help="let predictions and exports give the embedding, too")
    add("--save-checkpoints-steps", type=at_least(1), help="steps between checkpoints (default: every 300 seconds)")
    add("--seed", type=at_least(0), default=1, help="of the initial weights, the shuffling and the generated sample")
    add("--verbosity", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO", help="of the log")
    args = parser.parse_args(arguments)
    if bool(args.train_files) != bool(args.eval_files):
        parser.error("--train-files and --eval-files go together: give both, or neither for a generated sample")
    return args


def read_csv(csv_files: Sequence[str], *, with_key: bool = False) -> te.data.Dataset:
    """Births with their weights; the key, a string even where it looks like a number, is read for predictions only."""
    used = [name for name in columns.CSV_COLUMNS if with_key or name != columns.KEY]
    return te.data.Dataset.from_csv(
        csv_files,
        column_names=columns.CSV_COLUMNS,
        select_columns=used,
        column_types={columns.KEY: "string"} if with_key else None,
        label=columns.LABEL,
    )


def build_estimator(args: argparse.Namespace) -> te.Estimator:
    """The estimator that the command line describes."""
    saving = (
        {"save_checkpoints_secs": 300}
        if args.save_checkpoints_steps is None
        else {"save_checkpoints_steps": args.save_checkpoints_steps}
    )
    config = te.RunConfig(model_dir=args.job_dir, random_seed=args.seed, keep_checkpoint_max=3, **saving)
    return model.build_estimator(
        config,
        embedding_size=args.embedding_size,
        units=args.hidden_units,
        with_embedding=args.export_embedding,
    )


def serving_input(args: argparse.Namespace) -> te.serving_input.ServingInput:
    """Requests name every feature; the key may be left out."""
    wide, deep = columns.wide_and_deep_columns(args.embedding_size)
    return te.serving_input.json(wide + deep, defaults={columns.KEY: "nokey"})


def train(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """Trains up to `--train-steps`, evaluating on the way, and exports; gives the last metrics, if any."""
    estimator = build_estimator(args)
    train_spec = te.TrainSpec(
        input_fn=lambda input_context: (
            read_csv(args.train_files)
            .shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
            .shuffle(SHUFFLE_ROWS, seed=args.seed)
            .repeat()
            .batch(args.train_batch_size)
        ),
        max_steps=args.train_steps,
    )
    eval_spec = te.EvalSpec(
        input_fn=lambda: read_csv(args.eval_files, with_key=True).batch(args.eval_batch_size),
        steps=None,
        exporters=te.LatestExporter("exporter", serving_input(args), exports_to_keep=None),
        start_delay_secs=60,
        throttle_secs=300,
    )
    metrics, exports = te.train_and_evaluate(estimator, train_spec, eval_spec)
    if metrics is None and leaves_evaluating(estimator.config):
        return None
    if metrics is None:
        print(f"{args.job_dir} already has step {args.train_steps}; evaluating it once more.")
        metrics = estimator.evaluate(eval_spec.input_fn)
    for path in exports or ():
        if path is not None:
            print(f"exported: {path}")
    return dict(metrics)


def run(args: argparse.Namespace) -> None:
    """Trains on the given files or on a generated sample, and prints what was reached."""
    generated = not args.train_files
    if generated:
        try:
            train_file, eval_file = sample.write(files.join(args.job_dir, "sample"), seed=args.seed)
        except OSError as error:
            raise errors.InvalidValueError(
                f"job directory {args.job_dir} cannot be written: {files.reason(error)}."
            ) from error
        args.train_files, args.eval_files = [train_file], [eval_file]
        print(f"No --train-files were given: training on the generated {train_file}.")
    metrics = train(args)
    if metrics is None:
        return
    print(f"reached at step {metrics['global_step']}: root mean squared error {metrics['rmse']:.3f} pounds")
    if generated:
        print(f"best reachable, by the process that made the sample: {sample.NOISE:.3f} pounds")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; what the user can mend ends it with one sentence and exit status 2."""
    args = parse(arguments)
    logging.getLogger("torch_estimator").setLevel(args.verbosity)
    with errors.exit_on_user_error():
        run(args)


if __name__ == "__main__":
    main()
