"""Compiled Keras models of several kinds."""

from __future__ import annotations

from typing import Any

import keras

import torch_estimator as te


def stateful(dropout: float = 0.3, **compiled: Any) -> Any:
    """Return a model with batch norm, dropout with both kinds of seed, a regularizer and a learning-rate schedule."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,), name="x")
    hidden = keras.layers.Dense(6, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01))(inputs)
    hidden = keras.layers.Dropout(dropout)(keras.layers.BatchNormalization()(hidden))
    hidden = keras.layers.Dropout(0.2, seed=7)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, name="y")(hidden))
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 10, 0.8)
    arguments = {
        "optimizer": keras.optimizers.Adam(schedule),
        "loss": "mse",
        "metrics": ["mae", keras.metrics.RootMeanSquaredError(name="rmse")],
        "weighted_metrics": ["mse"],
    }
    model.compile(**{**arguments, **compiled})
    return model


def classifier() -> Any:
    keras.utils.set_random_seed(4)
    layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3, activation="relu"), keras.layers.MaxPooling2D()]
    model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True), loss=loss, metrics=["accuracy"])
    return model


def two_ends() -> Any:
    keras.utils.set_random_seed(5)
    a, b = keras.Input((2,), name="a"), keras.Input((), dtype="int32", name="b")
    joined = keras.layers.concatenate([a, keras.layers.Embedding(4, 2)(b)])
    outputs = {"size": keras.layers.Dense(1)(joined), "kind": keras.layers.Dense(1, activation="sigmoid")(joined)}
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile(
        optimizer="rmsprop",
        loss={"size": "mse", "kind": "binary_crossentropy"},
        loss_weights={"size": 0.5, "kind": 2.0},
        metrics={"size": ["mae"], "kind": ["accuracy"]},
    )
    return model


class Scaled(keras.layers.Layer):
    """User-defined layer that is not registered with Keras."""

    def __init__(self, by: float = 2.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.by = by
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, x: Any, training: bool = False) -> Any:
        noise = keras.random.normal((3,), seed=self.seeds) if training else 0.0
        return x * self.by + noise

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "by": self.by}


class Subclassed(keras.Model):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.scaled = Scaled(0.5)
        self.hidden = keras.layers.Dense(width, activation=double_tanh)
        self.out = keras.layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.hidden(self.scaled(x, training=training)))

    def get_config(self) -> dict[str, Any]:
        return {"width": self.width}


def double_tanh(x: Any) -> Any:
    return 2 * keras.ops.tanh(x)


def subclassed() -> Any:
    import numpy as np

    keras.utils.set_random_seed(6)
    model = Subclassed(5)
    model(np.zeros((1, 3), np.float32))
    model.compile(optimizer=keras.optimizers.AdamW(0.02, clipnorm=1.0), loss="mae")
    return model


def weights(model: Any) -> list[Any]:
    return [variable.value.detach().numpy().copy() for variable in model.weights]


def config(**settings: Any) -> te.RunConfig:
    return te.RunConfig(**{"random_seed": 1, "save_checkpoints_steps": 1000, "save_summary_steps": None, **settings})
