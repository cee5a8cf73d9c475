"""Runs the mnist example in the workers of Ray Train: `python -m examples.cluster.ray_train --help`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from ..mnist import task
from ..options import at_least


def program(config: dict[str, list[str]]) -> None:
    """What every worker does; TorchTrainer has told it its rank."""
    task.run(config["arguments"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts the workers, and all of them again where one is lost; training goes on from the last checkpoint."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.cluster.ray_train", epilog="All other options are those of the mnist example."
    )
    parser.add_argument("--workers", type=at_least(1), default=2, help="how many processes train in step")
    parser.add_argument("--max-restarts", type=at_least(0), default=3, help="how often to start them again")
    parser.add_argument("--job-dir", default="runs/ray", help="directory that all machines share")
    options, others = parser.parse_known_args(arguments)
    # Workers run in a directory of their own.
    job_dir = options.job_dir if "://" in options.job_dir else os.path.abspath(options.job_dir)
    TorchTrainer(
        program,
        train_loop_config={"arguments": ["--job-dir", job_dir, *others]},
        scaling_config=ScalingConfig(num_workers=options.workers),
        run_config=RunConfig(
            name="ray", storage_path=job_dir, failure_config=FailureConfig(max_failures=options.max_restarts)
        ),
    ).fit()


if __name__ == "__main__":
    main()
