"""The example `examples/mnist` through torch-estimator's public API; runs in the project's own environment.

Bytes are converted batch by batch in the input pipeline, as the example does.
"""

from __future__ import annotations

import argparse
import logging
import tempfile

import torch_estimator as te
from benchmarks.peers import mnist_digits
from benchmarks.peers.pace_hooks import COMPILE, FirstStepHook, PaceHook
from benchmarks.peers.report import Pace, Report, parser
from examples.mnist import digits, model, task


def main() -> None:
    """Measures what was asked for."""
    arguments = parser(__doc__)
    arguments.add_argument("--compile", choices=COMPILE, default="auto", help="RunConfig's compile")
    args = arguments.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)
    folder = args.data
    whole = digits.read(str(folder / mnist_digits.IMAGES), str(folder / mnist_digits.LABELS))
    train, held_out = whole.split(min(mnist_digits.HELD_OUT, len(whole.labels) // 5))
    input_fn = task.input_fn_of(train, held_out, argparse.Namespace(seed=1, num_epochs=None, batch_size=args.batch))
    pace = Pace(args.warmup)
    report = Report(peer="torch-estimator", version=te.__version__)
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = te.Estimator(
            model.model_fn,
            model_dir,
            te.RunConfig(random_seed=1, compile=COMPILE[args.compile]),
            params={"learning_rate": mnist_digits.LEARNING_RATE, "steps": args.steps},
        )
        hooks = [FirstStepHook(pace), PaceHook(pace, args.warmup, args.steps)]
        estimator.train(input_fn, hooks=hooks, max_steps=args.steps)
        report.take(pace, args.batch)
        if args.evaluate:
            report.accuracy = float(estimator.evaluate(input_fn)["accuracy"])
    report.print()


if __name__ == "__main__":
    main()
