"""Train premade models with TensorFlow, and keep their checkpoints and metrics in `tensorflow_checkpoints/`.

It needs an environment of its own: ``pip install tensorflow==2.15.1``. From the repository's root, with the census
files in ``../shared/data/census``::

    python -m tests.checkpoint.tensorflow_checkpoints

With names of estimators it makes these anew, and leaves the others as they are.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.docs.tensorflow_v2 import JOBS, people

FOLDER = Path(__file__).with_suffix("")
CENSUS = Path(__file__).resolve().parents[3] / "shared" / "data" / "census"
# One epoch, so that a training that goes on begins with the first row again.
STEPS, BATCH_SIZE, EVAL_BATCH_SIZE = 20, 16, 64
CENSUS_STEPS, CENSUS_BATCH_SIZE, CENSUS_EVAL_ROWS, CENSUS_EVAL_BATCH_SIZE = 300, 64, 4096, 512
# Columns of the census files by name; the last one is the label.
CENSUS_NUMBERS = {"age": 0, "education_num": 4, "hours_per_week": 12}
CENSUS_STRINGS = {"workclass": 1, "education": 3, "occupation": 6}


def rows() -> tuple[dict[str, Any], Any]:
    """Return features and labels of 320 rows."""
    features, labels = people()
    number = np.arange(320)
    wish = np.array(JOBS)[(number * 5 + number // 7) % 3]
    return {**features, "wish": wish, "weight": (1 + number % 3).astype("float32")}, labels


def columns(fc: Any, hashed: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the columns of the linear and of the deep part of the models of these rows.

    Args:
        fc: ``tf.feature_column`` or ours.
        hashed: Arguments of columns that hash.
    """
    age = fc.numeric_column("age")
    job, wish = (fc.categorical_column_with_vocabulary_list(key, JOBS) for key in ("job", "wish"))
    ages = fc.bucketized_column(age, [-1, 0, 1])
    hash_bucket = fc.categorical_column_with_hash_bucket("wish", 5, **hashed)
    weighted = fc.weighted_categorical_column(hash_bucket, "weight")
    return {
        "wide": [age, job, ages, weighted, fc.crossed_column([ages, "job"], 70, **hashed)],
        "deep": [age, fc.embedding_column(job, 2), fc.indicator_column(wish), ages],
    }


def dense_columns(fc: Any, hashed: dict[str, Any]) -> list[Any]:
    """Return columns of a linear model with indicators and embeddings; see `columns`."""
    job, wish = (fc.categorical_column_with_vocabulary_list(key, JOBS) for key in ("job", "wish"))
    hash_bucket = fc.categorical_column_with_hash_bucket("wish", 5, **hashed)
    weighted = fc.weighted_categorical_column(hash_bucket, "weight")
    return [
        fc.numeric_column("age"),
        wish,
        *(fc.indicator_column(one) for one in (job, weighted)),
        fc.embedding_column(job, 3),
        fc.embedding_column(weighted, 2, combiner="sqrtn", max_norm=0.5),
    ]


