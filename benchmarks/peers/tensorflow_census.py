"""The census sample on TensorFlow 2.15's tf.estimator; runs in `.bench/tensorflow`.

Written as its users wrote it: CSV lines decoded one by one in tf.data, a shuffle buffer of ten batches, the v1 canned
classifier with its default optimizers (Ftrl for the wide half, Adagrad for the deep one, summed loss), default
RunConfig.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import itertools
import logging
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.peers.report import Pace, Report, parser
from examples.census.trainer import columns

fc = tf.feature_column
TRAIN, TEST = "adult.data.csv", "adult.test.csv"
AGE_BOUNDARIES = [18, 25, 30, 35, 40, 45, 50, 55, 60, 65]
NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
# By column: numbers are 0 where a field is empty, strings "".
DEFAULTS = [[0.0] if name in (*NUMBERS, *columns.UNUSED) else [""] for name in columns.CSV_COLUMNS]


def wide_and_deep_columns(log_gains: bool) -> tuple[list[Any], list[Any]]:
    """The columns of examples/census/trainer/featurizer.py."""
    normalizers = dict.fromkeys(("capital_gain", "capital_loss"), tf.math.log1p) if log_gains else {}
    numbers = {name: fc.numeric_column(name, normalizer_fn=normalizers.get(name)) for name in NUMBERS}
    vocabularies = {
        name: fc.categorical_column_with_vocabulary_list(name, list(values))
        for name, values in columns.VOCABULARIES.items()
    }
    occupation = fc.categorical_column_with_hash_bucket("occupation", hash_bucket_size=100, dtype=tf.string)
    native_country = fc.categorical_column_with_hash_bucket("native_country", hash_bucket_size=100, dtype=tf.string)
    age_buckets = fc.bucketized_column(fc.numeric_column("age"), AGE_BOUNDARIES)
    wide = [
        fc.crossed_column(["education", "occupation"], hash_bucket_size=10_000),
        fc.crossed_column([age_buckets, "race", "occupation"], hash_bucket_size=1_000_000),
        fc.crossed_column(["native_country", "occupation"], hash_bucket_size=10_000),
        *(vocabularies[name] for name in ("gender", "education", "workclass", "marital_status", "relationship")),
        native_country,
        occupation,
        age_buckets,
    ]
    deep = [
        *map(fc.indicator_column, vocabularies.values()),
        fc.embedding_column(native_country, dimension=8),
        fc.embedding_column(occupation, dimension=8),
        *numbers.values(),
    ]
    return wide, deep


def read_csv(args: argparse.Namespace, file: str, *, batch: int, epochs: int | None = 1, shuffle: bool = False) -> Any:
    """Batches of one-element vectors by name, with the labels as numbers, as a one-shot iterator's next element."""
    rows = tf.data.TextLineDataset(str(args.data / file))
    if args.decode == "line":
        rows = rows.map(_decode, num_parallel_calls=os.cpu_count()).prefetch(1024)
    if shuffle:
        rows = rows.shuffle(10 * batch)
    rows = rows.repeat(epochs).batch(batch)
    if args.decode == "batch":
        rows = rows.map(_decode, num_parallel_calls=os.cpu_count()).prefetch(16)
    features = tf.compat.v1.data.make_one_shot_iterator(rows).get_next()
    labels = features.pop(columns.LABEL)
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(columns.LABELS), tf.constant([0, 1], tf.int64)), 1
    )
    return features, table.lookup(labels)


def _decode(lines: Any) -> dict[str, Any]:
    """Columns by name of one line, or of a batch of lines."""
    fields = tf.io.decode_csv(tf.expand_dims(lines, -1), record_defaults=DEFAULTS)
    row = dict(zip(columns.CSV_COLUMNS, fields, strict=True))
    for name in columns.UNUSED:
        del row[name]
    return row


def serving_input() -> Any:
    """Requests as JSON: one vector per feature."""
    names = [name for name in columns.CSV_COLUMNS if name not in (*columns.UNUSED, columns.LABEL)]
    inputs = {name: tf.compat.v1.placeholder(tf.float32 if name in NUMBERS else tf.string, [None]) for name in names}
    features = {name: tf.expand_dims(tensor, -1) for name, tensor in inputs.items()}
    return tf.estimator.export.ServingInputReceiver(features, inputs)


