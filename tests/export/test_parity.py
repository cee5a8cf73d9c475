"""Exports predict as the model does, for every kind of column, head and layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.export.models import (
    ODD_STRINGS,
    Built,
    Raw,
    assert_same,
    census_columns,
    model_of,
    with_odd_rows,
)
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.export.columns import lower_features
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.heads import BinaryClassHead, MultiClassHead, RegressionHead

Same = Callable[[Built, Raw], Raw]


def test_census_rows_and_odd_strings(census_model: Built, census_export: ExportedModel, census_rows: Raw) -> None:
    raw = with_odd_rows(census_rows)
    assert len(raw["age"]) == 16_278 + len(ODD_STRINGS)
    answer = assert_same(census_model.predict(raw), census_export.predict(raw))
    assert set(answer["classes"].ravel()) == {"<=50K", ">50K"}


def test_the_graph_of_the_census_model_stays_lean(census_export: ExportedModel) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(f"{census_export.directory}/model.onnx")
    assert len(model.graph.node) < 150
    assert sum(node.op_type == "MurmurHash3" for node in model.graph.node) == 2


def test_farmhash_of_strings_seen_in_training(same: Same, census_rows: Raw) -> None:
    built = model_of(*census_columns("farmhash"))
    built.transform.recording = True
    built.transform(census_rows)
    built.transform.recording = False
    same(built, census_rows)


def test_farmhash_of_unseen_strings_is_murmur3(tmp_path: Path) -> None:
    def model(function: str) -> Built:
        return model_of([fc.categorical_column_with_hash_bucket("k", 1000, hash_function=function)], [])

    unseen = {"k": np.array(["b", "héllo", ""], object)}
    farm = model("farmhash")
    farm.transform.restore_seen_strings({"k": ["a"]})
    answer = farm.export(tmp_path).predict(unseen)
    assert_same(model("murmur3").predict(unseen), answer)


def test_farmhash_without_any_seen_string(tmp_path: Path) -> None:
    built = model_of([fc.categorical_column_with_hash_bucket("k", 10, hash_function="farmhash")], [])
    assert built.export(tmp_path).predict({"k": ["a"]})["logits"].shape == (1, 1)


def test_vocabularies(same: Same) -> None:
    oov = fc.categorical_column_with_vocabulary_list("a", ["x", "y"], num_oov_buckets=3)
    default = fc.categorical_column_with_vocabulary_list("b", ["x", "y"], default_value=1)
    number = fc.categorical_column_with_vocabulary_list("c", [7, -3, 2**40])
    number_oov = fc.categorical_column_with_vocabulary_list("d", [7, 8], num_oov_buckets=2)
    strings = ["x", "y", "", *ODD_STRINGS]
    numbers = np.resize(np.array([7, -3, 2**40, -1, 0, 8]), len(strings))
    raw = {"a": np.array(strings, object), "b": np.array(strings, object), "c": numbers, "d": numbers}
    columns = [oov, default, number, number_oov]
    same(model_of(columns, [fc.indicator_column(column) for column in columns]), raw)


def test_vocabulary_oov_buckets_with_farmhash(same: Same) -> None:
    built = model_of(
        [fc.categorical_column_with_vocabulary_list("a", ["x"], num_oov_buckets=50, hash_function="farmhash")], []
    )
    built.transform.restore_seen_strings({"a": ["p", "q"]})
    same(built, {"a": np.array(["x", "p", "q", ""], object)})


def test_hashed_integers(same: Same) -> None:
    column = fc.categorical_column_with_hash_bucket("n", 50, dtype="int64")
    same(model_of([column], [fc.embedding_column(column, 3)]), {"n": np.array([-1, 0, 5, -7, 2**62])})


def test_buckets_of_every_kind_of_number(same: Same) -> None:
    numbers = np.array([-np.inf, np.inf, np.nan, 1, 2, 2.0000002, 1.9999999, 3, -0.0, 0], np.float32)
    wide = fc.bucketized_column(fc.numeric_column("x"), [0, 1, 2, 3])
    same(model_of([wide], [wide]), {"x": numbers})


def test_buckets_of_vectors_and_their_crosses(same: Same) -> None:
    vector = fc.bucketized_column(fc.numeric_column("v", shape=3), [0, 1])
    other = fc.bucketized_column(fc.numeric_column("w", shape=2), [0.5])
    word = fc.categorical_column_with_vocabulary_list("s", ["a", "b"])
    cross = fc.crossed_column([vector, "t", other, word], 1000)
    nested = fc.crossed_column([cross, "t"], 77, hash_key=5)
    deep = [
        vector,
        fc.indicator_column(cross),
        *(
            fc.embedding_column(column, 4, combiner=combiner)
            for column, combiner in ((cross, "mean"), (nested, "sqrtn"), (vector, "sum"), (word, "mean"))
        ),
    ]
    random = np.random.default_rng(0)
    rows = 40
    raw = {
        "v": random.normal(0, 2, (rows, 3)).astype(np.float32),
        "w": random.normal(0, 2, (rows, 2)).astype(np.float32),
        "s": random.choice(np.array(["a", "b", "other", ""], object), rows),
        "t": random.choice(np.array(ODD_STRINGS, object), rows),
    }
    same(model_of([vector, cross, nested], deep), raw)


def test_missing_vocabulary_values_in_crosses(same: Same) -> None:
    one = fc.categorical_column_with_vocabulary_list("one", ["a", "b"])
    two = fc.categorical_column_with_vocabulary_list("two", [1, 2])
    columns = [fc.crossed_column([one, two], 100), fc.crossed_column([one, "raw"], 100)]
    raw = {
        "one": np.array(["a", "", "c", "b", ""], object),
        "two": np.array([1, 2, -1, 9, -1]),
        "raw": np.array(["", "x", "", "y", ""], object),
    }
    same(model_of(columns, []), raw)


def test_ids_are_those_of_the_host_half_bit_for_bit(tmp_path: Path) -> None:
    """Compare the ids of long random strings directly, not through a model."""
    import onnxruntime

    from torch_estimator.export.graph import GraphBuilder
    from torch_estimator.export.receivers import lower_receiver
    from torch_estimator.export.signatures import TensorInfo

    wide, _ = census_columns()
    built = model_of(wide, [])
    graph = GraphBuilder()
    received = lower_receiver(graph, serving_input.raw_features(built.transform), for_columns=True)
    ids = lower_features(graph, built.transform, received.raw)["linear/ids"]
    graph.output("ids", ids.tensor, TensorInfo(dtype="DT_INT64", shape=(-1, *ids.row_shape), tensor="ids"))
    model = graph.model(producer="test", version="1").SerializeToString()
    random = np.random.default_rng(1)
    rows = 2000

    def text() -> str:
        characters = random.integers(1, 0xD7FF, random.integers(0, 40))
        return "".join(map(chr, characters))

    raw = {
        key: np.array([text() for _ in range(rows)], object)
        if feature.dtype == "string"
        else random.normal(40, 20, rows).astype(np.float32)
        for key, feature in built.transform.raw_features.items()
    }
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {key: values[:, None] for key, values in raw.items()})
    np.testing.assert_array_equal(found, built.transform(raw)["linear/ids"])


@pytest.mark.parametrize(
    ("head", "outputs"),
    [
        (BinaryClassHead(), 1),
        (MultiClassHead(3, label_vocabulary=["cat", "dog", "füchse"]), 3),
        (RegressionHead(), 1),
        (RegressionHead(label_dimension=2, inverse_link_fn=torch.exp), 2),
    ],
    ids=["binary", "multi-class", "regression", "regression-with-link"],
)
def test_heads(same: Same, head: Any, outputs: int) -> None:
    word = fc.categorical_column_with_vocabulary_list("w", ["a", "b", "c"])
    built = model_of([word, fc.numeric_column("x")], [fc.indicator_column(word)], head, (5,))
    answer = same(built, {"w": np.array(["a", "b", "", "z"], object), "x": np.arange(4, dtype=np.float32)})
    assert list(answer) == list(head.prediction_keys)


def test_a_tie_is_the_first_class_and_nan_the_last(same: Same) -> None:
    class OwnHead(BinaryClassHead):
        """Head whose predictions may be NaN, as those of premade heads may not."""

    built = model_of([fc.numeric_column("x")], [], OwnHead(label_vocabulary=["<=50K", ">50K"]))
    with torch.no_grad():
        for parameter in built.module.parameters():
            parameter.zero_()
    answer = same(built, {"x": np.array([1, np.nan], np.float32)})
    assert answer["class_ids"].ravel().tolist() == [0, 1]


def test_linear_numbers_with_several_outputs(same: Same) -> None:
    columns = [fc.numeric_column("b", shape=(2, 2)), fc.numeric_column("a"), fc.numeric_column("i", dtype="int64")]
    raw = {
        "a": np.array([1, 2], np.float32),
        "b": np.arange(8, dtype=np.float32).reshape(2, 2, 2),
        "i": np.array([5, -6]),
    }
    same(model_of(columns, [], MultiClassHead(3)), raw)


def test_columns_are_concatenated_in_the_order_of_their_names(same: Same) -> None:
    words = fc.categorical_column_with_vocabulary_list("m", ["a", "b"])
    hashed = fc.categorical_column_with_hash_bucket("c", 7)
    deep = [
        fc.numeric_column("z"),
        fc.numeric_column("b"),
        fc.numeric_column("Z"),
        fc.indicator_column(words),
        fc.embedding_column(words, 2),
        fc.embedding_column(hashed, 3, trainable=False),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("y", 7), 2),
        fc.bucketized_column(fc.numeric_column("z"), [0]),
    ]
    strings = np.array(["a", "b", "", "q"], object)
    raw: Raw = {key: np.array([1, -2, 3, 0], np.float32) for key in "zbZ"}
    same(model_of([], deep), raw | dict.fromkeys("mcy", strings))


@pytest.mark.parametrize(
    "activation",
    [torch.relu, nn.functional.relu, torch.tanh, nn.Sigmoid(), nn.functional.gelu, nn.LeakyReLU(0.3), lambda x: x * x],
    ids=["relu", "F.relu", "tanh", "Sigmoid", "gelu", "LeakyReLU", "lambda"],
)
def test_activations(same: Same, activation: Any) -> None:
    built = model_of([], [fc.numeric_column("x")], hidden=(6, 4), activation_fn=activation)
    same(built, {"x": np.array([-2, -0.1, 0, 3], np.float32)})


def test_dropout_is_off_and_batch_norm_is_part_of_the_weights(same: Same) -> None:
    built = model_of([], [fc.numeric_column("x")], hidden=(6, 4), batch_norm=True, dropout=0.5)
    built.module.train()
    same(built, {"x": np.array([-2, -0.1, 0, 3], np.float32)})
    assert built.module.training is False


def test_no_hidden_layers(same: Same) -> None:
    same(model_of([], [fc.numeric_column("x")], hidden=()), {"x": np.array([-2, 3], np.float32)})


def test_normalizers_apply_before_buckets_and_to_vectors(same: Same) -> None:
    number = fc.numeric_column("x", normalizer_fn=lambda x: (x - 38.6) / 13.6)
    vector = fc.numeric_column("v", shape=(2, 2), normalizer_fn=lambda x: x / x.abs().amax((1, 2), keepdim=True))
    whole = fc.numeric_column("i", dtype="int64", normalizer_fn=torch.sqrt)
    raw = {
        "x": np.array([10, 38.6, 60], np.float32),
        "v": np.arange(1, 13, dtype=np.float32).reshape(3, 2, 2),
        "i": np.array([4, 9, 2]),
    }
    same(model_of([fc.bucketized_column(number, [-1, 0, 1]), number], [number, vector, whole]), raw)


def test_a_normalizer_that_torch_cannot_export_is_named(tmp_path: Path) -> None:
    from torch_estimator.errors import ExportError

    column = fc.numeric_column("x", normalizer_fn=lambda x: x if float(x.sum()) > 0 else -x)
    with pytest.raises(ExportError, match="normalizer_fn of x cannot be exported to ONNX"):
        model_of([column], []).export(tmp_path)


def test_any_module_over_raw_numbers(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.layer(torch.cat([features["x"], features["y"]], 1))

    from torch_estimator.export.writer import write_export

    net, head = Net(), MultiClassHead(3)
    receiver = serving_input.raw_features([fc.numeric_column("x"), fc.numeric_column("y")])
    path = write_export(tmp_path, module=net, transform=None, head=head, receiver=receiver)
    answer = ExportedModel.load(path).predict({"x": [1.0, 2], "y": [0.5, -3]})
    with torch.no_grad():
        logits = net({"x": torch.tensor([[1.0], [2]]), "y": torch.tensor([[0.5], [-3]])})
    np.testing.assert_allclose(answer["logits"], logits.numpy(), atol=1e-5)


def test_any_module_over_feature_columns(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Embedding(4, 1)

        def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.weights(features["linear/ids"]).sum(1)

    word = fc.categorical_column_with_vocabulary_list("w", ["a", "b", "c"])
    built = model_of([word], [])
    built.module = Net()
    raw = {"w": np.array(["c", "a", "", "z"], object)}
    assert_same(built.predict(raw), built.export(tmp_path).predict(raw))