def census_columns(fc: Any, hashed: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the columns of the linear and of the deep part of the census model."""

    def hash_bucket(key: str) -> Any:
        return fc.categorical_column_with_hash_bucket(key, 50, **hashed)

    age = fc.numeric_column("age")
    ages = fc.bucketized_column(age, [18, 25, 30, 35, 40, 45, 50, 55, 60, 65])
    cross = fc.crossed_column([ages, "education", "occupation"], 300, **hashed)
    scaled = [fc.numeric_column(key, normalizer_fn=lambda x: (x - 40) / 12) for key in CENSUS_NUMBERS]
    return {
        "wide": [ages, *(hash_bucket(key) for key in CENSUS_STRINGS), cross],
        "deep": [
            *scaled,
            fc.embedding_column(hash_bucket("occupation"), 4),
            fc.indicator_column(hash_bucket("workclass")),
        ],
    }


def census_rows(file: str, count: int) -> tuple[dict[str, Any], Any]:
    """Return features and labels of the first rows of a census file."""
    with open(CENSUS / file, newline="") as lines:
        table = list(zip(*(row for row, _ in zip(csv.reader(lines), range(count), strict=False)), strict=True))
    numbers = {key: np.array(table[place], "float32") for key, place in CENSUS_NUMBERS.items()}
    strings = {key: np.array(table[place]) for key, place in CENSUS_STRINGS.items()}
    return {**numbers, **strings}, np.array([label == ">50K" for label in table[-1]], "int64")


def main(only: list[str]) -> None:
    import tensorflow as tf

    v1, v2, keras = tf.compat.v1.estimator, tf.estimator, tf.keras.optimizers.legacy
    train, fc = tf.compat.v1.train, tf.feature_column
    features, labels = rows()
    own = columns(fc, {})
    wide, deep = own["wide"], own["deep"]
    dense = dense_columns(fc, {})
    both = {"linear_feature_columns": wide, "dnn_feature_columns": deep, "dnn_hidden_units": [4, 3]}
    parts = tf.compat.v1.fixed_size_partitioner(3)

    def shared(function: Any) -> Any:
        job, wish = (fc.categorical_column_with_vocabulary_list(key, JOBS) for key in ("job", "wish"))
        return [*deep, *function([job, wish], 3)]

    estimators = {
        "v1_combined": lambda config: v1.DNNLinearCombinedClassifier(**both, config=config),
        "v1_partitioned": lambda config: v1.DNNLinearCombinedClassifier(
            **both, input_layer_partitioner=parts, config=config
        ),
        "v1_linear": lambda config: v1.LinearClassifier(wide, partitioner=parts, config=config),
        "v1_batch_norm_shared": lambda config: v1.DNNClassifier(
            [4, 3], shared(tf.compat.v1.feature_column.shared_embedding_columns), batch_norm=True, config=config
        ),
        "v1_adam": lambda config: v1.DNNClassifier([4], deep, optimizer=train.AdamOptimizer(0.01), config=config),
        "v1_momentum": lambda config: v1.DNNRegressor(
            [4], deep, optimizer=train.MomentumOptimizer(0.001, 0.9), config=config
        ),
        "v1_rmsprop": lambda config: v1.DNNClassifier(
            [4], deep, optimizer=train.RMSPropOptimizer(0.01, momentum=0.5), config=config
        ),
        "v1_baseline": lambda config: v1.BaselineClassifier(config=config),
        "v1_linear_dense": lambda config: v1.LinearClassifier(dense, optimizer=train.AdamOptimizer(0.1), config=config),
        "v1_combined_dense": lambda config: v1.DNNLinearCombinedClassifier(
            **{**both, "linear_feature_columns": dense}, config=config
        ),
        "v2_linear_dense": lambda config: v2.LinearRegressor(dense, config=config),
        "v2_combined_dense": lambda config: v2.DNNLinearCombinedClassifier(
            **{**both, "linear_feature_columns": dense}, config=config
        ),
        "v2_combined": lambda config: v2.DNNLinearCombinedClassifier(**both, config=config),
        "v2_linear": lambda config: v2.LinearRegressor(wide, config=config),
        "v2_batch_norm": lambda config: v2.DNNClassifier([4, 3], deep, batch_norm=True, config=config),
        "v2_shared": lambda config: v2.DNNClassifier([4], shared(fc.shared_embeddings), config=config),
        "v2_adam": lambda config: v2.DNNEstimator(
            v2.BinaryClassHead(), [4], deep, optimizer=lambda: keras.Adam(0.01), config=config
        ),
        "v2_momentum": lambda config: v2.DNNRegressor(
            [4], deep, optimizer=lambda: keras.SGD(0.01, momentum=0.9), config=config
        ),
        "v2_rmsprop": lambda config: v2.DNNClassifier([4], deep, optimizer=lambda: keras.RMSprop(0.01), config=config),
        "v2_rmsprop_momentum": lambda config: v2.DNNClassifier(
            [4], deep, optimizer=lambda: keras.RMSprop(0.01, momentum=0.5), config=config
        ),
        "v2_baseline": lambda config: v2.BaselineClassifier(config=config),
    }
    expected: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text()) if only else {}
    if not only:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
    others = {"rnn": recurrent_models, "kmeans": clusters}
    for name in only:
        expected |= others.pop(name, dict)()
    for name in [one for one in only or estimators if one not in ("rnn", "kmeans")]:
        make = estimators[name]
        # A Dataset of several features makes the baseline models fail.
        given = {"age": features["age"]} if name.endswith("baseline") else features
        batches = dataset(given, labels)
        # TensorFlow shares embeddings in graphs only.
        with tf.Graph().as_default() if "shared" in name else tf.init_scope():
            estimator = make(v2.RunConfig(tempfile.mkdtemp(), tf_random_seed=1))
        expected[name] = {}
        for steps in (STEPS, 2 * STEPS):
            estimator.train(lambda batches=batches: batches().repeat().batch(BATCH_SIZE), max_steps=steps)
            metrics = estimator.evaluate(lambda batches=batches: batches().batch(EVAL_BATCH_SIZE))
            expected[name][str(steps)] = plain(metrics)
        keep(f"{estimator.model_dir}/model.ckpt-{STEPS}", name)
    if only:
        write(expected)
        return
    refused = {
        "v1_centered": lambda config: v1.DNNClassifier(
            [4], deep, optimizer=train.RMSPropOptimizer(0.01, centered=True), config=config
        ),
        "v2_amsgrad": lambda config: v2.DNNClassifier(
            [4], deep, optimizer=lambda: keras.Adam(0.01, amsgrad=True), config=config
        ),
    }
    for name, make in refused.items():
        estimator = make(v2.RunConfig(tempfile.mkdtemp(), tf_random_seed=1))
        estimator.train(lambda: dataset(features, labels)().batch(BATCH_SIZE), max_steps=STEPS)
        keep(f"{estimator.model_dir}/model.ckpt-{STEPS}", name)
    census = census_columns(fc, {})
    train_rows = dataset(*census_rows("adult.data.csv", CENSUS_STEPS * CENSUS_BATCH_SIZE))
    eval_rows = dataset(*census_rows("adult.test.csv", CENSUS_EVAL_ROWS))
    estimator = v2.DNNLinearCombinedClassifier(
        linear_feature_columns=census["wide"],
        dnn_feature_columns=census["deep"],
        dnn_hidden_units=[8, 4],
        dnn_optimizer=lambda: keras.Adagrad(0.05),
        config=v2.RunConfig(tempfile.mkdtemp(), tf_random_seed=1),
    )
    estimator.train(lambda: train_rows().batch(CENSUS_BATCH_SIZE))
    metrics = estimator.evaluate(lambda: eval_rows().batch(CENSUS_EVAL_BATCH_SIZE))
    expected["census"] = {str(CENSUS_STEPS): plain(metrics)}
    keep(f"{estimator.model_dir}/model.ckpt-{CENSUS_STEPS}", "census")
    expected |= own_models() | recurrent_models() | clusters()
    people_model()
    write({"tensorflow": tf.__version__, **expected})


def images() -> Any:
    """Return four images, float32 ``[4, 8, 8, 1]``."""
    return np.sin(np.arange(256) * 1.3).reshape(4, 8, 8, 1).astype("float32")


def own_models() -> dict[str, Any]:
    """Keep the checkpoints of a convolutional network in both formats, and return its outputs for `images`."""
    import tensorflow as tf

    v1, layers = tf.compat.v1, tf.keras.layers
    outputs: dict[str, Any] = {}
    folder = tempfile.mkdtemp()
    targets = np.cos(np.arange(20)).reshape(4, 5).astype("float32")
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        training = v1.placeholder_with_default(False, [])
        net = v1.layers.conv2d(images(), 3, 3, activation=tf.nn.relu)
        net = v1.layers.batch_normalization(net, training=training)
        net = v1.layers.dense(v1.layers.flatten(net), 5, activation=tf.nn.relu)
        predicted = v1.layers.dense(net, 5)
        loss, step = tf.reduce_mean((predicted - targets) ** 2), v1.train.create_global_step()
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            minimize = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        session.run(v1.global_variables_initializer())
        for _ in range(9):
            session.run(minimize, {training: True})
        outputs["own_v1"] = session.run(predicted).tolist()
        v1.train.Saver().save(session, f"{folder}/own_v1", write_state=False)
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential(
        [
            layers.Conv2D(3, 3, activation="relu", input_shape=(8, 8, 1)),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(5, activation="relu"),
            layers.Dense(5),
        ]
    )
    model.compile("adam", "mse")
    model.fit(images(), targets, epochs=9, verbose=0)
    outputs["own_keras"] = model(images(), training=False).numpy().tolist()
    prefix = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(f"{folder}/own_keras")
    keep(f"{folder}/own_v1", "own_v1")
    keep(prefix, "own_keras")
    return outputs


def words() -> tuple[list[list[str]], Any]:
    """Return one to three jobs in each of 64 rows, and labels."""
    rows = [[JOBS[(row * place + row // 5) % 3] for place in range(1, 2 + row % 3)] for row in range(64)]
    return rows, np.array([row[0] == JOBS[0] for row in rows]).astype("int64")


def recurrent_models() -> dict[str, Any]:
    """Keep checkpoints of recurrent networks on `words`, and return their metrics."""
    import tensorflow as tf

    fc, experimental = tf.feature_column, tf.estimator.experimental
    texts, labels = words()
    padded = np.array([row + [""] * (3 - len(row)) for row in texts])

    def batches() -> Any:
        return tf.data.Dataset.from_tensor_slices((padded, labels)).batch(BATCH_SIZE).map(sparse)

    def sparse(text: Any, label: Any) -> Any:
        return {"words": tf.sparse.from_dense(text)}, label[:, None]

    found = {}
    for cell in ("lstm", "gru"):
        column = fc.sequence_categorical_column_with_vocabulary_list("words", JOBS)
        estimator = experimental.RNNClassifier(
            [fc.embedding_column(column, 3)],
            units=[5],
            cell_type=cell,
            optimizer=lambda: tf.keras.optimizers.legacy.Adam(0.01),
            config=tf.estimator.RunConfig(tempfile.mkdtemp(), tf_random_seed=1),
        )
        found[f"rnn_{cell}"] = {}
        for steps in (STEPS, 2 * STEPS):
            estimator.train(lambda: batches().repeat(), max_steps=steps)
            found[f"rnn_{cell}"][str(steps)] = plain(estimator.evaluate(batches))
        keep(f"{estimator.model_dir}/model.ckpt-{STEPS}", f"rnn_{cell}")
    return found


def points() -> Any:
    """Return 60 points around three centers, float32 ``[60, 2]``."""
    angle = np.arange(60) * 2.4
    return np.stack([np.cos(angle) + np.arange(60) % 3 * 4, np.sin(angle)], 1).astype("float32")


def clusters() -> dict[str, Any]:
    """Keep checkpoints of `KMeans` on `points`, and return the centers after one iteration, and after two."""
    import tensorflow as tf

    found = {}
    for name, is_in_batches in (("kmeans", False), ("kmeans_batches", True)):
        estimator = tf.compat.v1.estimator.experimental.KMeans(
            3,
            feature_columns=[tf.feature_column.numeric_column("at", shape=(2,))],
            use_mini_batch=is_in_batches,
            config=tf.estimator.RunConfig(tempfile.mkdtemp(), tf_random_seed=1),
        )
        centers = []
        for _ in range(2):
            estimator.train(lambda: tf.data.Dataset.from_tensors({"at": points()}), steps=1)
            centers.append(estimator.cluster_centers().tolist())
        found[name] = centers
        keep(f"{estimator.model_dir}/model.ckpt-1", name)
    return found


def people_model() -> None:
    """Keep the checkpoint of the program of ``docs/migrate/tf2.md``, which ``docs/migrate/checkpoints.md`` imports."""
    import tensorflow as tf

    draw, fc = np.random.default_rng(0), tf.feature_column
    age = draw.normal(size=400).round(3)
    job = draw.choice(["clerk", "farmer", "nurse"], 400)
    rich = np.where(age + (job == "nurse") > 0.3, "yes", "no")
    jobs = fc.categorical_column_with_vocabulary_list("job", ["clerk", "farmer", "nurse"])
    estimator = tf.estimator.DNNClassifier(
        hidden_units=[16, 8],
        feature_columns=[fc.numeric_column("age"), fc.embedding_column(jobs, dimension=4)],
        label_vocabulary=["no", "yes"],
        config=tf.estimator.RunConfig(tempfile.mkdtemp(), tf_random_seed=1),
    )
    rows = dataset({"age": age.astype("float32"), "job": job}, rich)
    estimator.train(lambda: rows().shuffle(1000, seed=1).repeat().batch(32), steps=300)
    keep(f"{estimator.model_dir}/model.ckpt-300", "people")


def dataset(features: dict[str, Any], labels: Any) -> Any:
    import tensorflow as tf

    return lambda: tf.data.Dataset.from_tensor_slices((features, labels))


def write(expected: dict[str, Any]) -> None:
    (FOLDER / "expected.json").write_text(f"{json.dumps(expected, indent=1)}\n")


def plain(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(f"{value:.9g}") for name, value in metrics.items()}


def keep(prefix: str, name: str) -> None:
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(f"{prefix}.{suffix}", FOLDER / f"{name}.{suffix}")


if __name__ == "__main__":
    main(sys.argv[1:])
