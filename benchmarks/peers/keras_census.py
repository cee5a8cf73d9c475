"""The census sample in Keras 3; runs in `.bench/keras`.

A functional model trained by `model.fit` from arrays encoded ahead of time, on the backend that is the fastest here:
TensorFlow. Keras takes one optimizer for a model: Adagrad for both halves.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from typing import Any

import keras
import numpy as np

from benchmarks.peers import census_rows, scores
from benchmarks.peers.report import Pace, Report, parser


def build_model(steps_per_call: int) -> Any:
    """The wide-and-deep model; `steps_per_call` steps run in one compiled call."""
    wide = keras.Input((len(census_rows.WIDE),), dtype="int32")
    embedded = keras.Input((len(census_rows.HASH_BUCKETS),), dtype="int32")
    dense = keras.Input((census_rows.DENSE_INPUTS,))
    linear = keras.layers.Embedding(census_rows.WIDE_ROWS, 1, embeddings_initializer="zeros")(wide)
    hidden = keras.layers.Embedding(census_rows.EMBEDDED_ROWS, census_rows.EMBEDDING_SIZE)(embedded)
    hidden = keras.layers.Concatenate()([keras.layers.Flatten()(hidden), dense])
    for units in census_rows.HIDDEN_UNITS:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    logits = keras.layers.Add()([keras.layers.Dense(1)(hidden), keras.ops.sum(linear, axis=1)])
    model = keras.Model([wide, embedded, dense], logits)
    model.compile(
        optimizer=keras.optimizers.Adagrad(0.05),
        loss=keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum"),
        steps_per_execution=steps_per_call,
    )
    return model


def inputs_of(rows: census_rows.CensusRows) -> list[Any]:
    """The model's inputs."""
    return [rows.wide_ids().astype(np.int32), rows.embedded_ids().astype(np.int32), rows.dense()]


class PaceCallback(keras.callbacks.Callback):
    """Tells the clock of every call, and ends training after `steps`."""

    def __init__(self, pace: Pace, steps: int) -> None:
        super().__init__()
        self._pace = pace
        self._steps = steps
        self._seen_in_epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._seen_in_epoch = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._pace.step(batch + 1 - self._seen_in_epoch)
        self._seen_in_epoch = batch + 1
        if self._pace.steps >= self._steps:
            self.model.stop_training = True


def main() -> None:
    """Measures what was asked for."""
    arguments = parser(__doc__)
    arguments.add_argument("--steps-per-call", type=int, default=1, help="Keras's steps_per_execution")
    args = arguments.parse_args()
    rows = census_rows.read(args.data / "adult.data.csv")
    model = build_model(args.steps_per_call)
    pace = Pace(args.warmup)
    epochs = -(-args.steps * args.batch // len(rows))
    model.fit(
        inputs_of(rows),
        rows.labels[:, None],
        batch_size=args.batch,
        epochs=epochs,
        verbose=0,
        callbacks=[PaceCallback(pace, args.steps)],
    )
    pace.end()
    report = Report(peer=f"Keras 3 on {keras.backend.backend()}", version=keras.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        test = census_rows.read(args.data / "adult.test.csv")
        logits = model.predict(inputs_of(test), batch_size=512, verbose=0)[:, 0]
        chances = 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
        report.auc, report.accuracy = scores.auc(chances, test.labels), scores.accuracy(chances, test.labels)
        report.average_loss = scores.average_loss(chances, test.labels)
    report.print()


if __name__ == "__main__":
    main()
