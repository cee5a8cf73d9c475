"""Model directories and exports of earlier versions train on, evaluate, load and predict as they did then."""

import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset

WRITTEN = Path(__file__).parent / "written_by_f65a222"
RECORDED = json.loads((WRITTEN / "recorded.json").read_text())
FEATURES = {
    "word": np.array(["a", "b", "c", "?"]),
    "place": np.array(["x", "y", "z", "x"]),
    "number": np.array([-1.5, 0.0, 0.25, 2.0], np.float32),
}


def rows() -> Dataset:
    rng = np.random.default_rng(0)
    features = {
        "word": rng.choice(["a", "b", "c", "?"], 64),
        "place": rng.choice(["x", "y", "z"], 64),
        "number": rng.normal(size=64).astype(np.float32),
    }
    labels = (features["number"] > 0).astype(np.int64)
    return Dataset.from_arrays(features, labels).repeat().batch(8)


@pytest.fixture
def estimator(tmp_path: Path) -> te.Estimator:
    model_dir = tmp_path / "model"
    shutil.copytree(WRITTEN / "model", model_dir)
    word = fc.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
    place = fc.categorical_column_with_hash_bucket("place", 10)
    cross = fc.crossed_column(["word", "place"], 20)
    return te.DNNLinearCombinedClassifier(
        model_dir=str(model_dir),
        linear_feature_columns=[word, place, cross],
        dnn_feature_columns=[fc.numeric_column("number"), fc.embedding_column(place, 4), fc.indicator_column(word)],
        dnn_hidden_units=[4, 3],
        config=te.RunConfig(random_seed=1, save_checkpoints_steps=5, compile=False),
    )


def probabilities(estimator: te.Estimator) -> npt.NDArray[np.float32]:
    def features() -> Dataset:
        return Dataset.from_arrays(FEATURES).batch(4)

    return np.array([row["probabilities"] for row in estimator.predict(features)])


def test_a_checkpoint_predicts_as_it_did(estimator: te.Estimator) -> None:
    np.testing.assert_allclose(probabilities(estimator), RECORDED["probabilities"], rtol=1e-5)


def test_a_checkpoint_evaluates_as_it_did(estimator: te.Estimator) -> None:
    metrics = estimator.evaluate(rows, steps=8)

    assert metrics.keys() == RECORDED["metrics"].keys()
    for name, value in RECORDED["metrics"].items():
        assert metrics[name] == pytest.approx(value, rel=1e-5), name


def test_a_model_directory_trains_on_as_it_did(estimator: te.Estimator) -> None:
    """The input, the optimizers' slots and the random numbers continue where the earlier version stopped."""
    torch.manual_seed(5)

    estimator.train(rows, max_steps=20)

    assert estimator.latest_checkpoint() == str(Path(estimator.model_dir) / "model.ckpt-20")
    np.testing.assert_allclose(probabilities(estimator), RECORDED["probabilities_at_20"], rtol=1e-5)


def test_an_export_predicts_as_its_checkpoint_did() -> None:
    predicted = te.ExportedModel.load(WRITTEN / "export").predict(FEATURES)

    np.testing.assert_allclose(predicted["probabilities"], RECORDED["probabilities"], rtol=1e-5)
