"""Trains, evaluates and exports a compiled Keras model of digits: `python -m examples.keras_model.task --help`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch_estimator as te
from torch_estimator import errors

from ..mnist import digits, task

# Keras reads it when it is first imported.
os.environ.setdefault("KERAS_BACKEND", "torch")


def build_model(learning_rate: float, seed: int) -> Any:
    """A small convolutional network with dropout, compiled: its loss, metric and optimizer are Keras's."""
    import keras

    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((digits.SIZE, digits.SIZE), name="image"),
            keras.layers.Reshape((digits.SIZE, digits.SIZE, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(digits.CLASSES),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model


def run(arguments: Sequence[str] | None) -> None:
    """Turns the model into an estimator, and trains it as any other."""
    made = task.parser(
        "examples.keras_model.task",
        "Train, evaluate and export a compiled Keras model.",
        job_dir="runs/keras",
        learning_rate=0.05,
        rate_help="of stochastic gradient descent with momentum 0.9",
    )
    args, train, held_out = task.parse(made, arguments)
    estimator = te.model_to_estimator(
        build_model(args.learning_rate, args.seed),
        model_dir=args.job_dir,
        config=te.RunConfig(random_seed=args.seed, save_checkpoints_steps=args.save_checkpoints_steps),
    )
    input_fn, steps = task.input_fn_of(train, held_out, args), task.steps_of(train, args)
    task.train_and_evaluate(estimator, input_fn, steps=steps, inputs=task.serving_input())


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; what the user can mend ends it with one sentence and exit status 2."""
    with errors.exit_on_user_error():
        run(arguments)


if __name__ == "__main__":
    main()
