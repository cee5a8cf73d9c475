"""Makes `tensorflow_losses.json` with TensorFlow: run it in an environment with tensorflow==2.15.1.

    python tests/nn/make_golden.py

Each case holds candidates that TensorFlow has drawn, the losses of `rows` with them, and the gradients of their sum.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

CLASSES, DIM, SAMPLED, ROWS = 12, 3, 5, 4
FILE = Path(__file__).with_name("tensorflow_losses.json")
CASES = [
    (loss, num_true, hits, unique)
    for loss in ("sampled_softmax_loss", "nce_loss")
    for num_true, hits, unique in ((1, True, True), (2, True, True), (2, False, False))
]


def rows(num_true: int) -> dict[str, Any]:
    """Return weights, biases, inputs and labels."""
    draw = np.random.default_rng(7)
    return {
        "weights": draw.normal(size=(CLASSES, DIM)).astype(np.float32),
        "biases": draw.normal(size=CLASSES).astype(np.float32),
        "inputs": draw.normal(size=(ROWS, DIM)).astype(np.float32),
        "labels": draw.integers(0, CLASSES, (ROWS, num_true)),
    }


def main() -> None:
    import tensorflow as tf

    cases = []
    for number, (loss, num_true, hits, unique) in enumerate(CASES):
        given = rows(num_true)
        sampler = tf.random.log_uniform_candidate_sampler
        drawn = sampler(given["labels"], num_true, SAMPLED, unique, CLASSES, seed=number)
        trained = {name: tf.Variable(given[name]) for name in ("weights", "biases", "inputs")}
        with tf.GradientTape() as tape:
            losses = getattr(tf.nn, loss)(
                **trained,
                labels=given["labels"],
                num_sampled=SAMPLED,
                num_classes=CLASSES,
                num_true=num_true,
                sampled_values=drawn,
                remove_accidental_hits=hits,
            )
        gradients = tape.gradient(losses, trained)
        case = {"loss": loss, "num_true": num_true, "hits": hits, "unique": unique, "losses": losses}
        case |= dict(zip(("sampled", "true", "expected"), drawn, strict=True))
        case |= {f"d_{name}": tf.convert_to_tensor(gradient) for name, gradient in gradients.items()}
        cases.append({key: one.numpy().tolist() if tf.is_tensor(one) else one for key, one in case.items()})
    lines = ",\n".join(json.dumps(case) for case in cases)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