class PaceHook(tf.estimator.SessionRunHook):
    """Tells the clock of every step."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._pace.step()

    def end(self, session: Any) -> None:
        self._pace.end()


def build_estimator(args: argparse.Namespace, model_dir: str) -> Any:
    """The v1 classifier."""
    wide, deep = wide_and_deep_columns(args.gains == "log")
    threads = args.threads or 0
    session = args.threads and tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
    )
    return tf.compat.v1.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[100, 70, 48, 34],
        config=tf.estimator.RunConfig(model_dir=model_dir, session_config=session, tf_random_seed=args.seed),
    )


def train_and_evaluate(args: argparse.Namespace, estimator: Any) -> Any:
    """The whole command of the sample: training, evaluation on 100 batches, export."""
    metrics, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(lambda: read_csv(args, TRAIN, batch=args.batch, epochs=None, shuffle=True), args.steps),
        tf.estimator.EvalSpec(
            lambda: read_csv(args, TEST, batch=args.batch),
            steps=100,
            name="census-eval",
            exporters=[tf.estimator.FinalExporter("census", serving_input)],
        ),
    )
    return metrics


def train_in_cluster(args: argparse.Namespace, estimator: Any) -> Pace:
    """The part of the process that TF_CONFIG names."""
    pace = Pace(args.warmup)
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(
            lambda: read_csv(args, TRAIN, batch=args.batch, epochs=None, shuffle=True),
            args.steps,
            hooks=[PaceHook(pace)],
        ),
        tf.estimator.EvalSpec(lambda: read_csv(args, TEST, batch=args.batch)),
    )
    return pace


def evaluation_speed(args: argparse.Namespace, estimator: Any) -> float | None:
    """Rows per second of `evaluate` in its steady state, without the first tenth and the building of its graph."""
    batches = args.evaluate_rows // args.eval_batch
    pace = Pace(batches // 10)
    estimator.evaluate(
        lambda: read_csv(args, TEST, batch=args.eval_batch, epochs=None), steps=batches, hooks=[PaceHook(pace)]
    )
    return pace.steps_per_s and pace.steps_per_s * args.eval_batch


def prediction_speed(args: argparse.Namespace, estimator: Any) -> float | None:
    """The same of `predict`, which gives whole batches."""
    batches = args.evaluate_rows // args.eval_batch
    pace = Pace(batches // 10)
    predictions = estimator.predict(
        lambda: read_csv(args, TEST, batch=args.eval_batch, epochs=None), yield_single_examples=False
    )
    for _ in itertools.islice(predictions, batches):
        pace.step()
    pace.end()
    return pace.steps_per_s and pace.steps_per_s * args.eval_batch


def main() -> None:
    """Measures what was asked for."""
    arguments = parser(__doc__)
    add = arguments.add_argument
    add("--whole-command", action="store_true", help="train_and_evaluate with its export, without a steady state")
    add("--evaluate-rows", type=int, default=0, help="after training, measure evaluate and predict on so many rows")
    add("--eval-batch", type=int, default=40, help="rows in a step of --evaluate-rows")
    add("--decode", choices=("line", "batch"), default="line", help="parse line by line as the sample, or by the batch")
    add("--gains", choices=("log", "raw"), default="log", help="capital gain and loss: log1p of them, or as they are")
    add("--seed", type=int, help="of the initial weights")
    add("--cluster", type=Path, help="be the process that TF_CONFIG names; where the job has its directory")
    args = arguments.parse_args()
    tf.get_logger().setLevel(logging.ERROR)
    report = Report(peer="TensorFlow tf.estimator", version=tf.__version__)
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = build_estimator(args, str(args.cluster or model_dir))
        metrics: Any = {}
        if args.cluster:
            report.take(train_in_cluster(args, estimator), args.batch)
        elif args.whole_command:
            metrics = train_and_evaluate(args, estimator)
        else:
            pace = Pace(args.warmup)
            estimator.train(
                lambda: read_csv(args, TRAIN, batch=args.batch, epochs=None, shuffle=True),
                hooks=[PaceHook(pace)],
                max_steps=args.steps,
            )
            report.take(pace, args.batch)
        if args.evaluate:
            metrics = estimator.evaluate(lambda: read_csv(args, TEST, batch=512))
        if args.evaluate_rows:
            report.eval_examples_per_s = evaluation_speed(args, estimator)
            report.predict_examples_per_s = prediction_speed(args, estimator)
    report.auc, report.average_loss, report.accuracy = (
        float(metrics[name]) if name in metrics else None for name in ("auc", "average_loss", "accuracy")
    )
    report.print()


if __name__ == "__main__":
    main()
