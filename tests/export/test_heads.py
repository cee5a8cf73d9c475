"""Exports of heads, above all of several heads on one model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.export.models import model_of
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.cli import main
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.writer import write_export
from torch_estimator.feature_column.raw_feature import RawFeature
from torch_estimator.heads import BinaryClassHead, MultiHead, MultiLabelHead, PoissonRegressionHead

BUYS = BinaryClassHead(name="buys", label_vocabulary=["no", "yes"])
TAGS = MultiLabelHead(3, name="tags")
VISITS = PoissonRegressionHead(name="visits")
HEAD = MultiHead([BUYS, TAGS, VISITS])
COLUMNS = [fc.categorical_column_with_hash_bucket("word", 10), fc.numeric_column("x")]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an export of a model with several heads whose input is CSV."""
    built = model_of(COLUMNS, [], head=HEAD)
    return write_export(
        tmp_path_factory.mktemp("export"),
        module=built.module,
        transform=built.transform,
        head=HEAD,
        receiver=serving_input.csv(["word", "x"], built.transform),
    )


def test_every_signature_of_every_head_can_be_called(export: str) -> None:
    model = ExportedModel.load(export)
    assert list(model.signatures) == list(HEAD.signatures())
    rows = ["a,1", "b,-2", ",0"]
    everything = model.predict({"csv_row": rows})
    assert list(everything) == ["/".join(key) for key in HEAD.prediction_keys]
    for name, signature in HEAD.signatures().items():
        exported = model.signatures[name]
        assert exported.method_name == f"tensorflow/serving/{signature.method}"
        given = "csv_row" if signature.method == "predict" else "inputs"
        outputs = model.predict({given: rows}, name)
        assert list(outputs) == list(signature.outputs)
        for output, key in signature.outputs.items():
            np.testing.assert_array_equal(outputs[output], everything[key])


def test_forwarded_inputs_are_in_every_signature_that_predicts(tmp_path: Path) -> None:
    built = model_of(COLUMNS, [], head=HEAD)
    path = write_export(
        tmp_path,
        module=built.module,
        transform=built.transform,
        head=HEAD,
        receiver=serving_input.raw_features(built.transform, defaults={"key": "none"}),
        forward=["key"],
    )
    model = ExportedModel.load(path)
    assert list(model.signatures) == list(HEAD.raw_signatures())
    for name in model.signatures:
        outputs = model.predict({"word": ["a"], "x": [1.0], "key": ["7"]}, name)
        assert outputs["key"].tolist() == [["7"]]


def test_the_command_line_shows_and_runs_them(export: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["show", "--dir", export, "--signature_def", "tags"])
    assert capsys.readouterr().out == (
        "The given SavedModel SignatureDef contains the following input(s):\n"
        "  inputs['inputs'] tensor_info:\n"
        "      dtype: DT_STRING\n"
        "      shape: (-1)\n"
        "      name: csv_row\n"
        "The given SavedModel SignatureDef contains the following output(s):\n"
        "  outputs['classes'] tensor_info:\n"
        "      dtype: DT_STRING\n"
        "      shape: (-1, 3)\n"
        "      name: tags/classes\n"
        "  outputs['scores'] tensor_info:\n"
        "      dtype: DT_FLOAT\n"
        "      shape: (-1, 3)\n"
        "      name: tags/probabilities\n"
        "Method name is: tensorflow/serving/classify\n"
    )
    main(["show", "--dir", export])
    shown = capsys.readouterr().out
    assert all(f"signature_def['{name}']:" in shown for name in HEAD.signatures())

    (tmp_path / "rows.txt").write_text("a,1\nb,2\n")
    run = ["predict", "--model-dir", export, "--text-instances", str(tmp_path / "rows.txt"), "--format", "json"]
    main([*run, "--signature-name", "predict"])
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert [sorted(one) for one in predictions] == [sorted("/".join(key) for key in HEAD.prediction_keys)] * 2
    assert predictions[0]["tags/classes"] == ["0", "1", "2"]
    main(run)
    default = json.loads(capsys.readouterr().out)["predictions"]
    assert default[1]["scores"] == predictions[1]["buys/probabilities"]
    main([*run[:-2], "--signature-name", "visits/predict"])
    assert capsys.readouterr().out.split("\n")[0].split() == ["LOGITS", "PREDICTIONS"]


class Towers(nn.Module):
    """Module that returns logits by head, in another order than the heads, and an extra output."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(2, 4)
        self.tags = nn.Linear(4, 3)
        self.buys = nn.Linear(4, 1)

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        shared = torch.tanh(self.shared(features["x"]))
        return {"shared": shared, "tags": self.tags(shared), "buys": self.buys(shared)}


def test_a_module_may_give_its_logits_by_head(tmp_path: Path) -> None:
    module, head = Towers().eval(), MultiHead([BUYS, TAGS])
    receiver = serving_input.raw_features([RawFeature(key="x", dtype="float32", shape=(2,))])
    path = write_export(tmp_path, module=module, transform=None, head=head, receiver=receiver)
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    with torch.no_grad():
        numeric = head.predictions(module({"x": torch.from_numpy(x)}))
    ours = head.decode({key: value.numpy() for key, value in numeric.items()})
    theirs = ExportedModel.load(path).predict({"x": x})
    assert list(theirs) == ["/".join(key) for key in ours]
    for key, value in ours.items():
        if value.dtype == object:
            assert value.tolist() == theirs["/".join(key)].tolist()
        else:
            np.testing.assert_allclose(value, theirs["/".join(key)], atol=1e-6)
    assert isinstance(module({"x": torch.from_numpy(x)}), dict)
