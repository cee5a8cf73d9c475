"""Makes `tensorflow_optimizers.json` with TensorFlow: run it in an environment with tensorflow==2.15.1.

    python tests/optim/make_golden.py

In every step the gradient of ``dense`` is a batch's ``dense``, and the rows ``ids`` of ``table`` have the gradients
``rows``. Each case holds the variables and the slots after the last step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STEPS, ROWS, DIM = 6, 5, 2


def trained(given: dict[str, Any], make: Callable[[Any], Any]) -> dict[str, Any]:
    """Return all variables after training; `make` gets tensorflow and returns an optimizer and an average or None."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        dense, table = (tf.Variable(given[name], name=name, dtype=tf.float32) for name in ("dense", "table"))
        step = tf.train.get_or_create_global_step()
        optimizer, average = make(tf)
        batch = {name: tf.placeholder(tf.int64 if name == "ids" else tf.float32) for name in given["batches"][0]}
        rows = tf.nn.embedding_lookup(table, batch["ids"])
        loss = tf.reduce_sum(dense * batch["dense"]) + tf.reduce_sum(rows * batch["rows"])
        train = optimizer.minimize(loss, step)
        if average is not None:
            with tf.control_dependencies([train]):
                train = average.apply([dense, table])
        session.run(tf.global_variables_initializer())
        for one in given["batches"]:
            session.run(train, {batch[name]: value for name, value in one.items()})
        found = {variable.op.name: session.run(variable).tolist() for variable in tf.global_variables()}
    return {name: value for name, value in found.items() if name != "global_step"}


def main() -> None:
    draw = np.random.default_rng(5)

    def numbers(*shape: int) -> Any:
        return draw.normal(size=shape).round(3).tolist()

    given = {
        "dense": numbers(3),
        "table": numbers(ROWS, DIM),
        "batches": [
            {"dense": numbers(3), "ids": draw.integers(0, ROWS - 1, 4).tolist(), "rows": numbers(4, DIM)}
            for _ in range(STEPS)
        ],
    }
    cases = {
        "momentum": lambda tf: (tf.train.MomentumOptimizer(0.1, 0.9), None),
        "nesterov": lambda tf: (tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True), None),
        "average": lambda tf: (tf.train.AdagradOptimizer(0.3), tf.train.ExponentialMovingAverage(0.6)),
        "dynamic average": lambda tf: (
            tf.train.AdagradOptimizer(0.3),
            tf.train.ExponentialMovingAverage(0.4, tf.train.get_global_step()),
        ),
    }
    golden = {"given": given, "cases": {name: trained(given, make) for name, make in cases.items()}}
    path = Path(__file__).with_name("tensorflow_optimizers.json")
    path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
