"""Exports of modules that users wrote: inputs, outputs, and errors that name the failing part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torch_estimator import serving_input
from torch_estimator.data.feature_structure import Structure
from torch_estimator.errors import ExportError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.writer import write_export
from torch_estimator.feature_column import numeric_column
from torch_estimator.heads import MultiClassHead
from torch_estimator.heads.function_head import FunctionHead

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


class Through(nn.Module):
    """Model that applies a function after a layer, in a nested module."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), Apply(function))

    def forward(self, x: Tensor) -> Any:
        return self.body(x)


class Apply(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def export(
    base: Path,
    module: nn.Module,
    like: Any = X,
    predictions: Any = None,
    structure: Structure | None = None,
    receiver: serving_input.ServingInput | None = None,
) -> ExportedModel:
    path = write_export(
        base,
        module=module,
        transform=None,
        head=FunctionHead(None, predictions, None),
        receiver=receiver or serving_input.like(like),
        structure=structure,
    )
    return ExportedModel.load(path)


@pytest.mark.parametrize(
    "predictions",
    [
        lambda outputs: {"a": outputs[0], "b": outputs[1]},
        lambda outputs: {"half": outputs[0].half(), "small": (outputs[1] > 0).to(torch.uint8), "yes": outputs[1] > 0},
    ],
    ids=["two", "dtypes"],
)
def test_several_outputs_and_a_function_of_them(tmp_path: Path, predictions: Any) -> None:
    module = Through(lambda x: (x * 2, x.sum(1)))
    with torch.no_grad():
        expected = predictions(module(torch.from_numpy(X)))
    answer = export(tmp_path, module, predictions=predictions).predict({"features": X})
    assert list(answer) == list(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(answer[key], value.numpy(), atol=1e-5, rtol=1e-3 if key == "half" else 0)


def test_outputs_in_a_tuple_are_numbered(tmp_path: Path) -> None:
    answer = export(tmp_path, Through(lambda x: (x, x[:, 0]))).predict({"features": X})
    assert {key: value.shape for key, value in answer.items()} == {"output_0": (4, 3), "output_1": (4,)}


def test_outputs_in_a_dict_are_the_predictions(tmp_path: Path) -> None:
    answer = export(tmp_path, Through(lambda x: {"one": x, "two": x[:, 0]})).predict({"features": X})
    assert {key: value.shape for key, value in answer.items()} == {"one": (4, 3), "two": (4,)}


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-6), (torch.bfloat16, 0.05)])
def test_a_module_in_another_precision_is_exported_in_single_precision(
    tmp_path: Path, dtype: torch.dtype, close: float
) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.GELU(), nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 1, 1)).to(dtype)
    with torch.no_grad():
        expected = module(torch.from_numpy(X).to(dtype)).float().numpy()
    answer = export(tmp_path, module).predict({"features": X})["output"]
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, expected, atol=close)
    assert next(module.parameters()).dtype == dtype


def test_graphs_with_loops_and_branches(tmp_path: Path) -> None:
    module, ids = nn.EmbeddingBag(9, 3), np.array([[1, 2], [0, 8]])
    with torch.no_grad():
        expected = module(torch.from_numpy(ids)).numpy()
    np.testing.assert_allclose(export(tmp_path, module, ids).predict({"features": ids})["output"], expected, atol=1e-6)


def test_an_operator_that_onnxruntime_lacks_is_named_with_its_module(tmp_path: Path) -> None:
    module = Through(lambda x: nn.functional.conv1d(x.double().unsqueeze(1), torch.ones(1, 1, 2).double()).float())
    with pytest.raises(ExportError) as raised:
        export(tmp_path, module)
    assert str(raised.value) == (
        "onnxruntime has no Conv for the dtypes that the model gives it in its module body.1; compute it in float32 "
        "there."
    )


def test_inputs_are_matched_by_name_in_any_order(tmp_path: Path) -> None:
    module = Apply(lambda features: features["a"] - features["b"].float())
    like = {"b": np.ones(2, np.uint8), "a": X[:2, 0], "unused": np.array(["x", "y"])}
    answer = export(tmp_path, module, like).predict({"a": [3.0], "b": [1], "unused": ["z"]})
    np.testing.assert_array_equal(answer["output"], [2.0])


