"""Exports whose tables are float16: half the bytes, nearly the predictions, and a log of what that costs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.summary.scalar_reader import read_scalars

TOWN = fc.categorical_column_with_identity("town", 500)
TAGS = fc.categorical_column_with_identity("tags", 90, multivalent=True)
WIDE = [TOWN, TAGS, fc.crossed_column([TOWN, fc.bucketized_column(fc.numeric_column("x"), [0.0])], 1000)]
DEEP = [fc.embedding_column(TOWN, 8, max_norm=0.5), fc.embedding_column(TAGS, 8), fc.numeric_column("x")]
FEATURES: dict[str, Any] = {
    "town": np.random.default_rng(0).integers(0, 500, 640),
    "tags": np.random.default_rng(1).integers(0, 90, (640, 3)),
    "x": np.random.default_rng(2).normal(size=640).astype(np.float32),
}


def data() -> te.data.Dataset:
    labels = (FEATURES["town"] % 3 + FEATURES["x"] > 1).astype(np.float32)
    return te.data.Dataset.from_arrays(FEATURES, labels).batch(64).repeat(20)


def job(model_dir: Path) -> te.Estimator:
    return te.DNNLinearCombinedClassifier(
        str(model_dir),
        linear_feature_columns=WIDE,
        dnn_feature_columns=DEEP,
        dnn_hidden_units=[8],
        dnn_optimizer=te.optim.Adagrad(lr=0.5),
        config=te.RunConfig(random_seed=1),
    )


def export(estimator: te.Estimator, folder: Path, **settings: Any) -> str:
    return estimator.export_saved_model(str(folder), te.serving_input.raw_features([*WIDE, *DEEP]), **settings)


def dtypes(path: str) -> dict[str, int]:
    graph = onnx.load(str(Path(path, "model.onnx"))).graph
    return {one.name: one.data_type for one in graph.initializer if np.prod(one.dims) > 300}


def test_tables_take_half_the_bytes_and_predictions_are_nearly_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    estimator = job(tmp_path / "job").train(data, steps=100)

    exact = export(estimator, tmp_path / "exact")
    half = export(estimator, tmp_path / "half", dtype="float16", quality_input_fn=data)

    assert set(dtypes(exact).values()) == {onnx.TensorProto.FLOAT}
    assert sorted(dtypes(half)) == sorted(dtypes(exact))
    assert set(dtypes(half).values()) == {onnx.TensorProto.FLOAT16}
    one, other = (te.ExportedModel.load(path).predict(FEATURES)["logits"] for path in (exact, half))
    assert 0 < np.abs(one - other).max() < 1e-3 * np.abs(one).max()
    messages = " ".join(caplog.messages)
    assert "Rounding tables to float16 (3) has moved their numbers by 0.0002" in messages
    change = next(one for one in caplog.messages if one.startswith("With tables in float32, and the change by float16"))
    assert f"average_loss = {estimator.evaluate(data)['average_loss']:.6g} (" in change
    assert "global_step" not in change


def test_the_evaluation_for_the_log_looks_up_the_rows_of_the_export(tmp_path: Path) -> None:
    plain = [fc.embedding_column(TOWN, 8), fc.numeric_column("x")]
    config = te.RunConfig(str(tmp_path / "job"), random_seed=3)
    estimator = te.DNNClassifier([8], plain, optimizer=te.optim.Adagrad(lr=2.0), config=config)
    estimator.train(data, steps=100)
    labels = np.random.default_rng(4).integers(0, 2, 640).astype(np.float32)
    wrong = te.data.Dataset.from_arrays(FEATURES, labels).batch(64)
    inputs = te.serving_input.raw_features(plain)
    half = estimator.export_saved_model(str(tmp_path / "half"), inputs, dtype="float16", quality_input_fn=lambda: wrong)
    features = {key: FEATURES[key] for key in ("town", "x")}
    logits = te.ExportedModel.load(half).predict(features)["logits"][:, 0].astype(np.float64)
    loss = np.mean(np.logaddexp(0, np.where(labels > 0, -logits, logits)))
    logged, exact = (
        read_scalars(str(tmp_path / "job" / f"eval_{dtype}"))["average_loss"].values[-1]
        for dtype in ("float16", "float32")
    )
    assert abs(logged - loss) < abs(logged - exact) / 10


def test_only_what_is_looked_up_is_rounded(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(300, 4)
            self.only = torch.nn.Embedding(400, 4)

        def forward(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
            found = self.words(features["id"]) + self.only(features["id"])
            return (found @ self.words.weight.T).mean(1, keepdim=True)

    def model_fn(mode: te.ModeKeys) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode, module=Tied(), loss=torch.nn.MSELoss(), optimizer=lambda params: torch.optim.SGD(params, lr=0.1)
        )

    estimator = te.Estimator(model_fn, str(tmp_path / "job"))
    ids = np.arange(64) % 300
    estimator.train(lambda: ({"id": ids}, np.ones((64, 1), np.float32)), steps=1)
    inputs = te.serving_input.json({"id": "int64"})
    path = estimator.export_saved_model(str(tmp_path / "export"), inputs, dtype="float16")
    # The transposed weights of the product are an initializer of their own.
    assert sorted(dtypes(path).values()) == [onnx.TensorProto.FLOAT, *[onnx.TensorProto.FLOAT16] * 2]
    expected = [one["output"] for one in estimator.predict(lambda: {"id": ids})]
    served = te.ExportedModel.load(path).predict({"id": ids})["output"]
    np.testing.assert_allclose(served, expected, rtol=5e-3, atol=1e-3)


def test_a_number_beyond_float16_is_said(tmp_path: Path) -> None:
    far = fc.embedding_column(TOWN, 8, initializer=lambda rows: torch.nn.init.constant_(rows, 1e5))
    estimator = te.DNNClassifier([2], [far], str(tmp_path))
    estimator.train(data, steps=1)
    with pytest.raises(te.errors.ExportError, match=r"table 'embeddings_8' has the number 100000, beyond float16's"):
        estimator.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features([far]), dtype="float16")
    assert not any((tmp_path / "export").glob("1*"))


def test_a_quality_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(te.errors.InvalidValueError, match="quality_input_fn compares dtype='float16'"):
        export(job(tmp_path), tmp_path / "export", quality_input_fn=data)


def test_exporters_pass_the_dtype_on_and_refuse_others(tmp_path: Path) -> None:
    receiver = te.serving_input.raw_features([*WIDE, *DEEP])
    exporter = te.FinalExporter("half", receiver, dtype="float16")
    _, (path,) = te.train_and_evaluate(
        job(tmp_path), te.TrainSpec(data, max_steps=3), te.EvalSpec(data, steps=1, exporters=exporter)
    )
    assert set(dtypes(path).values()) == {onnx.TensorProto.FLOAT16}
    for wrong in (
        lambda: te.LatestExporter("x", receiver, dtype="int8"),
        lambda: te.BestExporter("x", receiver, dtype="half"),
    ):
        with pytest.raises(te.errors.InvalidValueError, match="dtype of an export must be 'float32' or 'float16'"):
            wrong()
