"""Whatever columns, rows and batches: ids are those of their definition, batches do not matter, exports agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from tests.export.models import model_of
from tests.properties import columns as drawn
from tests.properties.reference import farmhash, ids_of, murmur3
from tests.properties.trials import tried
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.writer import build
from torch_estimator.feature_column.hashing import hash_strings
from torch_estimator.heads import RegressionHead

Columns = dict[str, Any]


def taken(raw: Columns, rows: list[int]) -> Columns:
    return {key: v.take(pa.array(rows, pa.int64())) if isinstance(v, pa.Array) else v[rows] for key, v in raw.items()}


def raw_features(*columns: Any) -> list[fc.RawFeature]:
    return list(fc.FeatureTransform(*columns).raw_features.values())


def by_row(transform: fc.FeatureTransform, features: Columns) -> dict[str, list[list[Any]]]:
    """Ids (and weights) of every column of the linear half, row by row, without those that are missing."""
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
def test_ids_are_those_of_the_definition(kind: str) -> None:
    @tried(100 if kind in ("crossed", "several") else 40)
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


@tried(80)
@given(st.data())
def test_how_rows_are_cut_into_batches_does_not_matter(data: st.DataObject) -> None:
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


@tried(80)
@given(st.data())
def test_an_export_predicts_what_the_model_predicts(data: st.DataObject) -> None:
    wide, deep = data.draw(drawn.wide()), data.draw(drawn.deep())
    features = raw_features(wide, deep)
    rows = data.draw(drawn.rows_of(features))
    raw = data.draw(drawn.held(rows, features))
    built = model_of(wide, deep, RegressionHead(), (3,), data.draw(drawn.combiners()))
    built.transform.recording = True
    expected = outputs(built, raw)
    export = exported(built)
    sent = {key: [row[key] for row in rows] for key in raw}
    answer = export.predict(sent)["predictions"]
    # Beyond 1 relative: a unit in the last place of a number of 200 is more than 1e-5.
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)
    one_by_one = [export.predict({key: values[n : n + 1] for key, values in sent.items()}) for n in range(len(rows))]
    np.testing.assert_allclose(np.concatenate([one["predictions"] for one in one_by_one]), answer, rtol=1e-5, atol=1e-6)


def outputs(built: Any, raw: Columns) -> Any:
    """What a model answers without an export."""
    features = built.transform.padded(built.transform(raw))
    with torch.no_grad():
        return built.module.eval()({key: torch.from_numpy(value) for key, value in features.items()}).numpy()


def exported(built: Any) -> ExportedModel:
    """The export of a model, without files."""
    graph, manifest = build(
        module=built.module,
        transform=built.transform,
        head=built.head,
        receiver=serving_input.raw_features(built.transform),
    )
    model = graph.model(producer="test", version="1").SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return ExportedModel("memory", manifest, session)


@tried(100)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=16), max_size=20))
def test_hashes_are_those_of_the_definition(strings: list[str]) -> None:
    assert hash_strings(strings, "murmur3").tolist() == [murmur3(one) for one in strings]
    assert hash_strings(strings, "farmhash").tolist() == [farmhash(one) for one in strings]


def test_the_definition_is_tensorflows(golden: Any) -> None:
    reference = {text: int(value) for text, value in golden("hash")["fingerprint64"].items() if len(text) <= 64}
    assert len(reference) >= 8
    assert {text: farmhash(text) for text in reference} == reference
    lengths = {text: farmhash(text) for text in ("x" * n for n in range(65))}
    assert list(lengths.values()) == hash_strings(list(lengths), "farmhash").tolist()
