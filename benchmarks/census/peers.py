"""The peers of the census benchmark, and how many steps each needs for a steady state of some seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.protocol import Side, ready


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a run and, of these, those before the steady state, by rows in a step."""

    small: tuple[int, int]
    large: tuple[int, int]


PEERS = {
    "tensorflow": Side(name="TF 2.15 tf.estimator", script="tensorflow_census", environment="tensorflow"),
    "tensorflow-batched": Side(
        name="TF 2.15, lines decoded by the batch",
        script="tensorflow_census",
        environment="tensorflow",
        arguments=("--decode", "batch"),
    ),
    "eager": Side(name="eager loop, DataLoader", script="eager_census", environment="torch"),
    "compiled": Side(name="compiled loop", script="compiled_census", environment="torch", arguments=("--threads", "1")),
    "lightning": Side(name="Lightning", script="lightning_census", environment="torch"),
    "accelerate": Side(name="Accelerate", script="accelerate_census", environment="torch"),
    "widedeep": Side(name="pytorch-widedeep", script="widedeep_census", environment="widedeep"),
    "keras": Side(name="Keras 3", script="keras_census", environment="keras", arguments=("--steps-per-call", "32")),
    "jax": Side(name="JAX", script="jax_census", environment="jax"),
    "jax-scan": Side(
        name="JAX, 32 steps a call", script="jax_census", environment="jax", arguments=("--steps-per-call", "32")
    ),
}
"""By the names that `--peers` takes. JAX and Keras run many steps a call where their users would."""

STEPS = {
    "ours": Steps((12_000, 3_000), (3_000, 1_000)),
    "tensorflow": Steps((1_500, 300), (200, 50)),
    "tensorflow-batched": Steps((2_000, 300), (600, 100)),
    "keras": Steps((1_280, 320), (640, 160)),
    "compiled": Steps((8_000, 2_000), (2_000, 500)),
    "jax": Steps((8_000, 2_000), (2_000, 500)),
    "jax-scan": Steps((12_800, 3_200), (3_200, 640)),
}
_OTHERS = Steps((2_000, 400), (600, 100))
_QUICK = Steps((128, 32), (64, 32))


def steps_of(key: str, *, batch: int, quick: bool) -> tuple[int, int]:
    """Steps of a side's run, and those of its warm-up."""
    steps = _QUICK if quick else STEPS.get(key, _OTHERS)
    return steps.small if batch < 512 else steps.large


def present(names: Iterable[str], *, install: bool) -> dict[str, Side]:
    """Return the sides of `PEERS` with these names that can run; `install` and what is left out are as in `ready`."""
    return ready({name: PEERS[name] for name in names}, install=install)
