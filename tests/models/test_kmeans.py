"""K-means: TensorFlow's numbers, initial centers, resuming, processes in step, exports."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import torch_estimator as te
from tests.cluster_jobs import Process, ended
from tests.models.tensorflow_kmeans import BATCH, CASES, REFERENCE, points
from torch_estimator import feature_column as fc

TENSORFLOW = json.loads(REFERENCE.read_text(encoding="utf-8"))
POINTS = points()
KMeans = te.experimental.KMeans


def batches(size: int = BATCH) -> te.data.Dataset:
    return te.data.Dataset.from_arrays(POINTS).batch(size)


def kmeans(model_dir: object, initial_clusters: Any = POINTS[:3], **settings: Any) -> KMeans:
    config = te.RunConfig(str(model_dir), compile=False, random_seed=1)
    return KMeans(settings.pop("num_clusters", 3), initial_clusters=initial_clusters, config=config, **settings)


@pytest.mark.parametrize(("distance", "use_mini_batch", "steps"), CASES)
def test_centers_scores_and_predictions_are_tensorflows(distance: str, use_mini_batch: bool, steps: int) -> None:
    expected = TENSORFLOW[f"{distance} {use_mini_batch} {steps}"]
    settings = {"use_mini_batch": use_mini_batch, "mini_batch_steps_per_iteration": steps}
    model = kmeans(f"memory://{distance}{use_mini_batch}{steps}", distance_metric=distance, **settings)
    # TensorFlow moves the centers of an iteration at the beginning of the next one.
    for step in (1, 4, 7):
        model.train(batches(BATCH if use_mini_batch else len(POINTS)).repeat, max_steps=step)
        np.testing.assert_allclose(model.cluster_centers(), expected["centers"][step - 1], rtol=1e-5, atol=1e-6)
    assert model.evaluate(batches) == pytest.approx(expected["evaluation"], rel=1e-5)
    assert model.score(batches) == pytest.approx(expected["score"], rel=1e-5)
    assert list(model.predict_cluster_index(batches)) == expected["cluster_index"]
    distances = [one["all_distances"] for one in model.predict(batches)]
    np.testing.assert_allclose(distances[:3], expected["all_distances"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(next(model.transform(batches)), expected["transformed"], rtol=1e-4, atol=1e-5)


def test_random_centers_are_different_points_of_as_many_batches_as_needed() -> None:
    model = kmeans("memory://random", "random", num_clusters=2 * BATCH + 2)
    model.train(batches, steps=1)
    unmoved = model.get_variable_value("counts") == 1
    assert 0 < unmoved.sum() < 2 * BATCH + 2
    rows = {tuple(row) for row in POINTS.tolist()}
    chosen = {tuple(row) for row in model.cluster_centers()[unmoved].tolist()}
    assert chosen <= rows
    assert len(chosen) == unmoved.sum()


def test_k_means_plus_plus_finds_groups_that_lie_apart() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.eye(5, dtype=np.float32) * 100, 9, axis=0)
    rng.shuffle(groups)
    for seed, retries in ((1, 2), (2, -1), (3, 0)):
        model = kmeans(
            f"memory://plus_plus{seed}",
            "kmeans_plus_plus",
            num_clusters=5,
            seed=seed,
            kmeans_plus_plus_num_retries=retries,
            use_mini_batch=False,
        )
        model.train(lambda: groups, steps=1)
        assert model.score(lambda: groups) == 0


def test_a_seed_decides_which_centers_are_chosen() -> None:
    def centers(name: str, seed: int) -> list[Any]:
        model = kmeans(f"memory://{name}", "random", seed=seed)
        return model.train(batches, steps=1).get_variable_value("clusters").tolist()  # type: ignore[no-any-return]

    assert centers("one", 1) == centers("same", 1) != centers("other", 2)


def test_a_function_chooses_centers_batch_by_batch() -> None:
    asked = []

    def choose(points: torch.Tensor, k: int) -> torch.Tensor:
        asked.append((tuple(points.shape), k))
        return points[:2]

    model = kmeans("memory://function", choose, num_clusters=4, use_mini_batch=False)
    model.train(batches, steps=1)
    assert asked == [((BATCH, 3), 4), ((BATCH, 3), 2)]


def test_a_center_without_points_stays() -> None:
    far = np.full((1, 3), 1000, np.float32)
    for name, settings in {"full": {"use_mini_batch": False}, "three": {"mini_batch_steps_per_iteration": 3}}.items():
        model = kmeans(f"memory://empty_{name}", np.concatenate([POINTS[:2], far]), **settings)
        model.train(batches(len(POINTS)).repeat, steps=3)
        assert model.cluster_centers()[2].tolist() == far[0].tolist()


@pytest.mark.parametrize("settings", [{}, {"mini_batch_steps_per_iteration": 3}])
def test_a_resumed_training_ends_as_an_uninterrupted_one(settings: dict[str, Any]) -> None:
    whole = kmeans(f"memory://whole{settings}", "random", **settings).train(batches().repeat, max_steps=8)
    resumed = kmeans(f"memory://resumed{settings}", "random", **settings)
    for step in (2, 5, 8):
        resumed.train(batches().repeat, max_steps=step)
    for name in ("clusters", "counts"):
        np.testing.assert_array_equal(resumed.get_variable_value(name), whole.get_variable_value(name))


def test_training_ends_when_the_loss_hardly_changes() -> None:
    model = kmeans("memory://tolerance", use_mini_batch=False, relative_tolerance=1e-3)
    model.train(batches(len(POINTS)).repeat, max_steps=100)
    assert 2 <= model.get_variable_value("global_step") < 20


def test_points_are_all_features_by_name_or_those_of_columns() -> None:
    features = {"b": POINTS[:, 0], "a": POINTS[:, 1:], "kind": np.array(["x", "y"] * 12)}
    numbers = {name: features[name] for name in ("b", "a")}
    of_all = kmeans("memory://all", POINTS[:3], use_mini_batch=False).train(lambda: numbers, steps=1)
    of_all_as_array = kmeans("memory://array", POINTS[:3], use_mini_batch=False)
    of_all_as_array.train(lambda: POINTS[:, [1, 2, 0]], steps=1)
    np.testing.assert_array_equal(of_all.get_variable_value("clusters"), of_all_as_array.cluster_centers())
    kind = fc.indicator_column(fc.categorical_column_with_vocabulary_list("kind", ["x", "y"]))
    columns = [fc.numeric_column("b"), kind]
    of_columns = kmeans("memory://columns", "random", feature_columns=columns)
    of_columns.train(lambda: features, steps=1)
    assert of_columns.cluster_centers().shape == (3, 3)
    path = of_columns.export_saved_model("memory://columns_export", te.serving_input.raw_features(columns))
    served = te.ExportedModel.load(path).predict({name: features[name] for name in ("b", "kind")})
    assert served["cluster_index"].tolist() == list(of_columns.predict_cluster_index(lambda: features))
    with pytest.raises(te.UserError, match="KMeans clusters numbers, but 'kind' has none; give feature_columns"):
        kmeans("memory://strings").train(lambda: features, steps=1)


def test_an_export_has_both_predictions_as_signatures() -> None:
    model = kmeans("memory://exported", "kmeans_plus_plus")
    model.train(batches, steps=2)
    export = te.ExportedModel.load(model.export_saved_model("memory://k_export", te.serving_input.like(POINTS)))
    index, distances = (export.predict({"features": POINTS}, name) for name in ("serving_default", "all_distances"))
    assert index["output"].tolist() == list(model.predict_cluster_index(batches))
    expected = [one["all_distances"] for one in model.predict(batches)]
    np.testing.assert_allclose(distances["output"], expected, rtol=1e-5, atol=1e-5)


PROGRAM = """
import json, sys
import torch_estimator as te
from tests.models.test_kmeans import BATCH, POINTS, batches

