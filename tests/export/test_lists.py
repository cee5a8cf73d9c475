"""Exports of columns whose rows have lists of values, or values with weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from tests.export.models import ODD_STRINGS, Built, Raw, assert_same, model_of
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.cli import main
from torch_estimator.errors import ExportError, InvalidTypeError, InvalidValueError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.heads import BinaryClassHead, MultiClassHead
from torch_estimator.serving_input import ServingInput

TAGS = fc.categorical_column_with_vocabulary_list("tags", ["a", "b", "c"], num_oov_buckets=2, multivalent=True)
WORDS = fc.categorical_column_with_hash_bucket("words", 50, multivalent=True)
NUMBERS = fc.categorical_column_with_hash_bucket("numbers", 20, dtype=int, multivalent=True)
IDS = fc.categorical_column_with_identity("ids", 6, default_value=5, multivalent=True)
PLAIN_IDS = fc.categorical_column_with_identity("id", 4)
PAIR = fc.bucketized_column(fc.numeric_column("pair", 2, normalizer_fn=lambda x: x * 2), [0.0, 1.0])
WEIGHTED = fc.weighted_categorical_column(WORDS, "weights")
WEIGHTED_ID = fc.weighted_categorical_column(PLAIN_IDS, "weight", dtype=int)
WEIGHTED_PAIR = fc.weighted_categorical_column(PAIR, "pair_weights")
CROSS = fc.crossed_column([IDS, "dense", TAGS, "words", PAIR], 200, multivalent=["words"])
NESTED = fc.crossed_column([CROSS, PLAIN_IDS, "dense"], 100, hash_key=7)
CATEGORICAL: list[Any] = [
    TAGS, WORDS, NUMBERS, IDS, PLAIN_IDS, PAIR, WEIGHTED, WEIGHTED_ID, WEIGHTED_PAIR, CROSS, NESTED,
]  # fmt: skip


def dense_columns(combiner: Any) -> list[Any]:
    return [
        *map(fc.indicator_column, CATEGORICAL),
        *(fc.embedding_column(column, 3, combiner=combiner, max_norm=0.4) for column in CATEGORICAL[::2]),
        *(fc.embedding_column(column, 3, combiner=combiner) for column in CATEGORICAL[1::2]),
        *fc.shared_embeddings([IDS, fc.categorical_column_with_identity("more", 6)], 3, combiner=combiner),
    ]


def rows(count: int, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)

    def lists(values: Any, most: int = 4) -> pa.Array:
        return pa.array([random.choice(values, random.integers(0, most + 1)).tolist() for _ in range(count)])

    words = lists(np.array(ODD_STRINGS, object))
    weights = [random.choice([0.5, 2.0, 0.0, -1.0, np.nan], len(row)).tolist() for row in words.to_pylist()]
    return {
        "tags": lists(np.array(["a", "b", "c", "other", ""], object)),
        "words": words,
        "weights": pa.array(weights, pa.list_(pa.float32())),
        "numbers": lists(np.array([-1, 0, 5, -7, 2**62]), 5),
        "ids": lists(np.array([-1, 0, 1, 5, 6, -3, 2**40])),
        "more": random.integers(-2, 8, count),
        "id": random.integers(-2, 6, count),
        "weight": random.integers(-2, 4, count),
        "dense": random.choice(np.array(["", "x", "é"], object), count),
        "pair": random.normal(0, 1, (count, 2)).astype(np.float32),
        "pair_weights": random.normal(0, 1, (count, 2)).astype(np.float32),
    }


def as_sent(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value.to_pylist() if isinstance(value, pa.Array) else value for key, value in raw.items()}


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("head", [BinaryClassHead(), MultiClassHead(3)], ids=["one logit", "three logits"])
def test_an_export_answers_as_the_model_does(combiner: Any, head: Any, tmp_path: Path) -> None:
    built = model_of(CATEGORICAL, dense_columns(combiner), head, (5,), combiner)
    export = built.export(tmp_path)
    raw = rows(200)
    whole = assert_same(built.predict(raw), export.predict(as_sent(raw)))
    for start, stop in ((0, 1), (1, 4), (150, 200)):
        part = export.predict(as_sent({key: value[start:stop] for key, value in raw.items()}))
        np.testing.assert_allclose(part["logits"], whole["logits"][start:stop], atol=1e-5)


def test_rows_without_any_value(tmp_path: Path) -> None:
    built = model_of(CATEGORICAL, dense_columns("mean"), hidden=(5,))
    raw = rows(3)
    raw |= {key: pa.array([[], None, []], value.type) for key, value in raw.items() if isinstance(value, pa.Array)}
    assert_same(built.predict(raw), built.export(tmp_path).predict(as_sent(raw)))


def test_ids_are_those_of_the_host_half_bit_for_bit() -> None:
    import onnxruntime

    from torch_estimator.export.columns import lower_features
    from torch_estimator.export.graph import GraphBuilder
    from torch_estimator.export.receivers import lower_receiver
    from torch_estimator.export.signatures import TensorInfo

    transform = fc.FeatureTransform(CATEGORICAL)
    raw = rows(300, seed=1)
    graph = GraphBuilder()
    features = lower_features(
        graph, transform, lower_receiver(graph, serving_input.raw_features(transform), for_columns=True).raw
    )
    names = [bag.feature for bag in transform.bags]
    assert len(names) == 9
    for number, name in enumerate(names):
        info = TensorInfo(dtype="DT_INT64", shape=(-1, -1), tensor=f"ids{number}")
        graph.output(info.tensor, features[name].tensor, info)
    session = onnxruntime.InferenceSession(
        graph.model(producer="test", version="1").SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wanted = {one.name: one.type for one in session.get_inputs()}
    feeds = {key: _padded(value) for key, value in raw.items() if key in wanted}
    found = dict(zip(names, session.run(None, feeds), strict=True))
    expected = transform(raw)
    for bag in transform.bags:
        kept = [[one for one in row if one != bag.padding] for row in found[bag.feature].tolist()]
        assert kept == expected[bag.feature].to_pylist(), bag.name
    assert sum(map(len, expected[f"linear/ids/{CROSS.name}"].to_pylist())) > 300


def _padded(values: Any) -> np.ndarray:
    if not isinstance(values, pa.Array):
        return values if values.ndim == 2 else values[:, None]
    rows = values.to_pylist()
    width = max(map(len, rows))
    if pa.types.is_string(values.type.value_type):
        return np.array([row + [""] * (width - len(row)) for row in rows], object)
    fill, dtype = (0, np.float32) if pa.types.is_floating(values.type.value_type) else (-1, np.int64)
    return np.array([row + [fill] * (width - len(row)) for row in rows], dtype)


def test_farmhash_in_lists(tmp_path: Path) -> None:
    words = fc.categorical_column_with_hash_bucket("words", 1000, hash_function="farmhash", multivalent=True)
    cross = fc.crossed_column(["words", "dense"], 1000, hash_function="farmhash", multivalent=["words"])
    built = model_of([words, cross], [], hidden=())
    raw = {"words": pa.array([["a", "b"], ["c", ""]]), "dense": np.array(["x", ""], object)}
    built.transform.recording = True
    built.transform(raw)
    assert built.transform.seen_strings() == {"words": ["", "a", "b", "c"], "dense": ["", "x"]}
    assert_same(built.predict(raw), built.export(tmp_path).predict(as_sent(raw)))


class _OwnModule(nn.Module):
    """User-defined network on top of the columns."""

    def __init__(self, transform: fc.FeatureTransform) -> None:
        super().__init__()
        assert transform.dnn is not None
        self.columns = fc.InputLayer(transform.dnn)
        self.out = nn.Linear(self.columns.width, 1)

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.columns(features))
        return logits


def test_any_module_over_lists(tmp_path: Path) -> None:
    transform = fc.FeatureTransform((), dense_columns("mean"))
    torch.manual_seed(0)
    built = Built(_OwnModule(transform), transform, BinaryClassHead())
    export = built.export(tmp_path)
    for count in (1, 30):
        raw = rows(count, seed=count)
        assert_same(built.predict(raw), export.predict(as_sent(raw)))


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, ExportedModel]:
    columns = [fc.weighted_categorical_column(WORDS, "weights"), NUMBERS, fc.numeric_column("x")]
    built = model_of(columns, [])
    receiver = serving_input.raw_features(built.transform, defaults={"numbers": [5, -7], "x": 0})
    return built, built.export(tmp_path_factory.mktemp("tagged"), receiver)


def test_inputs_are_described_as_lists(tagged: tuple[Built, ExportedModel]) -> None:
    inputs = tagged[1].signature("predict").inputs
    assert {name: (info.dtype, info.shape) for name, info in inputs.items()} == {
        "numbers": ("DT_INT64", (-1, -1)),
        "weights": ("DT_FLOAT", (-1, -1)),
        "words": ("DT_STRING", (-1, -1)),
        "x": ("DT_FLOAT", (-1, 1)),
    }
    assert inputs["weights"].lengths_of == "words"
    loaded = ExportedModel.load(tagged[1].directory)
    assert loaded.signatures == tagged[1].signatures


def test_lists_of_every_kind_are_the_same(tagged: tuple[Built, ExportedModel]) -> None:
    built, export = tagged
    expected = built.predict(
        {
            "words": pa.array([["é", "b"], ["c", ""]]),
            "weights": pa.array([[1, 2], [3, 4]]),
            "numbers": pa.array([[5, -7]] * 2),
            "x": np.zeros(2),
        }
    )
    sent: list[dict[str, Any]] = [
        {"words": [["é", "b"], ["c", ""]], "weights": [[1, 2], [3, 4]]},
        {"words": [[b"\xc3\xa9", "b"], ("c", None)], "weights": ([1.0, 2.0], [3, 4.0])},
        {"words": np.array([["é", "b"], ["c", ""]]), "weights": np.array([[1, 2], [3, 4]], np.float16)},
        {"words": [["é", "b"], ["c"]], "weights": [[1, 2], [3]], "numbers": [[5, -7], [-1, 5, None, -7]]},
        {"words": [["é", "b"], "c"], "weights": [[1, 2], 3], "numbers": np.array([[5, -7]] * 2), "x": [0, 0]},
    ]
    for given in sent:
        np.testing.assert_array_equal(export.predict(given)["logits"], expected["logits"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"words": [["a"], ["b"]], "weights": [[1], [1, 2]]}, "weights has 2 values in row 1 .* but words, .* has 1"),
        ({"words": [["a"], [3]], "weights": [[1], [1]]}, r"words takes strings, but has 3 \(int\)"),
        ({"words": [["a"], ["b"]], "weights": [[1], ["x"]]}, "weights takes numbers"),
        ({"words": [[["a"]]], "weights": [[1]]}, "words takes a list of values per row, but has lists of lists"),
        ({"words": "a", "weights": [[1]]}, "words is the single value 'a'; give a list of lists"),
        ({"words": [["a"]], "weights": [[1]], "numbers": [[1.5]]}, r"numbers takes integers, but has 1.5 \(float\)"),
        ({"words": [["a"]], "weights": [[1]], "numbers": [[1], [2]]}, "same number of rows"),
        (
            {"words": np.full((1, 2, 2), "a"), "weights": [[1]]},
            "words takes a list of values per row, but has lists of lists",
        ),
        ({"words": [["a"]]}, "weights was missing"),
    ],
)
def test_a_value_that_is_not_a_list_is_refused(tagged: tuple[Built, ExportedModel], given: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        tagged[1].predict(given)


def test_an_empty_batch_and_empty_lists(tagged: tuple[Built, ExportedModel]) -> None:
    built, export = tagged
    assert export.predict({"words": [], "weights": []})["logits"].shape == (0, 1)
    empty = export.predict({"words": [[], None], "weights": [[], None], "numbers": [[], []]})
    bias = built.module.linear.linear_model.bias_weights
    np.testing.assert_allclose(empty["logits"], [[float(bias.detach())]] * 2, atol=1e-6)


def test_json_instances_with_lists_of_different_lengths(
    tagged: tuple[Built, ExportedModel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instances: list[dict[str, Any]] = [
        {"words": ["a", "b", "é"], "weights": [1, 2.5, 0], "numbers": [3]},
        {"words": [], "weights": [], "x": 2},
        {"words": "a", "weights": 2.0, "numbers": []},
    ]
    path = tmp_path / "instances.json"
    path.write_text("\n".join(map(json.dumps, instances)))
    main(["predict", "--model-dir", tagged[1].directory, "--json-instances", str(path), "--format", "json"])
    answers = json.loads(capsys.readouterr().out)["predictions"]
    expected = tagged[0].predict(
        {
            "words": pa.array([["a", "b", "é"], [], ["a"]]),
            "weights": pa.array([[1, 2.5, 0], [], [2.0]]),
            "numbers": pa.array([[3], [5, -7], []]),
            "x": np.array([0, 2, 0]),
        }
    )
    np.testing.assert_allclose([one["logits"] for one in answers], expected["logits"], atol=1e-5)
    path.write_text('{"words": ["a"], "weights": [1]}\n{"words": ["a"], "weights": [1, 2]}\n')
    assert main(["predict", "--model-dir", tagged[1].directory, "--json-instances", str(path)]) == 2
    assert "line 2: Input weights has 2 values, but words, whose weights they are, has 1." in capsys.readouterr().err


def test_receivers_that_cannot_hold_lists_say_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="'words' holds lists, but a CSV field holds one value"):
        serving_input.csv(["words"], [WORDS])
    with pytest.raises(InvalidTypeError, match="the default of 'numbers' must be"):
        serving_input.raw_features([NUMBERS], defaults={"numbers": ["a"]})
    built = model_of([WORDS], [], hidden=())
    receiver: ServingInput = serving_input.raw_features([fc.RawFeature(key="words", dtype="string")])
    with pytest.raises(
        ExportError, match="reads 'words' as a list of string per row, but the serving input has 1 string"
    ):
        built.export(tmp_path, receiver)


def test_json_receivers_take_lists_too(tmp_path: Path) -> None:
    built = model_of([WORDS, fc.numeric_column("x")], [], hidden=())
    export = built.export(tmp_path, serving_input.json(built.transform))
    raw: Raw = {"words": [["a"], ["b", "c"]], "x": [1.0, 2.0]}  # type: ignore[dict-item]
    expected = built.predict({"words": pa.array(raw["words"]), "x": np.array(raw["x"])})
    assert_same(expected, export.predict(raw))


def test_json_instances_may_omit_strings_ids_and_lists_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [
        fc.categorical_column_with_hash_bucket("job", 5),
        fc.categorical_column_with_hash_bucket("tags", 5, multivalent=True),
        fc.categorical_column_with_identity("id", 5),
        fc.numeric_column("x"),
    ]
    built = model_of(columns, [], hidden=())
    path = tmp_path / "instances.json"
    path.write_text('{"x": 1}\n{"x": 1, "job": null, "tags": null, "id": -1}\n{"x": 1, "job": "a", "tags": ["b"]}\n')

    export = built.export(tmp_path / "export", serving_input.json(columns))
    assert main(["predict", "--model-dir", export.directory, "--json-instances", str(path), "--format", "json"]) == 0
    found = capsys.readouterr().out
    expected = built.predict(
        {
            "job": np.array(["", "", "a"]),
            "tags": pa.array([[], [], ["b"]], pa.list_(pa.string())),
            "id": np.array([-1, -1, -1]),
            "x": np.ones(3, np.float32),
        }
    )
    np.testing.assert_allclose(
        [one["logits"] for one in json.loads(found)["predictions"]], expected["logits"], atol=1e-5
    )
