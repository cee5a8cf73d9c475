"""Trains, evaluates and exports the census model: `python -m examples.census.trainer.task --help`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch_estimator as te
from torch_estimator import errors, files

from . import featurizer, input, model, sample
from .options import COMPILE, at_least, leaves_evaluating, positive


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked as far as argparse can."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.census.trainer.task",
        description="Train, evaluate and export the wide-and-deep census model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--train-files", nargs="+", help="CSV files to train on; without them a sample is generated")
    add("--eval-files", nargs="+", help="CSV files to evaluate on")
    add("--job-dir", default="runs/census", help="directory or URL for checkpoints, summaries and exports")
    add("--train-steps", type=at_least(1), default=5000, help="train up to this step, counted over all runs")
    add("--num-epochs", type=at_least(1), help="end after so many passes over the training files (default: never)")
    add("--eval-steps", type=at_least(0), default=100, help="batches per evaluation; 0 for the whole file")
    add("--train-batch-size", type=at_least(1), default=40, help="rows in a training step")
    add("--eval-batch-size", type=at_least(1), default=40, help="rows in an evaluation step")
    add("--embedding-size", type=at_least(1), default=8, help="dimension of the embeddings")
    add("--first-layer-size", type=at_least(1), default=100, help="units in the first hidden layer")
    add("--num-layers", type=at_least(1), default=4, help="hidden layers")
    add("--scale-factor", type=positive, default=0.7, help="size of a hidden layer relative to the one before")
    add(
        "--export-format",
        choices=sorted(input.SERVING_INPUTS),
        default="JSON",
        help="what a request looks like",
    )
    add("--save-checkpoints-steps", type=at_least(1), default=1000, help="steps between checkpoints")
    add("--eval-throttle-secs", type=at_least(0), default=30, help="seconds between evaluations, at least")
    add("--seed", type=at_least(0), default=1, help="of the initial weights, the shuffling and the generated sample")
    add("--compile", choices=COMPILE, default="auto", help="whether the training step is compiled; auto: where it pays")
    add("--verbosity", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO", help="of the log")
    args = parser.parse_args(arguments)
    if bool(args.train_files) != bool(args.eval_files):
        parser.error("--train-files and --eval-files go together: give both, or neither for a generated sample")
    return args


def build_estimator(args: argparse.Namespace) -> te.DNNLinearCombinedClassifier:
    """The estimator that the command line describes."""
    config = te.RunConfig(
        model_dir=args.job_dir,
        tf_random_seed=args.seed,
        save_checkpoints_steps=args.save_checkpoints_steps,
        compile=COMPILE[args.compile],
    )
    units = model.hidden_units(args.first_layer_size, args.num_layers, args.scale_factor)
    return model.build_estimator(config, embedding_size=args.embedding_size, units=units)


def eval_data(args: argparse.Namespace) -> te.data.Dataset:
    """The rows that every evaluation goes through, in the order of the files."""
    return input.read_csv(args.eval_files, batch_size=args.eval_batch_size)


def train(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """Trains up to `--train-steps`, evaluating on the way, and exports; gives the last metrics, if any."""
    estimator = build_estimator(args)
    wide, deep = featurizer.wide_and_deep_columns(args.embedding_size)
    serving_input = input.SERVING_INPUTS[args.export_format](wide + deep)
    train_spec = te.TrainSpec(
        input_fn=lambda input_context: input.read_csv(
            args.train_files,
            batch_size=args.train_batch_size,
            num_epochs=args.num_epochs,
            shuffle_seed=args.seed,
            input_context=input_context,
        ),
        max_steps=args.train_steps,
    )
    eval_spec = te.EvalSpec(
        input_fn=lambda: eval_data(args),
        steps=args.eval_steps or None,
        name="census-eval",
        exporters=te.FinalExporter("census", serving_input),
        start_delay_secs=0,
        throttle_secs=args.eval_throttle_secs,
    )
    metrics, exports = te.train_and_evaluate(estimator, train_spec, eval_spec)
    if metrics is None and leaves_evaluating(estimator.config):
        return None
    if metrics is None:
        print(f"{args.job_dir} already has step {args.train_steps}; evaluating it once more.")
        metrics = estimator.evaluate(eval_spec.input_fn, steps=eval_spec.steps, name=eval_spec.name)
    for path in exports or ():
        if path is not None:
            print(f"exported: {path}")
    return dict(metrics)


def run(args: argparse.Namespace) -> None:
    """Trains on the given files or on a generated sample, and prints what was reached."""
    best = None
    if not args.train_files:
        best = _generated(args)
        args.train_files, args.eval_files = [best.train_file], [best.eval_file]
        print(f"No --train-files were given: training on the generated {best.train_file}.")
    metrics = train(args)
    if metrics is None:
        return
    rows = f"{args.eval_steps} batches" if args.eval_steps else "the whole evaluation file"
    print(
        f"reached at step {metrics['global_step']} on {rows}: "
        f"accuracy {metrics['accuracy']:.4f}, AUC {metrics['auc']:.4f}"
    )
    if best is not None:
        print(
            "best reachable, by the process that made the sample: "
            f"accuracy {best.best_accuracy:.4f}, AUC {best.best_auc:.4f}"
        )


def _generated(args: argparse.Namespace) -> sample.Sample:
    try:
        return sample.write(files.join(args.job_dir, "sample"), seed=args.seed)
    except OSError as error:
        raise errors.InvalidValueError(
            f"job directory {args.job_dir} cannot be written: {files.reason(error)}."
        ) from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; what the user can mend ends it with one sentence and exit status 2."""
    args = parse(arguments)
    logging.getLogger("torch_estimator").setLevel(args.verbosity)
    with errors.exit_on_user_error():
        run(args)


if __name__ == "__main__":
    main()