def test_the_structure_of_training_features_overrides_the_serving_input(tmp_path: Path) -> None:
    structure = {"dict": {"x": {"dtype": "int32", "shape": []}}}
    receiver = serving_input.raw_features([numeric_column("x")])
    seen = []

    def look(features: Any) -> Tensor:
        seen.append((features["x"].dim(), features["x"].dtype))
        return features["x"] * 2

    answer = export(tmp_path, Apply(look), structure=structure, receiver=receiver).predict({"x": [2.0]})
    assert set(seen) == {(1, torch.int32)}
    assert answer["output"].tolist() == [4]


def test_features_without_names_take_the_inputs_in_order(tmp_path: Path) -> None:
    receiver = serving_input.raw_features([numeric_column("first"), numeric_column("second")])
    leaf = {"dtype": "float32", "shape": [1]}
    module = Apply(lambda pair: pair[0] - pair[1])
    answer = export(tmp_path, module, structure={"tuple": [leaf, leaf]}, receiver=receiver)
    assert answer.predict({"first": [5.0], "second": [3.0]})["output"].tolist() == [[2.0]]


def test_too_few_inputs_are_one_sentence(tmp_path: Path) -> None:
    receiver = serving_input.raw_features([numeric_column("first")])
    leaf = {"dtype": "float32", "shape": [1]}
    with pytest.raises(
        ExportError, match=r"^the model takes 2 tensors without names, but the serving input gives 1 \("
    ):
        export(tmp_path, Apply(sum), structure={"tuple": [leaf, leaf]}, receiver=receiver)


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (torch.special.bessel_j0, "aten.special_bessel_j0"),
        (lambda x: torch.linalg.svdvals(x.unsqueeze(2)), "aten._linalg_svd"),
    ],
)
def test_an_operator_without_onnx_form_is_named_with_its_module(tmp_path: Path, function: Any, operator: str) -> None:
    with pytest.raises(ExportError) as raised:
        export(tmp_path, Through(function))
    assert str(raised.value) == (
        f"the model Through cannot be exported to ONNX: the operator {operator} in its module body.1 (Apply) "
        "has no ONNX form; use other operators there."
    )


def _two_lines(x: Tensor) -> Tensor:
    raise ValueError("This fails.\nColumns are missing: 3.\n\nA hint.")


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (
            Branch(),
            r": `if x.sum\(\) > 0:` in its module 0 \(Branch\) fails with \w+: Could not guard on data-dependent "
            r".*; write it with torch operations whose flow does not depend on the values\.$",
        ),
        (
            nn.Linear(4, 1),
            r": `return F.linear\(input, self.weight, self.bias\)` in its module 0 \(Linear\) fails with "
            r"RuntimeError: [^;]*\.$",
        ),
        (
            Apply(_two_lines),
            r"in its module 0 \(Apply\) fails with ValueError: This fails. Columns are missing: 3\.$",
        ),
    ],
)
def test_a_line_that_cannot_be_traced_is_named_with_its_module(tmp_path: Path, inner: nn.Module, message: str) -> None:
    with pytest.raises(ExportError, match=message) as raised:
        export(tmp_path, nn.Sequential(inner))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: x.sum(),
            r"^the prediction 'output' must have one row per example to be exported, but is float32 \[\]",
        ),
        (lambda x: torch.ones(4, 2), r"'output' must have one row per example to be exported, but is float32 \[4, 2\]"),
        (
            lambda x: x @ x.T,
            r"^the prediction 'output' must have the same shape for every example, but is float32 \[N, ",
        ),
        (lambda x: {"a": None}, r"^the prediction 'a' must be a tensor to be exported, but is NoneType\.$"),
    ],
)
def test_predictions_that_an_export_cannot_give_are_one_sentence(tmp_path: Path, function: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export(tmp_path, Apply(function))


def test_a_head_needs_logits(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"^the model Apply must give logits, float32 \[N, width\], .* but gave tuple"
    ):
        write_export(
            tmp_path,
            module=Apply(lambda x: (x, x)),
            transform=None,
            head=MultiClassHead(3),
            receiver=serving_input.like(X),
        )
