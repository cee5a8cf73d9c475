"""Write what TensorFlow's k-means computes to `tensorflow_kmeans.json`.

It needs an environment of its own: ``pip install tensorflow-cpu==2.15.1``. From the repository's root::

    python -m tests.models.tensorflow_kmeans

In TensorFlow's graph two pairs of operations have no order, so that repeated runs differ: a step adds its points to the
counts before or after it reads them, and takes the new centers of an iteration before or after it assigns points to
them. `in_documented_order` gives them the order that the comments in `clustering_ops` describe.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

REFERENCE = Path(__file__).with_suffix(".json")
BATCH = 8
STEPS = 7
CASES = [
    (distance, *rest)
    for distance, rest in itertools.product(("squared_euclidean", "cosine"), ((False, 1), (True, 1), (True, 3)))
]
"""Distance, whether it trains in mini-batches, and steps of an iteration."""


def points() -> np.ndarray:
    """Return points in three groups, float32 ``[24, 3]``."""
    generator = np.random.RandomState(0)
    middles = np.array([[0, 0, 1], [3, 0, 3], [3, 3, 6]])[generator.randint(0, 3, 24)]
    return (generator.randn(24, 3) + middles).astype(np.float32)


def in_documented_order() -> None:
    """Change `clustering_ops` as the docstring of this module says."""
    import tensorflow as tf
    from tensorflow.python.ops import clustering_ops, state_ops

    class Ordered:
        """`state_ops`, except that the counts are updated after the updates of the centers were computed."""

        add: Any = None

        def __getattr__(self, name: str) -> Any:
            return getattr(state_ops, name)

        def scatter_add(self, variable: Any, ids: Any, updates: Any) -> Any:
            if variable.dtype.base_dtype == tf.int64:
                self.add = lambda: state_ops.scatter_add(variable, ids, updates)
                return tf.no_op()
            with tf.control_dependencies([updates]):
                added = self.add()
            return tf.group(added, state_ops.scatter_add(variable, ids, updates))

    clustering_ops.state_ops = Ordered()
    kmeans = clustering_ops.KMeans
    create_variables, train = kmeans._create_variables, kmeans._mini_batch_training_op

    def remember(self: Any, *args: Any) -> Any:
        self.variables = create_variables(self, *args)
        return self.variables

    def assign_and_train(self: Any, inputs: Any, assigned: Any, *args: Any) -> Any:
        if self._mini_batch_steps_per_iteration > 1:
            _, _, assigned = self._infer_graph(inputs, self.variables[0])
        return train(self, inputs, assigned, *args)

    kmeans._create_variables, kmeans._mini_batch_training_op = remember, assign_and_train


def computed(distance: str, use_mini_batch: bool, steps_per_iteration: int) -> dict[str, Any]:
    """Return the centers after each step, and the results of the trained model."""
    import tensorflow as tf

    centers: list[Any] = []
    given = points()

    class Centers(tf.compat.v1.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            variables = {one.name: one for one in tf.compat.v1.global_variables()}
            centers.append(run_context.session.run(variables["clusters:0"]).tolist())

    def batches(size: int = BATCH) -> Any:
        return tf.data.Dataset.from_tensor_slices(given).batch(size)

    model = tf.compat.v1.estimator.experimental.KMeans(
        3,
        initial_clusters=given[:3],
        distance_metric=distance,
        use_mini_batch=use_mini_batch,
        mini_batch_steps_per_iteration=steps_per_iteration,
    )
    size = BATCH if use_mini_batch else len(given)
    model.train(lambda: batches(size).repeat(), steps=STEPS, hooks=[Centers()])
    predicted = list(model.predict(batches))
    return {
        "centers": centers,
        "evaluation": {name: float(value) for name, value in model.evaluate(batches).items()},
        "score": float(model.score(batches)),
        "cluster_index": [int(one["cluster_index"]) for one in predicted],
        "all_distances": [one["all_distances"].tolist() for one in predicted[:3]],
        "transformed": next(model.transform(batches)).tolist(),
    }


def main() -> None:
    import tensorflow as tf

    in_documented_order()
    found = {f"{distance} {mini} {steps}": computed(distance, mini, steps) for distance, mini, steps in CASES}
    REFERENCE.write_text(json.dumps({"tensorflow": tf.__version__, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
