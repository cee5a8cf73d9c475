"""Exports of recurrent models: from lists of any length to predictions, through onnxruntime and the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch import nn

import torch_estimator as te
from tests.feature_column.tensorflow_sequences import VOCABULARY
from tests.serving.models import app_of, ask, ask_all
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.data import Dataset
from torch_estimator.errors import InvalidValueError
from torch_estimator.experimental import RNNClassifier
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.tfrecord.encoder import encode_example

SEQUENCES = [
    fc.embedding_column(fc.sequence_categorical_column_with_hash_bucket("words", 20), 3, max_norm=0.5),
    fc.indicator_column(fc.sequence_categorical_column_with_vocabulary_list("words", VOCABULARY)),
    fc.embedding_column(fc.sequence_categorical_column_with_identity("ids", 5), 2),
    fc.sequence_numeric_column("pairs", shape=2, default_value=1.0, normalizer_fn=lambda pair: pair.flip(1) / 2),
    fc.sequence_numeric_column("level", normalizer_fn=lambda level: level * 2 - 1),
]
CONTEXT = [fc.numeric_column("age"), fc.indicator_column(fc.categorical_column_with_vocabulary_list("job", ["a", "b"]))]

# The last list of words ends with a missing value, and the last list of levels is one shorter than its padded form.
ROWS: dict[str, list[Any]] = {
    "words": [["b", "z", "a"], ["c"], [], ["a", "", "b", ""]],
    "ids": [[0, 3, 9], [1], [], [-1, 4, 2, 0]],
    "pairs": [[1.5, 2.0, 0.0, 0.0, 3.0, 1.0], [4.0, -1.0], [], [0.0, 5.0, 6.0, 1.0, 2.0, 2.0, 0.0, 0.0]],
    "level": [[1.0, 0.0, 2.0], [0.0], [], [1.0, 2.0, 3.0, 0.0]],
    "age": [1.0, 2.0, 0.5, -1.0],
    "job": ["a", "b", "", "c"],
}
LABELS = [[1, 0, 2], [2], [], [0, 1, 1, 2]]
KINDS: dict[str, dict[str, Any]] = {
    "lstm": {"units": [5, 3], "cell_type": "lstm"},
    "gru": {"units": [4], "cell_type": "gru"},
    "simple": {"units": 4},
    "module": {"rnn_cell_fn": lambda width: nn.GRU(width, 4, batch_first=True)},
    "steps": {"units": [5], "cell_type": "gru", "return_sequences": True},
}


def dataset(*, steps: bool = False) -> Dataset:
    features = {key: pa.array(rows) for key, rows in ROWS.items()}
    return Dataset.from_arrays(features, pa.array(LABELS) if steps else np.array([1, 0, 2, 1]))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RNNClassifier, str]]:
    made = {}
    for name, kind in KINDS.items():
        base = tmp_path_factory.mktemp(name)
        config = te.RunConfig(model_dir=f"memory://recurrent_{name}", random_seed=1)
        estimator = RNNClassifier(SEQUENCES, CONTEXT, n_classes=3, optimizer="Adam", config=config, **kind)
        data = dataset(steps="return_sequences" in kind)
        estimator.train(lambda data=data: data.repeat().batch(4), steps=3)
        receiver = serving_input.json([*SEQUENCES, *CONTEXT])
        made[name] = estimator, estimator.export_saved_model(str(base), receiver)
    return made


@pytest.mark.parametrize("name", KINDS)
def test_predictions_are_those_of_the_estimator(models: dict[str, tuple[RNNClassifier, str]], name: str) -> None:
    estimator, path = models[name]
    expected = list(estimator.predict(lambda: dataset(steps=name == "steps").batch(4)))
    found = ExportedModel.load(path).predict(ROWS)
    assert sorted(found) == sorted(expected[0])
    for key, values in found.items():
        wanted = np.stack([one[key] for one in expected])
        if wanted.dtype.kind == "f":
            assert np.allclose(values, wanted, atol=2e-6), key
        else:
            assert values.tolist() == wanted.tolist(), key


@pytest.mark.parametrize("name", ["lstm", "module", "steps"])
def test_each_row_is_predicted_as_if_alone(models: dict[str, tuple[RNNClassifier, str]], name: str) -> None:
    model = ExportedModel.load(models[name][1])
    together = model.predict(ROWS)["logits"]
    for row in range(4):
        alone = model.predict({key: rows[row : row + 1] for key, rows in ROWS.items()})["logits"][0]
        shown = together[row][: len(alone)] if name == "steps" else together[row]
        assert np.allclose(alone, shown, atol=2e-6)


def test_the_server_takes_instances_of_different_lengths(models: dict[str, tuple[RNNClassifier, str]]) -> None:
    path = models["steps"][1]
    instances = [{key: rows[row] for key, rows in ROWS.items()} for row in range(4)]
    with app_of(Path(path).parent) as app:
        together = ask(app, "/v1/models/small:predict", {"instances": instances}).json()["predictions"]
        requests = [("/v1/models/small:predict", {"instances": [one]}) for one in instances]
        apart = [answer.json()["predictions"][0] for answer in ask_all(app, requests)]
    expected = ExportedModel.load(path).predict(ROWS)
    for row, (one, alone) in enumerate(zip(together, apart, strict=True)):
        np.testing.assert_allclose(one["logits"], expected["logits"][row], atol=2e-6)
        count = sum(expected["sequence_mask"][row])
        assert sum(alone["sequence_mask"]) == count
        logits = np.reshape(alone["logits"][:count], (-1, 3))
        np.testing.assert_allclose(logits, expected["logits"][row][:count], atol=2e-6)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "ids",
            [1, 2],
            r"Input (level has a sequence of 3|ids has a sequence of 2) in row 0 .from 0., but .* one length",
        ),
        ("pairs", [1.0] * 5, r"Input pairs has 5 values in row 0 .from 0., but takes 2 for each step"),
    ],
)
def test_sequences_of_different_lengths_in_a_row_are_refused(
    models: dict[str, tuple[RNNClassifier, str]], key: str, value: list[Any], message: str
) -> None:
    row = {name: [rows[0]] for name, rows in ROWS.items()} | {key: [value]}
    with pytest.raises(InvalidValueError, match=message):
        ExportedModel.load(models["gru"][1]).predict(row)


def test_serialized_examples_have_lists_of_any_length(
    models: dict[str, tuple[RNNClassifier, str]], tmp_path: Path
) -> None:
    estimator, path = models["gru"]
    receiver = serving_input.examples(fc.make_parse_example_spec([*SEQUENCES, *CONTEXT]))
    model = ExportedModel.load(estimator.export_saved_model(str(tmp_path), receiver))
    dtypes = {"pairs": np.float32, "level": np.float32, "ids": np.int64, "age": np.float32}
    examples = [
        encode_example(
            {key: np.array(rows[row], dtypes[key]) if key in dtypes else rows[row] for key, rows in ROWS.items()}
        )
        for row in range(4)
    ]
    expected = ExportedModel.load(path).predict(ROWS)["logits"]
    assert np.allclose(model.predict({"examples": examples})["logits"], expected, atol=2e-6)
