"""The census example through torch-estimator's public API; runs in the project's own environment.

Columns, model and input are those of `examples/census/trainer`; all settings are the defaults, so that Ftrl trains the
wide half and Adagrad the deep one.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch_estimator as te
from benchmarks.peers.pace_hooks import COMPILE, FirstStepHook, PaceHook
from benchmarks.peers.report import Pace, Report, parser
from examples.census.trainer import columns, featurizer, input, model
from torch_estimator.feature_column import NumericColumn


def read_csv(args: argparse.Namespace) -> te.data.Dataset:
    """The rows to train on, endlessly."""
    files = [str(args.train_file or args.data / "adult.data.csv")]
    if args.cached:
        used = [name for name in columns.CSV_COLUMNS if name not in columns.UNUSED]
        rows = te.data.Dataset.from_csv(
            files, column_names=columns.CSV_COLUMNS, select_columns=used, label=columns.LABEL
        ).cache()
        return rows.shuffle(input.SHUFFLE_BATCHES * args.batch, seed=args.seed).repeat(None).batch(args.batch)
    return input.read_csv(files, batch_size=args.batch, num_epochs=None, shuffle_seed=args.seed)


def test_rows(args: argparse.Namespace, batch: int) -> te.data.Dataset:
    """The rows to evaluate on."""
    return input.read_csv([str(args.data / "adult.test.csv")], batch_size=batch)


def build_estimator(args: argparse.Namespace, model_dir: str) -> te.DNNLinearCombinedClassifier:
    """The example's classifier."""
    wide, deep = feature_columns(args)
    return te.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=model.hidden_units(100, 4, 0.7),
        label_vocabulary=list(columns.LABELS),
        config=te.RunConfig(
            model_dir=model_dir,
            compile=COMPILE[args.compile],
            random_seed=args.seed,
            **({"save_checkpoints_steps": args.save_every} if args.save_every else {}),
            train_distribute=te.distribute.ParameterServerStrategy(pipeline=True) if args.pipeline else None,
            experimental_max_worker_delay_secs=0,
        ),
    )


def feature_columns(args: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """The example's columns; capital gain and loss as they are, if so wished, as in Google's sample."""
    wide, deep = featurizer.wide_and_deep_columns()
    if args.gains == "raw":
        deep = [
            te.feature_column.numeric_column(column.key) if isinstance(column, NumericColumn) else column
            for column in deep
        ]
    return wide, deep


def train_and_evaluate(args: argparse.Namespace, estimator: te.Estimator, pace: Pace) -> Mapping[str, Any]:
    """The whole command: training, evaluation on 100 batches, export."""
    wide, deep = feature_columns(args)
    metrics, _ = te.train_and_evaluate(
        estimator,
        te.TrainSpec(lambda: read_csv(args), max_steps=args.steps, hooks=[FirstStepHook(pace)]),
        te.EvalSpec(
            lambda: test_rows(args, args.batch),
            steps=100,
            name="census-eval",
            exporters=te.FinalExporter("census", input.json_serving_input(wide + deep)),
        ),
    )
    return metrics or {}


class SleepHook(te.Hook):
    """Stands for an input that takes its time."""

    def __init__(self, secs: float) -> None:
        self._secs = secs

    def before_step(self, context: te.RunContext) -> None:
        time.sleep(self._secs)


def train_in_cluster(args: argparse.Namespace, estimator: te.Estimator, pace: Pace) -> None:
    """The part of this process, whose clock stops before the last steps, which others may take."""
    hooks: list[te.Hook] = [FirstStepHook(pace), PaceHook(pace, args.warmup, args.steps * 9 // 10)]
    if args.sleep_ms:
        hooks.append(SleepHook(args.sleep_ms / 1000))
    te.train_and_evaluate(
        estimator,
        te.TrainSpec(lambda: read_csv(args), max_steps=args.steps, hooks=hooks),
        te.EvalSpec(lambda: test_rows(args, args.batch)),
    )


def arguments() -> argparse.ArgumentParser:
    """What this script takes."""
    arguments = parser(__doc__)
    add = arguments.add_argument
    add("--whole-command", action="store_true", help="train_and_evaluate with its export, without a steady state")
    add("--compile", choices=COMPILE, default="auto", help="RunConfig's compile")
    add("--train-file", type=Path, help="instead of the data folder's adult.data.csv")
    add("--gains", choices=("log", "raw"), default="log", help="capital gain and loss: log1p of them, or as they are")
    add("--seed", type=int, default=1, help="of the initial weights and the shuffling")
    add("--cluster", type=Path, help="be the process that TF_CONFIG names; where the job has its directory")
    add("--cached", action="store_true", help="keep rows in memory, with the host half of the columns applied")
    add("--pipeline", action="store_true", help="with parameter servers: gradients one step older")
    add("--raw", action="store_true", help="with parameter servers: plain TCP instead of ZeroMQ")
    add("--save-every", type=int, help="steps from checkpoint to checkpoint; by default RunConfig's seconds")
    add("--sleep-ms", type=float, default=0.0, help="in a cluster: milliseconds to wait before each step")
    return arguments


def main() -> None:
    """Measures what was asked for."""
    args = arguments().parse_args()
    logging.getLogger("torch_estimator").setLevel(logging.WARNING)
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)
    if args.raw:
        # At the top it would import torch before a public name does, unlike the programs of users.
        from benchmarks.peers import raw_transport

        raw_transport.use()
    pace = Pace(args.warmup)
    report = Report(peer="torch-estimator", version=te.__version__)
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = build_estimator(args, model_dir)
        metrics: Mapping[str, Any] = {}
        if args.cluster:
            train_in_cluster(args, build_estimator(args, str(args.cluster)), pace)
        elif args.whole_command:
            metrics = train_and_evaluate(args, estimator, pace)
        else:
            hooks = [FirstStepHook(pace), PaceHook(pace, args.warmup, args.steps)]
            estimator.train(lambda: read_csv(args), hooks=hooks, max_steps=args.steps)
        report.take(pace, args.batch)
        if args.evaluate:
            metrics = estimator.evaluate(lambda: test_rows(args, 512))
    report.auc, report.average_loss, report.accuracy = (
        float(metrics[name]) if name in metrics else None for name in ("auc", "average_loss", "accuracy")
    )
    report.print()


if __name__ == "__main__":
    main()
