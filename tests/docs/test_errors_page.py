"""The page about error messages quotes messages that the package really prints."""

from __future__ import annotations

import ast
import functools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR, StepLR

import torch_estimator as te
from tests.checkpoint.tensorflow_checkpoints import FOLDER
from tests.docs.pages import ROOT, blocks
from torch_estimator import feature_column as fc
from torch_estimator.batch_prediction.inputs import format_of
from torch_estimator.data import Dataset
from torch_estimator.registry import Registry

MESSAGES = [block.code.strip() for block in blocks(ROOT / "docs" / "errors.md") if block.language == "text"]

X = fc.numeric_column("x")
WORDS = fc.categorical_column_with_vocabulary_list("w", ["a", "b"])
ROWS = Dataset.from_arrays({"x": [1.0, 2.0, 3.0, 4.0]}, [0, 1, 0, 1])
CLUSTER = {"chief": ["localhost:1"], "worker": ["localhost:2"]}


def template(node: ast.AST) -> str:
    """Return a string of the source, with … in the place of values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) for value in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "…"


@functools.cache
def source_strings() -> str:
    """Return all strings of the package, each with … in the place of values."""
    found = []
    for file in sorted((ROOT / "torch_estimator").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                found.append(template(node))
    return "\n".join(found)


def test_no_message_stands_twice_on_the_page() -> None:
    assert len(set(MESSAGES)) == len(MESSAGES)


def batches() -> Dataset:
    return ROWS.batch(2)


def linear(**arguments: Any) -> te.Estimator:
    return te.LinearClassifier([X], **{"model_dir": "job", **arguments})


def module(net: nn.Module | None = None, **arguments: Any) -> te.Estimator:
    settings = {"loss": functional.mse_loss, "optimizer": "SGD", "columns": [X], "model_dir": "job", **arguments}
    return te.Estimator.from_module(net or nn.Linear(1, 1), **settings)


def csv(text: str, **arguments: Any) -> list[Any]:
    Path("rows.csv").write_text(text)
    return list(Dataset.from_csv("rows.csv", **arguments).batch(2))


def train(estimator: te.Estimator, features: Any, labels: Any = None) -> te.Estimator:
    dataset = Dataset.from_arrays(features, labels)
    return estimator.train(lambda: dataset.batch(2))


def export(estimator: te.Estimator, serving_input: Any = None, **arguments: Any) -> str:
    return estimator.export_saved_model("exports", serving_input or te.serving_input.raw_features([X]), **arguments)


def penalty_of_the_given_module() -> None:
    net = nn.Linear(1, 1)
    module(net, loss=lambda outputs, labels: outputs.sum() + net.weight.square().sum()).train(batches)


def label_among_the_features() -> None:
    linear().train(lambda: Dataset.from_arrays({"x": [1.0], "y": [0]}).batch(1))


def other_model() -> None:
    linear(model_dir="job").train(batches, steps=1)
    train(te.LinearClassifier([X, WORDS], model_dir="job"), {"x": [1.0], "w": ["a"]}, [1])


def other_optimizer() -> None:
    linear(model_dir="job").train(batches, steps=1)
    linear(model_dir="job", optimizer=te.optim.Adam()).train(batches, steps=1)


def warm_start() -> None:
    linear(model_dir="old").train(batches, steps=1)
    train(te.LinearClassifier([X, WORDS], model_dir="new", warm_start_from="old"), {"x": [1.0], "w": ["a"]}, [1])


def tensorflow_checkpoint() -> None:
    Path("job").mkdir()
    Path("job", "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1"\n')
    linear(model_dir="job").train(batches)


def damaged_checkpoint() -> None:
    linear(model_dir="job").train(batches, steps=1)
    file = Path("job", "model.ckpt-1", "variables.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    linear(model_dir="job").evaluate(batches)


def two_trainings() -> None:
    class TrainInside(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            linear(model_dir="job").train(batches)

    linear(model_dir="job").train(batches, hooks=[TrainInside()])


def early_stopping_without_the_metric() -> None:
    estimator = linear(model_dir="job").train(batches, steps=1)
    estimator.evaluate(batches)
    hook = te.stop_if_no_decrease_hook(estimator, "rmse", 10, run_every_steps=1)
    estimator.train(batches, hooks=[hook])


def metric_of_several_shapes() -> None:
    pairs = [(np.ones((2, width), "float32"), np.ones((2, width), "float32")) for width in (2, 3)]
    metric = {"sum": lambda labels, predictions: predictions["output"].sum()}
    module(nn.Identity(), columns=None, optimizer=None, metrics=metric).evaluate(lambda: iter(pairs))


class Branching(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs if float(inputs.detach().sum()) > 0 else -inputs


def module_that_branches() -> None:
    export(module(nn.Sequential(nn.Linear(1, 1), Branching())).train(batches, steps=1))


def too_few_inputs() -> None:
    export(train(te.LinearClassifier([X, fc.numeric_column("y")], "job"), {"x": [1.0], "y": [1.0]}, [1]))


def key_without_input() -> None:
    export(te.forward_features(linear(), "key").train(batches, steps=1))


def tfrecord(feature: Any, **columns: Any) -> None:
    te.data.write_tfrecord("rows.tfrecord", columns)
    list(Dataset.from_tfrecord("rows.tfrecord", schema={"x": feature}).batch(2))


def text_as_tfrecord() -> None:
    Path("rows.tfrecord").write_text("x,y\n1.0,2.0\n" * 10)
    list(Dataset.from_tfrecord("rows.tfrecord", schema={"x": te.data.FixedLenFeature([], "float32")}).batch(2))


def same_version_twice() -> None:
    registry = Registry("registry")
    registry.create_model("model")
    path = export(linear().train(batches, steps=1))
    for _ in range(2):
        registry.create_version("model", 1, path)


def exported() -> te.ExportedModel:
    return te.ExportedModel.load(export(linear().train(batches, steps=1)))


def cluster_without_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    of_workers = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(of_workers))
    te.RunConfig()


def cluster_config(monkeypatch: pytest.MonkeyPatch, **more: list[str]) -> None:
    config = {"cluster": {**CLUSTER, **more}, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def broken_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{cluster: {}}")
    te.RunConfig()


def cluster_without_model_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_config(monkeypatch)
    linear(model_dir=None)


def servers_beside_a_strategy_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_config(monkeypatch, ps=["localhost:3"])
    te.RunConfig(train_distribute=te.distribute.MultiWorkerMirroredStrategy())


def world_without_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    te.RunConfig()


# By the beginning of the message on the page. The first ten are those that people who ported programs met most.
PROVOKED: dict[str, Callable[..., object]] = {
    "prefetch's count": lambda: ROWS.prefetch(-2),
    "network columns must be": lambda: te.DNNClassifier([4], [WORDS]),
    "te.feature_column.input_layer": lambda: fc.input_layer({}, [X]),
    "RunConfig has no setting": lambda: te.RunConfig(session_config=None),
    "model_fn may take": lambda: te.Estimator(lambda features, labels, mode: None),
    "….… would never be called": lambda: type("Mine", (te.Hook,), {"before_run": lambda self, context: None}),
    "… compares each with each": lambda: module(loss=lambda out, labels: (out - labels).square().mean()).train(batches),
    "labels are strings": lambda: train(linear(), {"x": [1.0, 2.0]}, ["no", "yes"]),
    "No file matches": lambda: list(Dataset.from_csv("*.csv").batch(2)),
    "column … is not in": lambda: csv("a,b\n1,2\n", label="y"),
    "… is not a number": lambda: csv("a,b\n1,2\nx,3\n", column_types={"a": "float32"}),
    "… is not a finite number": lambda: csv("a,b\nnan,2\n", column_types={"a": "float32"}),
    "the value is missing": lambda: csv("a,b\n1,2\n,3\n", column_types={"a": "float32"}),
    "… fields, but": lambda: csv("a,b\n1,2\n1,2,3\n"),
    "the Dataset has no batch size": lambda: linear().train(lambda: ROWS),
    "shuffle mixes rows": lambda: batches().shuffle(3),
    "the function given to map": lambda: list(ROWS.map(lambda x, y: ({"x": x["x"][:1]}, y[:1])).batch(2)),
    "input_fn must be callable": lambda: te.TrainSpec("train.csv"),  # type: ignore[arg-type]
    "input_fn may take": lambda: linear().train(lambda batch_size: ROWS.batch(batch_size)),
    "input_fn must return": lambda: linear().train(lambda: None),
    "The input gives features only": label_among_the_features,
    "The input is an iterator": lambda: list(Dataset.from_iterable(iter([{"x": [1]}])).repeat(2)),
    "… holds strings": lambda: train(linear(), {"x": ["a", "b"]}, [0, 1]),
    "… holds numbers": lambda: train(
        te.LinearClassifier([fc.categorical_column_with_hash_bucket("x", 9)], "job"), {"x": [1.0]}, [0]
    ),
    "raw column … must have the shape": lambda: te.LinearClassifier([fc.numeric_column("x", 2)], "job").train(batches),
    "raw column … holds lists": lambda: train(
        te.LinearClassifier([fc.categorical_column_with_identity("x", 9)], "job"),
        {"x": pa.array([[1], [2, 3]])},
        [0, 1],
    ),
    "raw column … is read as": lambda: te.DNNLinearCombinedClassifier(
        linear_feature_columns=[fc.categorical_column_with_identity("x", 3)],
        dnn_feature_columns=[X],
        dnn_hidden_units=[2],
    ),
    "hash bucket column": lambda: fc.crossed_column([fc.categorical_column_with_hash_bucket("x", 9), "y"], 10),
    "An EstimatorSpec for training": lambda: te.EstimatorSpec(mode="train", module=nn.Linear(1, 1), loss=nn.MSELoss()),
    "An optimizer must be given without": lambda: linear(
        optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    ),
    "A schedule must be made": lambda: linear(
        optimizer=StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), 10)
    ),
    "Unknown optimizer": lambda: linear(optimizer="Momentum"),
    "hooks must be instances": lambda: linear().train(batches, hooks=[te.Hook]),  # type: ignore[list-item]
    "… reads …, but from_module": penalty_of_the_given_module,
    "… takes scores": lambda: train(
        module(nn.Linear(1, 3), loss=functional.cross_entropy), {"x": [1.0, 2.0]}, [[0, 1], [1, 2]]
    ),
    "The head takes logits": lambda: module(nn.Linear(1, 2), loss=None, head=te.BinaryClassHead()).train(batches),
    "… does not take the": lambda: module(nn.Linear(3, 1)).train(batches),
    "unknown label": lambda: train(linear(label_vocabulary=["no", "yes"]), {"x": [1.0, 2.0]}, ["no", "maybe"]),
    "The loss became": lambda: module(loss=lambda outputs, labels: outputs.sum() * float("nan")).train(batches),
    "The loss does not depend": lambda: module(loss=lambda outputs, labels: outputs.detach().sum()).train(batches),
    "The schedule … has no further step": lambda: linear(
        optimizer=lambda named: OneCycleLR(te.optim.Adam(named), 0.1, total_steps=1, cycle_momentum=False)
    ).train(batches),
    "model_dir … is in use": two_trainings,
    "Early stopping looks for": early_stopping_without_the_metric,
    "A metric function reads": metric_of_several_shapes,
    "There is no checkpoint": lambda: linear().predict(batches),
    "checkpoint … was made by another": other_model,
    "checkpoint … was trained with": other_optimizer,
    "… was written by TensorFlow": tensorflow_checkpoint,
    "… is damaged:": damaged_checkpoint,
    "checkpoint … cannot warm-start": warm_start,
    "TF_CONFIG is not JSON": broken_tf_config,
    "TF_CONFIG['cluster'] must name": cluster_without_chief,
    "… names a cluster": cluster_without_model_dir,
    "train_distribute is a": servers_beside_a_strategy_in_step,
    "… is …, but … … not set": world_without_address,
    "the serving input must be made": lambda: export(linear().train(batches, steps=1), lambda: {"x": 1}),
    "the model reads": too_few_inputs,
    "the input … is to be forwarded": key_without_input,
    "… cannot be exported to ONNX": module_that_branches,
    "there is no export in": lambda: te.ExportedModel.load("nothing"),
    "Input … was missing": lambda: exported().predict({}),
    "Unexpected tensor name": lambda: exported().predict({"x": [1.0], "y": [1.0]}),
    "Input … takes": lambda: exported().predict({"x": ["a"]}),
    "the prediction is NaN": lambda: exported().predict({"x": [math.nan]}),
    "no record begins here": text_as_tfrecord,
    "the feature is missing": lambda: tfrecord(te.data.FixedLenFeature([], "float32"), y=[1.0]),
    "the values are": lambda: tfrecord(te.data.FixedLenFeature([], "int64"), x=[1.0]),
    "there are … values, but the schema": lambda: tfrecord(te.data.FixedLenFeature([], "float32"), x=[[1.0, 2.0]]),
    "there is no checkpoint of TensorFlow": lambda: te.import_tf_checkpoint("nothing", nn.Linear(1, 1), {}),
    "… does not fit the module": lambda: te.import_tf_checkpoint(
        FOLDER / "own_v1", nn.ModuleDict({"hidden": nn.Linear(108, 5)}), {"dense": "hidden"}
    ),
    "the name of … does not tell": lambda: format_of(["rows.txt"]),
    "there is no model": lambda: Registry("registry").read_model("model"),
    "version … of the model … exists already": same_version_twice,
}


def test_the_fixed_words_of_the_other_messages_are_in_the_source() -> None:
    others = [message for message in MESSAGES if not message.startswith(tuple(PROVOKED))]
    assert others
    for message in others:
        parts = [part.strip(" .:") for part in message.split("…")]
        assert max(map(len, parts)) > 12
        for part in parts:
            assert part in source_strings(), part


@pytest.mark.parametrize("beginning", PROVOKED)
def test_the_message_is_printed_as_the_page_says(
    beginning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (message,) = [message for message in MESSAGES if message.startswith(beginning)]
    provoke = PROVOKED[beginning]
    arguments = [monkeypatch] if provoke.__code__.co_argcount else []
    with pytest.raises(te.UserError) as raised:
        provoke(*arguments)
    assert re.search(pattern(message), str(raised.value), re.DOTALL), raised.value


def pattern(message: str) -> str:
    """Return a regular expression for what is printed: a place may come before it, … may be anything."""
    words = (re.escape(part) for part in message.rstrip(".").split("…"))
    return "(^|: |, |[a-z] )" + ".+".join(words) + r"[^\n]*\Z"
