"""An export predicts the same as the estimator, on every row of the real data and on rows with unseen values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import torch_estimator as te
from tests.programs import CENSUS_NAMES, census_deep, census_wide
from torch_estimator import feature_column as fc

ODD_STRINGS = ["", " ", "unbekannt", "Größe", "日本", "🦆🦆", "a" * 1000, '"quoted"', "<=50K", "None", "0", "\t", "é"]


def census_rows(file: Path) -> te.data.Dataset:
    return te.data.Dataset.from_csv(file, column_names=CENSUS_NAMES, label="income_bracket")


def trained(model_dir: str, hash_function: str, file: Path) -> tuple[te.Estimator, list[Any]]:
    # Unscaled capital gains reach 99,999, which makes agreement within 1e-5 hardest.
    numbers = [fc.numeric_column(key) for key in ("capital_gain", "capital_loss")]
    wide, deep = census_wide(hash_function), [*census_deep(hash_function), *numbers]
    estimator = te.DNNLinearCombinedClassifier(
        model_dir,
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[100, 70, 48, 34],
        label_vocabulary=["<=50K", ">50K"],
        config=te.RunConfig(random_seed=1),
    )
    estimator.train(lambda: census_rows(file).shuffle(1000, seed=1).repeat().batch(40), steps=500)
    return estimator, wide + deep


def largest_difference(estimator: te.Estimator, exported: te.ExportedModel, rows: te.data.Dataset) -> float:
    wanted = exported.signatures["predict"].inputs
    largest, count = 0.0, 0
    predicted = estimator.predict(lambda: rows, yield_single_examples=False)
    for ours, element in zip(predicted, rows, strict=True):
        features = element[0] if isinstance(element, tuple) else element
        theirs = exported.predict({key: features[key] for key in wanted})
        assert sorted(ours) == sorted(theirs)
        for key, value in ours.items():
            if value.dtype == object:
                assert value.tolist() == theirs[key].tolist()
            else:
                # Relative tolerance above 1, because for a logit of 200 one unit in the last place exceeds 1e-5.
                difference = np.abs(value - theirs[key]) / np.maximum(1, np.abs(value))
                largest = max(largest, float(difference.max()))
        count += len(ours["logits"])
    assert count > 0
    return largest


@pytest.mark.parametrize("hash_function", ["murmur3", "farmhash"])
def test_the_export_predicts_what_the_estimator_predicts(hash_function: str, shared_data: Path, tmp_path: Path) -> None:
    train_file = shared_data / "census" / "adult.data.csv"
    estimator, columns = trained(str(tmp_path / "job"), hash_function, train_file)
    path = estimator.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features(columns))
    exported = te.ExportedModel.load(path)

    evaluated = census_rows(shared_data / "census" / "adult.test.csv")
    assert sum(len(labels) for _, labels in evaluated.batch(4096)) == 16_278
    assert largest_difference(estimator, exported, evaluated.batch(512)) <= 1e-5
    assert largest_difference(estimator, exported, evaluated.take(4000).batch(40)) <= 1e-5

    if hash_function == "murmur3":
        features, _ = next(iter(evaluated.batch(len(ODD_STRINGS) * 9)))
        strings = [key for key, value in features.items() if value.dtype == object]
        for turn, key in enumerate(strings):
            features[key] = np.array((ODD_STRINGS[turn:] + ODD_STRINGS[:turn]) * 9, dtype=object)
        odd = te.data.Dataset.from_arrays(features).batch(13)
        assert largest_difference(estimator, exported, odd) <= 1e-5


def test_an_export_has_the_indicators_and_embeddings_of_a_linear_model(tmp_path: Path) -> None:
    tags = fc.categorical_column_with_vocabulary_list("tags", ["new", "hot", "old"], multivalent=True)
    size = fc.numeric_column("size")
    sizes = fc.categorical_column_with_identity("kind", 4)
    columns = [size, tags, fc.indicator_column(tags), fc.embedding_column(tags, 2), fc.embedding_column(sizes, 3)]
    features = {
        "size": np.linspace(-1, 1, 12, dtype=np.float32),
        "kind": np.arange(12) % 5 - 1,
        "tags": pa.array([["new"], [], ["hot", "old", "hot"], ["else", "new"]] * 3),
    }
    rows = te.data.Dataset.from_arrays(features, np.arange(12) % 3)
    estimator = te.LinearClassifier(columns, str(tmp_path / "job"), n_classes=3, sparse_combiner="mean")
    estimator.train(lambda: rows.repeat().batch(4), steps=30)
    vectors = estimator.get_variable_value("linear/linear_model/kind_embedding/embedding_weights")
    assert vectors.shape == (4, 3) and np.ptp(vectors) > 0
    path = estimator.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features(columns))
    assert largest_difference(estimator, te.ExportedModel.load(path), rows.batch(12)) <= 1e-6
    layers = te.forward_layers(estimator, {"sizes": "kind_embedding"})
    path = layers.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features(columns))
    assert largest_difference(layers, te.ExportedModel.load(path), rows.batch(12)) <= 1e-6
