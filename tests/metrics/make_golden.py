"""Makes `tensorflow_metrics.json` with TensorFlow: run it in an environment with tensorflow==2.15.1.

    python tests/metrics/make_golden.py

Each case holds the arguments of a function of tf.compat.v1.metrics, in batches, and its value over all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = (40, 3, 57)


def value(name: str, batches: list[dict[str, Any]], settings: dict[str, Any]) -> float:
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        first = {key: np.asarray(column) for key, column in batches[0].items()}
        given = {key: tf.placeholder(column.dtype, [None, *column.shape[1:]], key) for key, column in first.items()}
        result, update = getattr(tf.metrics, name)(**given, **settings)
        session.run(tf.local_variables_initializer())
        for batch in batches:
            session.run(update, {given[key]: np.asarray(column, first[key].dtype) for key, column in batch.items()})
        return float(session.run(result))


def main() -> None:
    draw = np.random.default_rng(0)
    rows = sum(BATCHES)
    truth = draw.integers(0, 2, rows)
    scores = np.clip(draw.normal(0.35 + 0.3 * truth, 0.2), 0, 1).round(3).astype(np.float32)
    weights = draw.integers(0, 4, rows).astype(np.float32)
    numbers = draw.normal(3, 2, rows).round(3).astype(np.float32)
    guesses = (numbers + draw.normal(0, 1, rows)).round(3).astype(np.float32)
    classes, guessed = draw.integers(0, 4, (2, rows))
    ranking = draw.permutation(rows * 6).reshape(rows, 6).astype(np.float32)
    several = np.stack([draw.permutation(6)[:3] for _ in range(rows)])
    binary = {"labels": truth, "predictions": (scores > 0.5).astype(np.int64)}
    regression = {"labels": numbers, "predictions": guesses}
    tried: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        *((name, binary, {}) for name in ("accuracy", "precision", "recall", "true_positives", "false_positives")),
        *((name, binary, {}) for name in ("true_negatives", "false_negatives")),
        *((name, regression, {}) for name in ("mean_squared_error", "root_mean_squared_error", "mean_absolute_error")),
        ("mean_relative_error", {**regression, "normalizer": numbers}, {}),
        ("mean", {"values": numbers}, {}),
        ("auc", {"labels": truth, "predictions": scores}, {}),
        ("auc", {"labels": truth, "predictions": scores}, {"curve": "PR"}),
        ("auc", {"labels": truth, "predictions": scores}, {"curve": "PR", "summation_method": "careful_interpolation"}),
        ("mean_per_class_accuracy", {"labels": classes, "predictions": guessed}, {"num_classes": 5}),
        ("precision_at_k", {"labels": classes, "predictions": ranking}, {"k": 3}),
        ("recall_at_k", {"labels": classes, "predictions": ranking}, {"k": 3}),
        ("precision_at_k", {"labels": several, "predictions": ranking}, {"k": 2}),
        ("recall_at_k", {"labels": several, "predictions": ranking}, {"k": 2}),
    ]
    ends = np.cumsum(BATCHES)
    cases = []
    for name, columns, settings in tried:
        for weighted in (False, True):
            given = {**columns, **({"weights": weights} if weighted else {})}
            batches = [
                {key: column[end - size : end].tolist() for key, column in given.items()}
                for end, size in zip(ends, BATCHES, strict=True)
            ]
            typed = [
                {key: given[key][end - size : end] for key in given} for end, size in zip(ends, BATCHES, strict=True)
            ]
            cases.append(
                {"name": name, "settings": settings, "batches": batches, "value": value(name, typed, settings)}
            )
    # Keep each column once: cases share most of them.
    columns: list[Any] = []
    for case in cases:
        for batch in case["batches"]:
            for key, column in batch.items():
                if column not in columns:
                    columns.append(column)
                batch[key] = columns.index(column)
    lines = ",\n".join(json.dumps(case) for case in cases)
    held = ",\n".join(json.dumps(column) for column in columns)
    text = f'{{"columns": [\n{held}\n],\n"cases": [\n{lines}\n]}}\n'
    Path(__file__).with_name("tensorflow_metrics.json").write_text(text)


if __name__ == "__main__":
    main()
