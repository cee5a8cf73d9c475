"""For random columns and rows, ids equal their definition, batches do not matter, and exports agree."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

import torch_estimator as te
from tests.export.models import model_of
from tests.properties import columns as drawn
from tests.properties.input_reference import input_of
from tests.properties.reference import farmhash, ids_of, murmur3
from tests.properties.trials import tried
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.writer import build
from torch_estimator.feature_column.hashing import hash_strings
from torch_estimator.heads import (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)

Columns = dict[str, Any]


def taken(raw: Columns, rows: list[int]) -> Columns:
    return {key: v.take(pa.array(rows, pa.int64())) if isinstance(v, pa.Array) else v[rows] for key, v in raw.items()}


def raw_features(*columns: Any) -> list[fc.RawFeature]:
    return list(fc.FeatureTransform(*columns).raw_features.values())


def by_row(transform: fc.FeatureTransform, features: Columns) -> dict[str, list[list[Any]]]:
    """Return the ids and weights of every column of the linear half, row by row, without missing ids."""
    assert transform.linear is not None
    found: dict[str, list[list[Any]]] = {}
    for placed in transform.linear.categorical:
        slots = features["linear/ids"][:, placed.start : placed.stop]
        found[placed.name] = [
            [(one - placed.offset, 1.0) for one in row if one < transform.linear.rows] for row in slots.tolist()
        ]
    for bag in transform.linear.bags:
        ids = features[bag.feature].to_pylist()
        weights = [[1.0] * len(row) for row in ids] if bag.weights is None else features[bag.weights].to_pylist()
        found[bag.name] = [
            [(one - bag.offset, weight) for one, weight in zip(*pair, strict=True)]
            for pair in zip(ids, weights, strict=True)
        ]
    return found


KINDS = {
    "vocabulary": drawn.vocabularies(),
    "hash bucket": drawn.hashes(),
    "identity": drawn.identities(),
    "bucketized": drawn.buckets(),
    "crossed": drawn.crosses(),
    "weighted": drawn.weighted(),
    "several": drawn.wide(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_the_definition(kind: str) -> None:
    @tried(200 if kind in ("crossed", "several") else 40)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        made = data.draw(KINDS[kind])
        columns = [c for c in (made if isinstance(made, list) else [made]) if not isinstance(c, fc.NumericColumn)]
        features = raw_features(columns)
        rows = data.draw(drawn.rows_of(features))
        raw = data.draw(drawn.held(rows, features))
        transform = fc.FeatureTransform(columns)
        found = by_row(transform, transform(raw)) if columns else {}
        for column in columns:
            event(type(column).__name__)
            expected = [[tuple(one) for one in ids_of(column, row)] for row in rows]
            assert found[column.name] == expected, column

    check()


PARTS = {"indicators": drawn.indicators(), "embeddings": drawn.embeddings(), "several": drawn.deep()}


@pytest.mark.parametrize("part", PARTS)
def test_the_input_of_a_network_equals_the_definition(part: str) -> None:
    @tried(150)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        made = data.draw(PARTS[part])
        columns = made if isinstance(made, list) else [made]
        features = raw_features([], columns)
        rows = data.draw(drawn.rows_of(features))
        built = model_of([], data.draw(st.permutations(columns)), RegressionHead(), (3,))
        layer = built.module.dnn.input_from_feature_columns.input_layer
        seen = layer(tensors(built, data.draw(drawn.held(rows, features)))).detach().numpy()
        variables = {
            piece.name.split("/", 3)[3].removesuffix("/embedding_weights"): table.weight.detach()
            .double()
            .numpy()[piece.offset : piece.offset + piece.rows]
            for table in layer.tables
            for piece in table.pieces
        }
        for got, row in zip(seen, rows, strict=True):
            np.testing.assert_allclose(got, input_of(columns, row, variables), rtol=1e-5, atol=1e-5)

    check()


@tried(80)
@given(st.data())
def test_results_do_not_depend_on_batches(data: st.DataObject) -> None:
    wide, deep = data.draw(drawn.wide()), data.draw(drawn.deep())
    features = raw_features(wide, deep)
    rows = data.draw(drawn.rows_of(features))
    raw = data.draw(drawn.held(rows, features))
    built = model_of(wide, deep, RegressionHead(), (3,), data.draw(drawn.combiners()))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows)))) | {len(rows)})
    whole, logits = built.transform(raw), outputs(built, raw)
    start = 0
    for stop in cuts:
        part = taken(raw, list(range(start, stop)))
        for key, value in built.transform(part).items():
            assert _same(value, whole[key][start:stop]), key
        np.testing.assert_allclose(outputs(built, part), logits[start:stop], rtol=1e-5, atol=1e-6)
        start = stop


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right, equal_nan=True)
    return bool(left.to_pylist() == right.to_pylist())


HEADS = [
    RegressionHead(),
    RegressionHead(label_dimension=2),
    BinaryClassHead(),
    MultiClassHead(3, label_vocabulary=["a", "b", "c"]),
    MultiLabelHead(2),
    PoissonRegressionHead(),
    LogisticRegressionHead(),
]


@tried(40)
@given(st.data())
def test_an_export_predicts_like_its_model(data: st.DataObject) -> None:
    wide, deep = data.draw(drawn.wide()), data.draw(drawn.deep())
    features = raw_features(wide, deep)
    rows = data.draw(drawn.rows_of(features))
    raw = data.draw(drawn.held([drawn.filled(row, features) for row in rows], features))
    built = model_of(wide, deep, data.draw(st.sampled_from(HEADS)), (3,), data.draw(drawn.combiners()))
    built.transform.recording = True
    logits = outputs(built, raw)
    export = exported(built)
    sent = drawn.sent(rows, features)
    answer = export.predict(sent)
    # A relative tolerance too, because one unit in the last place of a float32 around 200 is more than 1e-5.
    key = "logits" if "logits" in answer else "predictions"
    if not isinstance(built.head, LogisticRegressionHead):
        np.testing.assert_allclose(answer[key], logits, rtol=1e-5, atol=1e-5)
    assert_decoded(built.head, torch.from_numpy(answer.get("logits", logits)), answer)
    one_by_one = [export.predict({key: values[n : n + 1] for key, values in sent.items()}) for n in range(len(rows))]
    np.testing.assert_allclose(np.concatenate([one[key] for one in one_by_one]), answer[key], rtol=1e-5, atol=1e-6)


def assert_decoded(head: Any, logits: torch.Tensor, answer: Columns) -> None:
    """Assert that an export's predictions are those of the head, in rows with finite logits."""
    expected = head.decode({key: value.numpy() for key, value in head.predictions(logits).items()})
    finite = torch.isfinite(logits).all(1).numpy()
    for key, values in expected.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(answer[key][finite], values[finite], rtol=1e-4, atol=1e-5, err_msg=key)
        else:
            assert answer[key][finite].tolist() == values[finite].tolist(), key


