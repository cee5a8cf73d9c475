from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.export.models import Built, model_of
from torch_estimator import feature_column as fc
from torch_estimator import files, serving_input
from torch_estimator.errors import ExportError
from torch_estimator.export import writer
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.writer import write_export
from torch_estimator.exporters.exporter import remove_old_exports
from torch_estimator.heads import RegressionHead


@pytest.fixture
def built() -> Built:
    return model_of([fc.categorical_column_with_hash_bucket("w", 10), fc.numeric_column("x")], [])


@pytest.fixture(params=["local", "memory"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "export" / "census")
        return
    yield "memory://export-writer/census"
    files.remove_tree("memory://export-writer")


def write(built: Built, base: str | Path, **changes: Any) -> str:
    arguments = {
        "module": built.module,
        "transform": built.transform,
        "head": built.head,
        "receiver": serving_input.raw_features(built.transform),
    }
    return write_export(base, **(arguments | changes))


def test_an_export_is_a_directory_named_by_the_second(built: Built, base: str) -> None:
    path = write(built, base, global_step=7, clock=lambda: 1_700_000_000.9)
    assert path == files.join(base, "1700000000")
    assert files.listdir(base) == ["1700000000"]
    assert files.listdir(path) == ["assets.extra", "model.onnx", "signatures.json"]
    content = json.loads(files.read_text(files.join(path, "signatures.json")))
    assert content["global_step"] == 7
    assert content["signatures"]["predict"]["inputs"]["x"] == {"dtype": "DT_FLOAT", "shape": [-1, 1], "tensor": "x"}
    assert ExportedModel.load(base).predict({"w": ["a"], "x": [1]})["classes"].shape == (1, 1)


def test_taken_seconds_are_passed_over(built: Built, base: str) -> None:
    paths = [write(built, base, clock=lambda: 1_700_000_000) for _ in range(3)]
    assert [files.basename(path) for path in paths] == ["1700000000", "1700000001", "1700000002"]


def test_names_are_in_the_order_of_the_exports_also_where_old_ones_are_removed(built: Built, base: str) -> None:
    paths = []
    for _ in range(5):
        paths.append(write(built, base, clock=lambda: 1_700_000_000))
        remove_old_exports(base, 2)
    assert [files.basename(path) for path in paths[-2:]] == files.listdir(base) == ["1700000003", "1700000004"]


def test_after_ten_taken_seconds_the_exporter_gives_up(built: Built, tmp_path: Path) -> None:
    for second in range(10):
        (tmp_path / f"temp-{1_700_000_000 + second}").mkdir()
    with pytest.raises(ExportError, match=r"no free name for an export in .*: 1700000000 to 1700000009 are taken"):
        write(built, tmp_path, clock=lambda: 1_700_000_000)


def test_extra_assets_are_copied(built: Built, base: str, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("é")
    path = write(built, base, assets_extra={"vocabulary/labels.txt": tmp_path / "labels.txt"})
    assert files.read_text(files.join(path, "assets.extra", "vocabulary", "labels.txt")) == "é"


@pytest.mark.parametrize(
    ("assets", "problem"),
    [({"a": "/does/not/exist"}, "names /does/not/exist, which does not exist"), ({"../a": "x"}, "has the path '../a'")],
)
def test_an_export_that_fails_leaves_nothing(built: Built, tmp_path: Path, assets: Any, problem: str) -> None:
    with pytest.raises(ExportError, match=problem):
        write(built, tmp_path / "census", assets_extra=assets)
    assert list((tmp_path / "census").iterdir()) == []


def test_a_base_that_cannot_be_written_is_named(built: Built, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match=r"the export into .*file/census cannot be written: Not a directory"):
        write(built, tmp_path / "file" / "census")


def test_a_large_model_keeps_its_weights_in_a_second_file(
    built: Built, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = model_of([fc.categorical_column_with_hash_bucket("w", 10_000)], [])
    monkeypatch.setattr(writer, "LARGEST_MODEL", 20_000)
    path = write(wide, base)
    assert files.listdir(path) == ["assets.extra", "model.onnx", "model.onnx.data", "signatures.json"]
    raw = {"w": np.array(["a", "b", ""], object)}
    np.testing.assert_allclose(ExportedModel.load(path).predict(raw)["logits"], wide.predict(raw)["logits"], atol=1e-6)


def test_a_receiver_that_lacks_a_feature_is_named(built: Built, tmp_path: Path) -> None:
    receiver = serving_input.raw_features([fc.numeric_column("x")])
    with pytest.raises(ExportError, match="the model reads 'w', but the serving input has only"):
        write(built, tmp_path, receiver=receiver)


def test_a_receiver_with_another_type_is_named(built: Built, tmp_path: Path) -> None:
    receiver = serving_input.raw_features(
        [fc.numeric_column("x", shape=2), fc.categorical_column_with_hash_bucket("w", 10)]
    )
    with pytest.raises(ExportError, match="reads 'x' as 1 float32 per row, but the serving input has 2 float32"):
        write(built, tmp_path, receiver=receiver)


def test_something_else_than_a_receiver_is_refused(built: Built, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"must be made by te\.serving_input"):
        write(built, tmp_path, receiver={"x": 1})


def test_raw_inputs_leave_only_predict_which_is_the_default(built: Built, tmp_path: Path) -> None:
    signatures = ExportedModel.load(write(built, tmp_path)).signatures
    assert list(signatures) == ["serving_default", "predict"]
    assert signatures["serving_default"] == signatures["predict"]
    assert list(signatures["predict"].outputs) == list(built.head.prediction_keys)
    shapes = {name: info.shape for name, info in signatures["predict"].outputs.items()}
    assert shapes["probabilities"] == (-1, 2)
    assert shapes["class_ids"] == (-1, 1)


def test_csv_rows_allow_classification_and_regression(built: Built, tmp_path: Path) -> None:
    receiver = serving_input.csv(["w", "x"], built.transform)
    model = ExportedModel.load(write(built, tmp_path, receiver=receiver))
    assert {name: s.method_name.rpartition("/")[2] for name, s in model.signatures.items()} == {
        "serving_default": "classify",
        "classification": "classify",
        "regression": "regress",
        "predict": "predict",
    }
    answer = model.predict({"csv_row": ["a,1", "b,2"]})
    classified = model.predict({"inputs": ["a,1", "b,2"]}, "serving_default")
    np.testing.assert_array_equal(classified["scores"], answer["probabilities"])
    assert classified["classes"].tolist() == [["<=50K", ">50K"]] * 2
    np.testing.assert_array_equal(
        model.predict({"inputs": ["a,1", "b,2"]}, "regression")["outputs"], answer["logistic"]
    )


def test_inputs_can_be_handed_through(built: Built, tmp_path: Path) -> None:
    receiver = serving_input.raw_features(built.transform, defaults={"key": "nokey"})
    model = ExportedModel.load(write(built, tmp_path, receiver=receiver, forward=["key"]))
    assert model.predict({"w": ["a", "b"], "x": [1, 2]})["key"].tolist() == [["nokey"], ["nokey"]]
    assert model.predict({"w": ["a"], "x": [1], "key": ["é"]})["key"].tolist() == [["é"]]
    with pytest.raises(ExportError, match="the input 'id' is to be forwarded"):
        write(built, tmp_path, receiver=receiver, forward=["id"])


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_inputs_that_nothing_reads_are_named(
    built: Built, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    defaults = {"key": "nokey", "id": 1, "other": 1}
    if kind == "json":
        receiver = serving_input.json(built.transform, defaults=defaults)
    else:
        receiver = serving_input.csv(["w", "x", "key", "id", "other"], built.transform, defaults=defaults)
    write(built, tmp_path, receiver=receiver, forward=["key"])
    assert [record.getMessage() for record in caplog.records] == [
        "The export takes 'id', 'other', which the model does not read; name it in te.forward_features to return it."
    ]
    caplog.clear()
    write(built, tmp_path, receiver=receiver, forward=["key", "id", "other"])
    assert not caplog.records


class Area(nn.Module):
    """Transform that computes a feature from two raw numbers."""

    input_names = ("height", "width")

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"area": features["height"] * features["width"] * self.scale}


@pytest.mark.parametrize("receive", [serving_input.raw_features, serving_input.json])
def test_a_transform_of_raw_numbers_comes_first(tmp_path: Path, receive: Any) -> None:
    columns = [fc.numeric_column("area"), fc.numeric_column("width")]
    built = model_of(columns, [], RegressionHead())
    model = ExportedModel.load(write(built, tmp_path, receiver=receive(columns, transform=Area())))
    assert sorted(model.signatures["predict"].inputs) == ["height", "width"]
    expected = built.predict({"area": np.array([3.0], np.float32), "width": np.array([2.0], np.float32)})
    answer = model.predict({"height": [3.0], "width": [2.0]})
    np.testing.assert_allclose(answer["predictions"], expected["predictions"], atol=1e-6)


def test_a_transform_works_on_csv_rows(tmp_path: Path) -> None:
    columns = [fc.numeric_column("area"), fc.numeric_column("width")]
    built = model_of(columns, [], RegressionHead())
    receiver = serving_input.csv(["id", "width", "height"], columns, transform=Area())
    model = ExportedModel.load(write(built, tmp_path, receiver=receiver))
    expected = built.predict({"area": np.array([3.0], np.float32), "width": np.array([2.0], np.float32)})
    np.testing.assert_allclose(
        model.predict({"csv_row": ["17,2,3"]})["predictions"], expected["predictions"], atol=1e-6
    )
