"""Train tf.estimator's V2 classes with their defaults, and write their weights and metrics to `tensorflow_v2.json`.

It needs an environment of its own: ``pip install tensorflow-cpu==2.15.1``. From the repository's root::

    python -m tests.docs.tensorflow_v2
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

REFERENCE = Path(__file__).with_suffix(".json")
JOBS = ["clerk", "farmer", "nurse"]
STEPS, BATCH_SIZE, EVAL_BATCH_SIZE = 200, 16, 64


def people() -> tuple[dict[str, Any], Any]:
    """Return features and labels: the same 320 rows in every version of numpy."""
    number = np.arange(320)
    age = (2 * np.sin(number * 1.7)).astype("float32")
    job = np.array(JOBS)[(number * 7 + number // 5) % 3]
    label = (age + (job == "nurse") + np.cos(number * 2.9) > 0.3).astype("int64")
    return {"age": age, "job": job}, label


def main() -> None:
    import tensorflow as tf

    features, labels = people()
    te, fc = tf.estimator, tf.feature_column
    age, job = fc.numeric_column("age"), fc.categorical_column_with_vocabulary_list("job", JOBS)
    deep = [age, fc.embedding_column(job, 2)]

    def batches(size: int, names: list[str], *, repeat: bool = False) -> Any:
        rows = tf.data.Dataset.from_tensor_slices(({name: features[name] for name in names}, labels))
        return (rows.repeat() if repeat else rows).batch(size)

    estimators = {
        "DNNClassifier": lambda config: te.DNNClassifier([4, 3], deep, config=config),
        **{
            f"DNNClassifier {name}": lambda config, name=name: te.DNNClassifier(
                [4, 3], deep, optimizer=name, config=config
            )
            for name in ("Adam", "RMSProp", "SGD", "Ftrl")
        },
        "DNNRegressor": lambda config: te.DNNRegressor([4, 3], deep, config=config),
        "LinearClassifier": lambda config: te.LinearClassifier([age, job], config=config),
        "DNNLinearCombinedClassifier": lambda config: te.DNNLinearCombinedClassifier(
            linear_feature_columns=[job], dnn_feature_columns=deep, dnn_hidden_units=[4, 3], config=config
        ),
        "BaselineClassifier": lambda config: te.BaselineClassifier(config=config),
        "DNNEstimator": lambda config: te.DNNEstimator(te.BinaryClassHead(), [4, 3], deep, config=config),
    }
    reference = {}
    for name, make in estimators.items():
        # A Dataset of two features makes BaselineClassifier fail.
        names = ["age"] if name.startswith("Baseline") else ["age", "job"]
        directory = tempfile.mkdtemp()
        estimator = make(te.RunConfig(directory, tf_random_seed=1))
        estimator.train(lambda names=names: batches(BATCH_SIZE, names, repeat=True), steps=STEPS)
        metrics = estimator.evaluate(lambda names=names: batches(EVAL_BATCH_SIZE, names))
        reference[name] = {
            "initial": weights(tf.train.load_checkpoint(f"{directory}/model.ckpt-0")),
            "trained": weights(tf.train.load_checkpoint(f"{directory}/model.ckpt-{STEPS}")),
            "metrics": {metric: float(f"{value:.8g}") for metric, value in metrics.items()},
        }
    REFERENCE.write_text(json.dumps({"tensorflow": tf.__version__, **reference}, indent=1) + "\n")


def weights(checkpoint: Any) -> dict[str, Any]:
    """Return the variables of a checkpoint by name, without those of optimizers, as nested lists."""
    names = [name for name in checkpoint.get_variable_to_shape_map() if "training/" not in name]
    return {
        name: np.vectorize(lambda number: float(f"{number:.9g}"))(checkpoint.get_tensor(name)).tolist()
        for name in sorted(names)
        if name != "global_step"
    }


if __name__ == "__main__":
    main()