@tried(6)
@given(st.data())
def test_data_sets_estimators_and_files_of_exports_agree(data: st.DataObject) -> None:
    wide, deep = data.draw(drawn.wide()), data.draw(drawn.deep())
    features = raw_features(wide, deep)
    rows = [drawn.trainable(row, features) for row in data.draw(drawn.rows_of(features))]
    raw = data.draw(drawn.held(rows, features))
    labels = np.arange(len(rows), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        estimator = te.DNNLinearCombinedRegressor(
            folder,
            linear_feature_columns=wide,
            dnn_feature_columns=deep,
            dnn_hidden_units=[3],
            config=te.RunConfig(tf_random_seed=1, compile=False),
        )
        estimator.train(lambda: te.data.Dataset.from_arrays(taken(raw, [0]), labels[:1]).batch(1), steps=1)
        predicted = np.array(
            [one["predictions"] for one in estimator.predict(lambda: te.data.Dataset.from_arrays(raw).batch(3))]
        )
        path = estimator.export_saved_model(str(Path(folder) / "export"), serving_input.raw_features([*wide, *deep]))
        answer = ExportedModel.load(path).predict(drawn.sent(rows, features))["predictions"]
    np.testing.assert_allclose(answer, predicted, rtol=1e-5, atol=1e-5)


def outputs(built: Any, raw: Columns) -> Any:
    """Return the output of a model without an export."""
    with torch.no_grad():
        return built.module.eval()(tensors(built, raw)).numpy()


def tensors(built: Any, raw: Columns) -> dict[str, torch.Tensor]:
    """Return the input of a model's module."""
    features = built.transform.padded(built.transform(raw))
    return {key: torch.from_numpy(value) for key, value in features.items()}


def exported(built: Any) -> ExportedModel:
    """Export a model in memory, without files; it also answers rows with NaN, so that the graph can be compared."""
    graph, manifest = build(
        module=built.module,
        transform=built.transform,
        head=built.head,
        receiver=serving_input.raw_features(built.transform),
    )
    model = graph.model(producer="test", version="1").SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return ExportedModel("memory", dataclasses.replace(manifest, head_outputs=None), session)


@tried(100)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=16), max_size=20))
def test_hashes_equal_the_definition(strings: list[str]) -> None:
    assert hash_strings(strings, "murmur3").tolist() == [murmur3(one) for one in strings]
    assert hash_strings(strings, "farmhash").tolist() == [farmhash(one) for one in strings]


def test_the_definition_of_farmhash_equals_that_of_tensorflow(golden: Any) -> None:
    reference = {text: int(value) for text, value in golden("hash")["fingerprint64"].items() if len(text) <= 64}
    assert len(reference) >= 8
    assert {text: farmhash(text) for text in reference} == reference
    lengths = {text: farmhash(text) for text in ("x" * n for n in range(65))}
    assert list(lengths.values()) == hash_strings(list(lengths), "farmhash").tolist()
