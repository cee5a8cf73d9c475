"""A classifier over one large table on TensorFlow 2.15's parameter servers; runs in `.bench/tensorflow`.

The v1 canned classifier, whose table is a partitioned variable with a part on each server.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import json
import logging
from typing import Any

import tensorflow as tf

from benchmarks.peers import large_table
from benchmarks.peers.report import Pace, Report
from benchmarks.peers.tensorflow_census import PaceHook


def main() -> None:
    """Do the part of the process that TF_CONFIG names."""
    args = large_table.parser(__doc__).parse_args()
    tf.get_logger().setLevel(logging.ERROR)
    servers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["ps"])
    ids = tf.feature_column.categorical_column_with_identity("ids", args.rows)
    estimator = tf.compat.v1.estimator.DNNClassifier(
        [large_table.HIDDEN],
        [tf.feature_column.embedding_column(ids, args.dim)],
        optimizer=tf.compat.v1.train.AdagradOptimizer(0.05),
        input_layer_partitioner=tf.compat.v1.fixed_size_partitioner(servers),
        config=tf.estimator.RunConfig(model_dir=str(args.cluster), save_checkpoints_secs=10**6),
    )

    def data() -> Any:
        examples, labels = large_table.batches(args.rows, args.batch)
        rows = tf.data.Dataset.from_tensor_slices(({"ids": examples}, labels[:, None]))
        return rows.batch(args.batch).repeat().prefetch(4)

    pace = Pace(args.warmup)
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(data, args.steps, hooks=[PaceHook(pace)]),
        tf.estimator.EvalSpec(data, steps=1),
    )
    report = Report(peer="TensorFlow tf.estimator", version=tf.__version__)
    report.take(pace, args.batch)
    report.print()


if __name__ == "__main__":
    main()
