"""The census sample in JAX; runs in `.bench/jax`.

One jitted step with donated state, Ftrl on the touched rows of the wide table by hand, optax's Adagrad for the rest,
all rows encoded ahead of time and in memory; only a batch's row numbers come from outside. `--steps-per-call` runs
several steps in one `lax.scan`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.peers import census_rows, scores
from benchmarks.peers.report import Pace, Report, parser

# What tf.estimator's v1 classes take for eleven wide columns and for the network.
WIDE_RATE, DEEP_RATE, START = 0.005, 0.05, 0.1

deep_optimizer = optax.adagrad(DEEP_RATE, initial_accumulator_value=START)


class Batch(NamedTuple):
    """Rows on the device: `wide` and `embedded` ids, `dense` numbers, `labels`."""

    wide: Any
    embedded: Any
    dense: Any
    labels: Any


class State(NamedTuple):
    """What training changes; `z`, `n` and `scratch` are as long as the wide table."""

    wide: Any
    z: Any
    n: Any
    scratch: Any
    deep: Any
    slots: Any


def initial_state(key: Any) -> State:
    """Weights as the canned classifiers start them."""
    wide = jnp.zeros(census_rows.WIDE_ROWS)
    sizes = (census_rows.DEEP_INPUTS, *census_rows.HIDDEN_UNITS, 1)
    keys = jax.random.split(key, len(sizes))
    glorot = jax.nn.initializers.glorot_uniform()
    shape = (census_rows.EMBEDDED_ROWS, census_rows.EMBEDDING_SIZE)
    deep = {
        "bias": jnp.zeros(()),
        "embeddings": jax.random.truncated_normal(keys[0], -2, 2, shape) / np.sqrt(census_rows.EMBEDDING_SIZE),
        "layers": [
            (glorot(one, pair), jnp.zeros(pair[1]))
            for one, pair in zip(keys[1:], itertools.pairwise(sizes), strict=True)
        ],
    }
    return State(wide, jnp.zeros_like(wide), jnp.full_like(wide, START), wide + 0, deep, deep_optimizer.init(deep))


def logits_of(touched: Any, deep: Any, batch: Batch) -> Any:
    """`touched` holds the wide weights of the batch's ids."""
    embedded = deep["embeddings"][batch.embedded].reshape(len(batch.dense), -1)
    hidden = jnp.concatenate([batch.dense, embedded], axis=1)
    *layers, (weights, bias) = deep["layers"]
    for kernel, offset in layers:
        hidden = jax.nn.relu(hidden @ kernel + offset)
    return (hidden @ weights + bias)[:, 0] + touched.sum(axis=1) + deep["bias"]


def summed_loss(touched: Any, deep: Any, batch: Batch) -> Any:
    """The binary cross entropy, summed over the batch as tf.estimator's v1 classes do."""
    return optax.sigmoid_binary_cross_entropy(logits_of(touched, deep, batch), batch.labels).sum()


def train_step(state: State, batch: Batch) -> tuple[State, Any]:
    """Both optimizers' update, and the loss."""
    loss, (touched_grad, deep_grad) = jax.value_and_grad(summed_loss, argnums=(0, 1))(
        state.wide[batch.wide], state.deep, batch
    )
    updates, slots = deep_optimizer.update(deep_grad, state.slots, state.deep)
    wide, z, n, scratch = ftrl(state, batch.wide.ravel(), touched_grad.ravel())
    return State(wide, z, n, scratch, optax.apply_updates(state.deep, updates), slots), loss


def ftrl(state: State, ids: Any, grads: Any) -> tuple[Any, Any, Any, Any]:
    """Ftrl on the rows of `ids`, each of which may occur several times."""
    scratch = state.scratch.at[ids].set(0.0).at[ids].add(grads)
    grad, weight, n = scratch[ids], state.wide[ids], state.n[ids]
    new_n = n + grad**2
    z = state.z[ids] + grad - (jnp.sqrt(new_n) - jnp.sqrt(n)) / WIDE_RATE * weight
    new_weight = -z * WIDE_RATE / jnp.sqrt(new_n)
    return state.wide.at[ids].set(new_weight), state.z.at[ids].set(z), state.n.at[ids].set(new_n), scratch


def on_device(rows: census_rows.CensusRows) -> Batch:
    """All rows as one batch."""
    arrays = rows.wide_ids().astype(np.int32), rows.embedded_ids().astype(np.int32), rows.dense(), rows.labels
    return Batch(*map(jnp.asarray, arrays))


def trainer(rows: Batch) -> Callable[[State, Any], tuple[State, Any]]:
    """Trains on the rows whose numbers are given, int32 `[steps, batch]`, in one call."""

    def one_step(rows: Batch, state: State, places: Any) -> tuple[State, Any]:
        return train_step(state, Batch(*(values[places] for values in rows)))

    @partial(jax.jit, donate_argnums=1)
    def steps(rows: Batch, state: State, places: Any) -> tuple[State, Any]:
        if len(places) == 1:
            return one_step(rows, state, places[0])
        return jax.lax.scan(partial(one_step, rows), state, places)

    return partial(steps, rows)


def main() -> None:
    """Measures what was asked for."""
    arguments = parser(__doc__)
    arguments.add_argument("--steps-per-call", type=int, default=1, help="steps in one jitted call")
    args = arguments.parse_args()
    if args.threads:
        raise SystemExit("JAX has no setting of its threads; run it under taskset without --threads.")
    rows = census_rows.read(args.data / "adult.data.csv")
    train, state = trainer(on_device(rows)), initial_state(jax.random.key(1))
    pace = Pace(args.warmup, synchronise=lambda: jax.block_until_ready(state))
    orders = census_rows.orders(len(rows), args.batch)
    for _ in range(args.steps // args.steps_per_call):
        places = np.stack([next(orders) for _ in range(args.steps_per_call)]).astype(np.int32)
        state, _ = train(state, places)
        pace.step(args.steps_per_call)
    pace.end()
    report = Report(peer="JAX", version=jax.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        test = on_device(census_rows.read(args.data / "adult.test.csv"))
        chances = np.asarray(jax.jit(jax.nn.sigmoid)(logits_of(state.wide[test.wide], state.deep, test)))
        labels = np.asarray(test.labels)
        report.auc, report.accuracy = scores.auc(chances, labels), scores.accuracy(chances, labels)
        report.average_loss = scores.average_loss(chances, labels)
    report.print()


if __name__ == "__main__":
    main()
