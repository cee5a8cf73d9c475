"""The census trainer, slowed down; it notes each step, and the checkpoint that was there after it."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch_estimator as te
from examples.census.trainer import task


class Steps(te.Hook):
    """Notes each step with its time and the step of the latest checkpoint, and then waits for a moment."""

    def __init__(self, path: Path, model_dir: str, pace: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._model_dir = model_dir
        self._pace = pace

    def after_step(self, context: te.hooks.RunContext) -> None:
        """Note a step."""
        saved = (te.latest_checkpoint(self._model_dir) or "-0").rpartition("-")[2]
        os.write(self._file, f"{context.global_step} {time.time():.6f} {saved}\n".encode())
        time.sleep(self._pace)


def main() -> None:
    """Run the command line of the census trainer, after ``--notes`` and ``--pace``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True, help="folder for what the storm reads")
    parser.add_argument("--pace", type=float, default=0.01, help="seconds that each step waits")
    options, arguments = parser.parse_known_args()
    path = options.notes / os.environ["CLOUD_ML_TRIAL_ID"] / f"{os.getpid()}.{time.time_ns()}.steps"
    train_and_evaluate = te.train_and_evaluate

    def slowly(estimator: te.Estimator, train_spec: te.TrainSpec, eval_spec: te.EvalSpec) -> object:
        hooks = [Steps(path, estimator.model_dir, options.pace)]
        return train_and_evaluate(estimator, replace(train_spec, hooks=hooks), eval_spec)

    with mock.patch.object(te, "train_and_evaluate", slowly):
        task.main(arguments)


if __name__ == "__main__":
    main()
