"""The training that all sides of the tuning benchmark tune: the census example's model, with two learning rates.

As a program it is what a user of this package has: `train_and_evaluate` with a final export. Peers train up to each
rung with `Trainer`, evaluate there, and report.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path

import torch_estimator as te
from examples.census.trainer import columns, featurizer, input, model

BATCH = 40
EVAL_BATCHES = 100
RATES = {"dnn-rate": (0.001, 1.0), "linear-rate": (0.001, 5.0)}
"""Lowest and highest value of each parameter, on a logarithmic scale."""


class Trainer:
    """The census model of two learning rates, in a job directory; `data` is the folder of the census files."""

    def __init__(self, rates: Mapping[str, float], job_dir: str, data: Path, *, save_every: int) -> None:
        wide, deep = featurizer.wide_and_deep_columns()
        self._columns = [*wide, *deep]
        self._data = data
        self.estimator = te.DNNLinearCombinedClassifier(
            linear_feature_columns=wide,
            linear_optimizer=te.optim.Ftrl(learning_rate=rates["linear-rate"]),
            dnn_feature_columns=deep,
            dnn_optimizer=te.optim.Adagrad(learning_rate=rates["dnn-rate"]),
            dnn_hidden_units=model.hidden_units(100, 4, 0.7),
            label_vocabulary=list(columns.LABELS),
            config=te.RunConfig(job_dir, random_seed=1, save_checkpoints_steps=save_every),
        )

    def train_rows(self) -> te.data.Dataset:
        """Shuffled batches without end."""
        file = str(self._data / "adult.data.csv")
        return input.read_csv([file], batch_size=BATCH, num_epochs=None, shuffle_seed=1)

    def eval_rows(self) -> te.data.Dataset:
        """Batches of the test file."""
        return input.read_csv([str(self._data / "adult.test.csv")], batch_size=BATCH)

    def serving_input(self) -> te.serving_input.ServingInput:
        """What an export takes."""
        return input.json_serving_input(self._columns)

    def auc_at(self, step: int) -> float:
        """Train up to a step, and evaluate."""
        self.estimator.train(self.train_rows, max_steps=step)
        return float(self.estimator.evaluate(self.eval_rows, steps=EVAL_BATCHES)["auc"])

    def export(self) -> None:
        """Export what was trained."""
        self.estimator.export_saved_model(f"{self.estimator.model_dir}/export", self.serving_input())

    def parts(self, steps: int, throttle_secs: int = 600) -> tuple[te.Estimator, te.TrainSpec, te.EvalSpec]:
        """What `train_and_evaluate` takes, and what a function of `tune` returns."""
        exporter = te.FinalExporter("census", self.serving_input())
        evaluation = te.EvalSpec(self.eval_rows, steps=EVAL_BATCHES, exporters=exporter, throttle_secs=throttle_secs)
        return self.estimator, te.TrainSpec(self.train_rows, max_steps=steps), evaluation

    def run(self, steps: int) -> None:
        """Train, evaluate and export in one call."""
        te.train_and_evaluate(*self.parts(steps))


def rungs(first: int, last: int) -> list[int]:
    """Return the steps at which peers evaluate."""
    steps = []
    while first < last:
        steps.append(first)
        first *= 4
    return [*steps, last]


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    for name in RATES:
        parser.add_argument(f"--{name}", type=float, required=True)
    options = parser.parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    rates = {name: getattr(options, name.replace("-", "_")) for name in RATES}
    with te.errors.exit_on_user_error():
        Trainer(rates, options.job_dir, options.data, save_every=options.save_every).run(options.steps)


if __name__ == "__main__":
    main()
