"""Dropout, batch norm and activations of the premade models, from training to export."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.line_jobs import assert_same_variables
from torch_estimator import feature_column as fc
from torch_estimator.networks import BatchNorm, dropout

X = fc.numeric_column("x")
CITY = fc.categorical_column_with_vocabulary_list("city", ["Oslo", "Rome", "Lima"])


def people(rows: int = 60, batch: int = 10) -> te.data.Dataset:
    random = np.random.default_rng(5)
    city = random.choice(["Oslo", "Rome", "Lima"], rows).astype(object)
    x = random.uniform(-1, 1, rows).astype(np.float32)
    labels = ((city == "Rome") ^ (x > 0.5)).astype(np.int64)
    return te.data.Dataset.from_arrays({"city": city, "x": x}, labels).batch(batch)


def network(model_dir: object, **options: Any) -> te.Estimator:
    return te.DNNLinearCombinedClassifier(
        str(model_dir),
        linear_feature_columns=[CITY],
        dnn_feature_columns=[fc.embedding_column(CITY, 3), X],
        dnn_hidden_units=[6, 4],
        dnn_optimizer=te.optim.Adam(lr=0.01),
        config=te.RunConfig(random_seed=3, save_checkpoints_steps=1000),
        **options,
    )


def export_of(estimator: te.Estimator, path: Path) -> te.ExportedModel:
    return te.ExportedModel.load(estimator.export_saved_model(str(path), te.serving_input.raw_features([CITY, X])))


def assert_export_predicts_the_same(estimator: te.Estimator, path: Path) -> None:
    exported = export_of(estimator, path)
    for ours, (features, _) in zip(estimator.predict(people, yield_single_examples=False), people(), strict=True):
        np.testing.assert_allclose(exported.predict(features)["logits"], ours["logits"], atol=1e-5, rtol=1e-5)


class Swish(nn.Module):
    """User-defined activation with a trained parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * torch.sigmoid(self.beta * inputs)


