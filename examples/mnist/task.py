"""Trains, evaluates and exports the digit classifier: `python -m examples.mnist.task --help`."""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import torch_estimator as te
from torch_estimator import errors
from torch_estimator.feature_column import RawFeature

from ..options import at_least, leaves_evaluating, positive
from . import digits, model

SHUFFLE_ROWS = 10_000
SAMPLE_ROWS = 4_000
SAMPLE_HELD_OUT = 500


def parser(
    program: str, description: str, *, job_dir: str, learning_rate: float, rate_help: str
) -> argparse.ArgumentParser:
    """The options that every program on digits has."""
    made = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = made.add_argument
    add("--images", help="IDX file of images, gzipped or not; without it digits are generated")
    add("--labels", help="IDX file of labels")
    add("--held-out", type=at_least(1), default=1000, help="digits at the end of the files that are evaluated on")
    add("--job-dir", default=job_dir, help="directory or URL for checkpoints, summaries and exports")
    add("--num-epochs", type=at_least(1), default=6, help="passes over the training digits")
    add("--batch-size", type=at_least(1), default=64, help="digits in a step")
    add("--learning-rate", type=positive, default=learning_rate, help=rate_help)
    add("--save-checkpoints-steps", type=at_least(1), default=200, help="steps between checkpoints")
    add("--seed", type=at_least(0), default=1, help="of the initial weights, the shuffling and generated digits")
    add("--verbosity", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO", help="of the log")
    return made


def parse(
    made: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> tuple[argparse.Namespace, digits.Digits, digits.Digits]:
    """The command line, and the digits to train on and to evaluate on."""
    args = made.parse_args(arguments)
    if bool(args.images) != bool(args.labels):
        made.error("--images and --labels go together: give both, or neither for generated digits")
    logging.getLogger("torch_estimator").setLevel(args.verbosity)
    if args.images:
        train, held_out = digits.read(args.images, args.labels).split(args.held_out)
    else:
        print("No --images were given: generating digits as pocket calculators show them.")
        train, held_out = digits.generate(SAMPLE_ROWS, seed=args.seed).split(SAMPLE_HELD_OUT)
    return args, train, held_out


def scale(features: Mapping[str, npt.NDArray[Any]], labels: npt.NDArray[Any]) -> tuple[dict[str, Any], Any]:
    """Bytes to numbers within 0 and 1."""
    return {"image": features["image"].astype(np.float32) / 255.0}, labels


def input_fn_of(
    train: digits.Digits, held_out: digits.Digits, args: argparse.Namespace
) -> Callable[..., te.data.Dataset]:
    """The one `input_fn`, for training and evaluation, on one process or on many."""

    def input_fn(mode: str, input_context: te.InputContext | None = None) -> te.data.Dataset:
        chosen = train if mode == te.ModeKeys.TRAIN else held_out
        rows = te.data.Dataset.from_arrays({"image": chosen.images}, chosen.labels)
        if input_context is not None:
            rows = rows.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        if mode == te.ModeKeys.TRAIN:
            rows = rows.shuffle(SHUFFLE_ROWS, seed=args.seed).repeat(args.num_epochs)
        return rows.batch(args.batch_size).map(scale)

    return input_fn


def steps_of(train: digits.Digits, args: argparse.Namespace) -> int:
    """Steps that go through the training digits `--num-epochs` times."""
    rows: int = len(train.labels) * args.num_epochs
    return math.ceil(rows / int(args.batch_size))


def serving_input() -> te.serving_input.ServingInput:
    """Requests are images of numbers within 0 and 1."""
    return te.serving_input.raw_features([RawFeature(key="image", dtype="float32", shape=(digits.SIZE, digits.SIZE))])


def train_and_evaluate(
    estimator: te.Estimator,
    input_fn: Callable[..., te.data.Dataset],
    *,
    steps: int,
    inputs: te.serving_input.ServingInput,
) -> None:
    """Trains up to a step, and prints what was reached."""
    metrics, exports = te.train_and_evaluate(
        estimator,
        te.TrainSpec(input_fn, max_steps=steps),
        te.EvalSpec(input_fn, steps=None, throttle_secs=10, exporters=te.FinalExporter("digits", inputs)),
    )
    if metrics is None and leaves_evaluating(estimator.config):
        return
    if metrics is None:
        print(f"{estimator.model_dir} already has step {steps}; evaluating it once more.")
        metrics = estimator.evaluate(input_fn)
    for path in exports or ():
        print(f"exported: {path}")
    print(f"reached at step {metrics['global_step']}: accuracy {metrics['accuracy']:.4f} on the digits held out")


def run(arguments: Sequence[str] | None) -> None:
    """Trains the `model_fn`'s network."""
    made = parser(
        "examples.mnist.task",
        "Train, evaluate and export the digit classifier.",
        job_dir="runs/mnist",
        learning_rate=0.1,
        rate_help="highest of the one-cycle schedule",
    )
    args, train, held_out = parse(made, arguments)
    estimator = te.Estimator(
        model.model_fn,
        args.job_dir,
        te.RunConfig(random_seed=args.seed, save_checkpoints_steps=args.save_checkpoints_steps),
        params={"learning_rate": args.learning_rate, "steps": steps_of(train, args)},
    )
    input_fn = input_fn_of(train, held_out, args)
    train_and_evaluate(estimator, input_fn, steps=steps_of(train, args), inputs=serving_input())


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; what the user can mend ends it with one sentence and exit status 2."""
    with errors.exit_on_user_error():
        run(arguments)


if __name__ == "__main__":
    main()
