"""Networks of TensorFlow's own kinds of layers compute the same as modules of torch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.checkpoint import tensorflow_checkpoints as made
from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.tensor_bundle import TensorBundle

EXPECTED = json.loads((made.FOLDER / "expected.json").read_text())
V1 = {"conv2d": "conv", "batch_normalization": "norm", "dense": "hidden", "dense_1": "logits"}
KERAS = {rf"model/layer_with_weights-{place}": name for place, name in enumerate(("conv", "norm", "hidden", "logits"))}
IMAGES = torch.from_numpy(made.images()).permute(0, 3, 1, 2)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, eps=1e-3)
        self.hidden, self.logits = nn.Linear(108, 5), nn.Linear(5, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = self.norm(torch.relu(self.conv(images))).permute(0, 2, 3, 1).flatten(1)
        return self.logits(torch.relu(self.hidden(flat)))


@pytest.mark.parametrize(("name", "mapping"), [("own_v1", V1), ("own_keras", KERAS)])
def test_a_network_computes_what_it_computed_in_tensorflow(name: str, mapping: dict[str, Any]) -> None:
    network = Network().eval()
    report = te.import_tf_checkpoint(made.FOLDER / name, network, mapping)
    np.testing.assert_allclose(network(IMAGES).detach(), EXPECTED[name], rtol=1e-5, atol=1e-6)
    assert len(report.matched) == 10 and not report.only_in_checkpoint and not report.only_in_module
    assert {one.target: one.change for one in report.matched if one.change} == {
        "conv.weight": "transposed",
        "hidden.weight": "transposed",
        "logits.weight": "transposed",
    }


def test_a_report_is_a_table_of_what_fits_and_what_does_not() -> None:
    module = nn.Sequential(nn.Linear(5, 5), nn.Linear(2, 1, bias=False))
    mapping = {"dense_1": "0", r"dense/.*|conv2d/.*|batch_normalization/[^g].*": None}
    report = te.import_tf_checkpoint(made.FOLDER / "own_v1", module, mapping, allow_unmatched=True)
    assert report.step == 9
    assert str(report).splitlines() == [
        "IN TENSORFLOW              IN THE MODULE  SHAPE",
        "dense_1/bias               0.bias         5",
        "dense_1/kernel             0.weight       5x5    transposed",
        "batch_normalization/gamma  -                     only in the checkpoint",
        "-                          1.weight              only in the module",
    ]


def test_a_function_converts_a_tensor() -> None:
    module = nn.Linear(5, 5)
    mapping = {"dense_1/kernel": ("weight", lambda kernel: 2 * kernel), "dense_1/bias": "bias", ".*": None}
    report = te.import_tf_checkpoint(made.FOLDER / "own_v1", module, mapping)
    kernel = TensorBundle(made.FOLDER / "own_v1")["dense_1/kernel"]
    assert torch.equal(module.weight, 2 * kernel)
    assert [one.change for one in report.matched] == ["", "converted"]


def test_columns_in_a_module_get_their_embeddings() -> None:
    columns = made.columns(fc, {"hash_function": "farmhash"})["deep"]
    layer = fc.InputLayer(fc.FeatureTransform(dnn_columns=columns).dnn)
    te.import_tf_checkpoint(made.FOLDER / "v1_partitioned", layer, allow_unmatched=True)
    name = "dnn/input_from_feature_columns/input_layer/job_embedding/embedding_weights"
    assert torch.equal(layer.tables[0].weight[:3], TensorBundle(made.FOLDER / "v1_partitioned")[name])


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({}, r"has no variable of the module: it has 'batch_normalization/beta', .* and 5 more, and the module 'conv"),
        ({"dense": "hidden"}, r"only in the checkpoint: 'batch_nor.*; only in the module: 'conv.weight', .*mapping"),
        ({"dense_1": "hidden", ".*": None}, r"'hidden.weight' \(\[5, 5\] from 'dense_1/kernel', \[5, 108\] in the"),
        (
            {"dense": "hiden"},
            r"mapping gives 'dense/bias' the name 'hiden.bias', .*; it has 'hidden.bias', 'conv.weight'",
        ),
        ({"dense(_1)?": "hidden"}, r"mapping gives 'hidden.bias' of the module the values of two variables"),
        ({"dense(": "hidden"}, r"the key 'dense\(', which is no regular expression: missing"),
        (
            {"dense": 3},
            r"mapping of 'dense' must be a name, a tuple of a name and a function of a tensor, or None, but",
        ),
        ({3: "dense"}, r"mapping must have regular expressions as keys, but got 3\."),
    ],
)
def test_mistakes_leave_the_module_unchanged(mapping: Any, message: str) -> None:
    network = Network()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(te.UserError, match=message):
        te.import_tf_checkpoint(made.FOLDER / "own_v1", network, mapping)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_a_warm_start_transposes_the_kernels_of_torchs_layers() -> None:
    settings = te.WarmStartSettings(
        made.FOLDER / "own_v1",
        vars_to_warm_start="logits",
        var_name_to_prev_var_name={"logits.weight": "dense_1/kernel", "logits.bias": "dense_1/bias"},
    )
    estimator = te.Estimator.from_module(
        Network(), loss=nn.MSELoss(), optimizer=te.optim.SGD(lr=0.0), warm_start_from=settings
    )
    estimator.train(lambda: te.data.Dataset.from_arrays(IMAGES.numpy(), np.zeros((4, 5), "float32")).batch(4))
    kernel = TensorBundle(made.FOLDER / "own_v1")["dense_1/kernel"].numpy()
    np.testing.assert_array_equal(estimator.get_variable_value("logits.weight"), kernel.T)