ACTIVATIONS = {
    "function": torch.tanh,
    "functional": nn.functional.gelu,
    "partial": partial(nn.functional.leaky_relu, negative_slope=0.2),
    "lambda": lambda inputs: inputs.clamp(min=0.0) ** 2,
    "module": nn.ELU(),
    "sequence": nn.Sequential(nn.Softplus(), nn.Hardtanh()),
    "module with parameters": nn.PReLU(),
    "module of the user's": Swish(),
    "random in training": nn.Sequential(nn.ReLU(), nn.Dropout(0.3)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_any_activation_is_trained_resumed_and_exported(name: str, tmp_path: Path) -> None:
    options = {"dnn_activation_fn": ACTIVATIONS[name]}
    whole = network(tmp_path / "whole", **options).train(lambda: people().repeat(), steps=12)
    network(tmp_path / "resumed", **options).train(lambda: people().repeat(), steps=5)
    resumed = network(tmp_path / "resumed", **options).train(lambda: people().repeat(), steps=7)
    assert_same_variables(resumed, whole)
    assert resumed.evaluate(people) == whole.evaluate(people)
    assert_export_predicts_the_same(whole, tmp_path / "export")


@pytest.mark.parametrize(("activation", "variable"), [(nn.PReLU(), "weight"), (Swish(), "beta")])
def test_parameters_of_an_activation_are_trained_and_the_given_module_is_left_alone(
    activation: nn.Module, variable: str, tmp_path: Path
) -> None:
    start = {name: value.clone() for name, value in activation.state_dict().items()}
    estimator = network(tmp_path, dnn_activation_fn=activation).train(people)
    assert estimator.get_variable_value(f"dnn/activation_fn/{variable}") != start[variable].numpy()
    estimator.evaluate(people)
    assert activation.training
    assert all(torch.equal(value, start[name]) for name, value in activation.state_dict().items())


def test_dropout_and_batch_norm_resume_bit_for_bit_through_evaluations(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dnn_dropout": 0.4, "batch_norm": True}
    whole = network(tmp_path / "whole", **options).train(lambda: people().repeat(), steps=10)
    network(tmp_path / "resumed", **options).train(lambda: people().repeat(), steps=4).evaluate(people)
    resumed = network(tmp_path / "resumed", **options).train(lambda: people().repeat(), steps=6)
    assert_same_variables(resumed, whole)
    assert "dnn/batchnorm_1/running_var" in resumed.get_variable_names()
    assert_export_predicts_the_same(resumed, tmp_path / "export")


def test_evaluation_and_prediction_see_a_row_the_same_in_any_company(tmp_path: Path) -> None:
    estimator = network(tmp_path, dnn_dropout=0.4, batch_norm=True).train(lambda: people().repeat(), steps=30)
    logits = [
        [float(row["logits"][0]) for row in estimator.predict(lambda batch=batch: people(batch=batch))]
        for batch in (1, 7, 60)
    ]
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(logits[0], logits[2], rtol=1e-5, atol=1e-6)


def test_batch_norm_trains_on_a_batch_of_one_row(tmp_path: Path) -> None:
    estimator = network(tmp_path, batch_norm=True).train(lambda: people(21, batch=10))
    assert estimator.get_variable_value("global_step") == 3
    one_by_one = network(tmp_path / "one", batch_norm=True).train(lambda: people(4, batch=1))
    for each in (estimator, one_by_one):
        assert all(np.isfinite(each.get_variable_value(name)).all() for name in each.get_variable_names())
        assert np.isfinite(each.evaluate(people)["loss"])


def test_batch_norm_follows_tensorflows_formula() -> None:
    torch.manual_seed(0)
    norm = BatchNorm(3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    mean, variance = np.zeros(3), np.ones(3)
    for rows in (5, 1, 64):
        x = torch.randn(rows, 3) * 4 + 2
        numbers = x.double().numpy()
        expected = (numbers - numbers.mean(0)) / np.sqrt(numbers.var(0) + 0.001)
        expected = expected * norm.weight.detach().numpy() + norm.bias.detach().numpy()
        np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)
        mean = 0.999 * mean + 0.001 * numbers.mean(0)
        variance = 0.999 * variance + 0.001 * numbers.var(0)
    np.testing.assert_allclose(norm.running_mean.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(norm.running_var.numpy(), variance, rtol=1e-5)
    norm.eval()
    expected = (x.numpy() - mean) / np.sqrt(variance + 0.001)
    expected = expected * norm.weight.detach().numpy() + norm.bias.detach().numpy()
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_has_torchs_gradients() -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(3), nn.BatchNorm1d(3, eps=0.001)
    x = torch.randn(8, 3)
    gradients = []
    for norm in (ours, theirs):
        inputs = x.clone().requires_grad_()
        (norm(inputs) ** 3).sum().backward()
        gradients.append((inputs.grad, norm.weight.grad, norm.bias.grad))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.float32), (8, torch.float32), (8, torch.bfloat16)])
def test_batch_norm_compiles_whole(rows: int, dtype: torch.dtype) -> None:
    eager, compiled = BatchNorm(3), BatchNorm(3)
    call = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    x = torch.randn(rows, 3).to(dtype)
    torch.testing.assert_close(call(x), eager(x))
    torch.testing.assert_close(compiled.running_var, eager.running_var)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_its_share_and_scales_the_rest(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = torch.full((200, 500), 2.0, dtype=dtype, requires_grad=True)
    outputs = dropout(inputs, 0.2)
    assert outputs.dtype == dtype
    assert set(outputs.unique().tolist()) == {0.0, 2.5}
    assert float((outputs == 0).float().mean()) == pytest.approx(0.2, abs=0.01)
    outputs.sum().backward()
    torch.testing.assert_close(inputs.grad, outputs.detach() / 2)
    assert not torch.equal(dropout(inputs, 0.2), outputs)
