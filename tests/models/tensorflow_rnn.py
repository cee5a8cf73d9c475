"""Train TensorFlow's recurrent estimators for some steps, and write what comes of it to `tensorflow_rnn.json`.

It needs an environment of its own: ``pip install tensorflow-cpu==2.15.1``. From the repository's root::

    python -m tests.models.tensorflow_rnn
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

REFERENCE = Path(__file__).with_suffix(".json")
STEPS = 4

TOKENS = [[1, 2, 3, 0], [4, 2], [], [0, 9, 3]]
PAIRS = [[1.0, 0.5, 2.0, -1.0, 3.0, 0.0, 0.5, 0.5], [4.0, 1.0, 2.0, 2.0], [], [0.5, 0.1, 0.2, 0.3, 1.0, 1.0]]
CONTEXT = [[1.0], [2.0], [-1.0], [0.5]]
GROUPS = [[1], [3], [0], [2]]
WEIGHTS = [[1.0], [0.5], [2.0], [40.0]]
LABELS = [[1], [0], [2], [1]]
STEP_LABELS = [[1, 0, 2, 2], [0, 1], [], [2, 1, 0]]
STEP_WEIGHTS = [[1.0, 2.0, 0.5, 1.0], [0.0, 3.0], [], [1.0, 1.0, 0.5]]

CASES: dict[str, dict[str, Any]] = {
    "lstm": {"units": [4], "cell_type": "lstm", "n_classes": 3},
    "gru": {"units": [4, 3], "cell_type": "gru", "n_classes": 3, "weight_column": "w", "loss_reduction": "sum"},
    "default": {"units": [3], "n_classes": 3, "optimizer": "Adam"},
    "one_lstm": {"units": 3, "cell_type": "lstm"},
    "two_rnns": {"units": [3, 2], "cell_type": "simple_rnn", "optimizer": "SGD"},
    "sequences": {"units": [3], "cell_type": "gru", "n_classes": 3, "weight_column": "w", "return_sequences": True},
    "binary_sequences": {"units": [3, 2], "cell_type": "lstm", "return_sequences": True},
}


def initial(shape: Any, number: int) -> np.ndarray:
    """Return the initial value of the variable with this number in the order of names."""
    return np.sin(np.arange(int(np.prod(shape))) * 1.7 + number).reshape(shape).astype(np.float32) * 0.6


def digest(value: np.ndarray) -> float:
    """Return a number that depends on every element."""
    return float(value.astype(float).ravel() @ np.cos(np.arange(value.size)))


def columns(fc: Any) -> tuple[list[Any], list[Any]]:
    """Return the sequence columns and the context columns.

    Args:
        fc: The module of feature columns, TensorFlow's or ours.
    """
    tokens = fc.sequence_categorical_column_with_identity("tokens", 5, default_value=4)
    groups = fc.categorical_column_with_identity("group", 4)
    return (
        [fc.embedding_column(tokens, 3), fc.sequence_numeric_column("pairs", shape=(2,))],
        [fc.numeric_column("context"), fc.embedding_column(groups, 2)],
    )


def labels_of(case: dict[str, Any]) -> list[list[int]]:
    """Return the labels of a case, as lists; those of two classes are 0 and 1."""
    labels = STEP_LABELS if case.get("return_sequences") else LABELS
    return labels if case.get("n_classes", 2) > 2 else [[one % 2 for one in row] for row in labels]


def main() -> None:
    import tempfile

    import tensorflow as tf

    class Initial(tf.estimator.SessionRunHook):
        def begin(self) -> None:
            self.losses: list[float] = []

        def after_create_session(self, session: Any, coord: Any) -> None:
            variables = sorted(tf.compat.v1.trainable_variables(), key=lambda one: one.name)
            for number, variable in enumerate(variables):
                variable.load(initial(variable.shape, number), session)

        def before_run(self, context: Any) -> Any:
            return tf.estimator.SessionRunArgs(self.loss(context.session.graph))

        def loss(self, graph: Any) -> Any:
            return graph.get_collection(tf.compat.v1.GraphKeys.LOSSES)[-1]

        def after_run(self, context: Any, values: Any) -> None:
            self.losses.append(float(values.results))

    found: dict[str, Any] = {"tensorflow": tf.__version__}
    for name, case in CASES.items():
        is_sequence = case.get("return_sequences", False)
        labels = labels_of(case)

        def input_fn(times: int, labels: Any = labels, is_sequence: bool = is_sequence) -> Any:
            def lists(rows: Any) -> Any:
                return tf.ragged.constant(rows).to_sparse()

            features = {"tokens": lists(TOKENS), "pairs": lists(PAIRS), "context": tf.constant(CONTEXT)}
            features["group"] = tf.constant(GROUPS)
            features["w"] = lists(STEP_WEIGHTS) if is_sequence else tf.constant(WEIGHTS)
            batch = features, lists(labels) if is_sequence else tf.constant(labels)
            return tf.data.Dataset.from_tensors(batch).repeat(times)

        sequence, context = columns(tf.feature_column)
        model = tf.estimator.experimental.RNNClassifier(
            sequence,
            context,
            model_dir=tempfile.mkdtemp(),
            config=tf.estimator.RunConfig(log_step_count_steps=1),
            **case,
        )
        hook = Initial()
        model.train(lambda: input_fn(STEPS), hooks=[hook])
        names = [one for one in model.get_variable_names() if not one.startswith(("training", "global_step"))]
        predictions = list(model.predict(lambda: input_fn(1)))
        found[name] = {
            "losses": [round(one, 6) for one in hook.losses],
            "variables": {one: round(digest(model.get_variable_value(one)), 6) for one in sorted(names)},
            "logits": np.array([one["logits"] for one in predictions]).astype(float).round(6).tolist(),
            "keys": sorted(predictions[0]),
            "metrics": {key: round(float(value), 6) for key, value in model.evaluate(lambda: input_fn(1)).items()},
        }
        if is_sequence:
            found[name]["mask"] = [one["sequence_mask"].tolist() for one in predictions]
            found[name]["shapes"] = {key: list(value.shape) for key, value in predictions[0].items()}
    REFERENCE.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
