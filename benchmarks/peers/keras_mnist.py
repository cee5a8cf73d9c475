"""The network of `examples/mnist` in Keras 3; runs in `.bench/keras`.

`model.fit` on the TensorFlow backend from images converted ahead of time. In the place of the one-cycle schedule stands
Keras's cosine decay with a warm-up of the same length, to the same rate.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from typing import Any

import keras

from benchmarks.peers import mnist_digits
from benchmarks.peers.keras_census import PaceCallback
from benchmarks.peers.report import Pace, Report, parser


def build_model(steps: int, steps_per_call: int) -> Any:
    """The network; `steps_per_call` steps run in one compiled call."""
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    highest = mnist_digits.LEARNING_RATE
    up = int(0.3 * steps)
    schedule = keras.optimizers.schedules.CosineDecay(highest / 25, steps - up, warmup_target=highest, warmup_steps=up)
    model.compile(
        optimizer=keras.optimizers.SGD(
            schedule, momentum=mnist_digits.MOMENTUM, nesterov=True, weight_decay=mnist_digits.WEIGHT_DECAY
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps_per_call,
    )
    return model


def main() -> None:
    """Measures what was asked for."""
    arguments = parser(__doc__)
    arguments.add_argument("--steps-per-call", type=int, default=1, help="Keras's steps_per_execution")
    args = arguments.parse_args()
    train, held_out = mnist_digits.read(args.data)
    model, pace = build_model(args.steps, args.steps_per_call), Pace(args.warmup)
    model.fit(
        train.images[..., None],
        train.labels,
        batch_size=args.batch,
        epochs=-(-args.steps * args.batch // len(train.labels)),
        verbose=0,
        callbacks=[PaceCallback(pace, args.steps)],
    )
    pace.end()
    report = Report(peer=f"Keras 3 on {keras.backend.backend()}", version=keras.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        chosen = model.predict(held_out.images[..., None], batch_size=512, verbose=0).argmax(1)
        report.accuracy = float((chosen == held_out.labels).mean())
    report.print()


if __name__ == "__main__":
    main()
