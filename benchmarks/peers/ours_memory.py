"""Trains the census sample from one CSV file and reports the peak of memory; runs in the project's own environment."""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path

import torch_estimator as te
from benchmarks.peers.report import Report
from examples.census.trainer import input, model

COMPILE = {"auto": "auto", "yes": True, "no": False}


def train(args: argparse.Namespace, model_dir: str) -> None:
    """Trains the example's classifier on batches of the example's input, for ever from the beginning."""
    chosen = {} if args.compile is None else {"compile": COMPILE[args.compile]}
    estimator = model.build_estimator(
        te.RunConfig(model_dir=model_dir, **chosen), embedding_size=8, units=model.hidden_units(100, 4, 0.7)
    )
    seed = None if args.in_order else 1
    estimator.train(
        lambda: input.read_csv([str(args.file)], batch_size=args.batch, num_epochs=None, shuffle_seed=seed),
        max_steps=args.steps,
    )


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--file", type=Path, required=True, help="census CSV file without a header")
    add("--steps", type=int, required=True, help="training steps")
    add("--batch", type=int, default=512, help="rows in a step")
    add("--in-order", action="store_true", help="do not shuffle")
    add("--compile", choices=COMPILE, help="RunConfig's compile; by default its own")
    args = parser.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as model_dir:
        train(args, model_dir)
    Report(peer="torch-estimator", version=te.__version__).print()


if __name__ == "__main__":
    main()