strategy = te.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
config = te.RunConfig(sys.argv[1], train_distribute=strategy, compile=False, random_seed=1)
model = te.experimental.KMeans(3, None, POINTS[:3], mini_batch_steps_per_iteration=int(sys.argv[2]), config=config)
model.train(batches(BATCH // 2).repeat, max_steps=4)
print(json.dumps([model.cluster_centers().tolist(), model.get_variable_value("counts").tolist()]))
"""


@pytest.mark.parametrize("steps", [1, 3])
def test_processes_in_step_compute_what_one_computes(steps: int, tmp_path: Any) -> None:
    two = Process(PROGRAM, [str(tmp_path), str(steps)], {})
    one = kmeans(f"memory://one{steps}", mini_batch_steps_per_iteration=steps)
    one.train(batches().repeat, max_steps=4)
    (ended_two,) = ended([two])
    assert ended_two.status == 0, ended_two.output
    centers, counts = json.loads(ended_two.output.splitlines()[-1])
    np.testing.assert_allclose(centers, one.cluster_centers(), rtol=1e-5)
    assert counts == one.get_variable_value("counts").tolist()


def test_parameter_servers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["localhost:1"], "ps": ["localhost:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    with pytest.raises(te.UserError, match="KMeans cannot train with parameter servers, but TF_CONFIG names some"):
        kmeans("memory://ps")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distance_metric": "l1"}, "distance_metric must be squared_euclidean or cosine, but got 'l1'"),
        ({"initial_clusters": "kmc2"}, "initial_clusters must be 'random', 'kmeans_plus_plus', an array or a function"),
        ({"initial_clusters": [1.0, 2.0]}, r"must have the shape \[num_clusters, width\], but got the shape \[2\]"),
        ({"initial_clusters": [["a"]]}, "initial_clusters must be an array of numbers"),
        ({"initial_clusters": "random", "num_clusters": 0}, "num_clusters must be positive, but got 0"),
        ({"mini_batch_steps_per_iteration": 0}, "mini_batch_steps_per_iteration must be positive, but got 0"),
    ],
)
def test_a_wrong_argument_is_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(te.UserError, match=message):
        kmeans("memory://wrong", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initial_clusters": "random", "num_clusters": 30}, "The input ended when 24 of 30 initial centers"),
        (
            {"initial_clusters": "kmeans_plus_plus", "num_clusters": 9},
            "all 9 initial centers from the first batch, which has 8",
        ),
        ({"initial_clusters": lambda points, k: points}, "chose more centers than the 3"),
        (
            {"initial_clusters": POINTS[:3, :2]},
            "The cluster centers have 2 numbers each, but the points of the input have 3",
        ),
    ],
)
def test_an_input_that_does_not_fit_is_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(te.UserError, match=message):
        kmeans(f"memory://input{message}", **settings).train(batches, steps=1)


def test_without_a_training_there_are_no_centers() -> None:
    with pytest.raises(te.UserError, match="KMeans has no cluster centers yet; train first"):
        kmeans("memory://untrained", "random").score(batches)
    assert kmeans("memory://given").score(batches) > 0
