from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torch_estimator import feature_column as fc
from torch_estimator.errors import InvalidTypeError

COLOR = fc.categorical_column_with_vocabulary_list("color", ["red", "green", "blue"])
PAIR = fc.bucketized_column(fc.numeric_column("pair", shape=2), [0.0, 1.0])


def run(columns: list[Any], raw: dict[str, Any]) -> tuple[fc.InputLayer, torch.Tensor]:
    transform = fc.FeatureTransform((), columns)
    assert transform.dnn is not None
    layer = fc.InputLayer(transform.dnn)
    output = layer({key: torch.from_numpy(value) for key, value in transform(raw).items()})
    assert output.shape[1] == layer.width
    return layer, output


def count_up(rows: torch.Tensor) -> None:
    """Fill row i with i + 1."""
    rows.copy_(torch.arange(1, len(rows) + 1).unsqueeze(1).expand_as(rows))


def test_columns_are_concatenated_in_bytewise_name_order() -> None:
    columns = [
        fc.numeric_column("b"),
        fc.indicator_column(COLOR),
        fc.numeric_column("a", shape=2),
        fc.embedding_column(COLOR, 2, initializer=count_up),
        fc.bucketized_column(fc.numeric_column("Z"), [0.0]),
    ]
    raw = {
        "b": np.array([7.0]),
        "color": np.array(["blue"]),
        "a": np.array([[8.0, 9.0]]),
        "Z": np.array([5.0]),
    }
    _, output = run(columns, raw)
    assert output.tolist() == [[0, 1, 8, 9, 7, 3, 3, 0, 0, 1]]


def test_an_indicator_counts_and_is_zero_without_an_id() -> None:
    _, output = run([fc.indicator_column(COLOR)], {"color": np.array(["", "other", "red"])})
    assert output.tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]
    _, output = run([PAIR], {"pair": np.array([[0.5, 0.5]])})
    assert output.tolist() == [[0, 1, 0, 0, 1, 0]]
    cross = fc.indicator_column(fc.crossed_column([PAIR, "color"], 1))
    _, output = run([cross], {"pair": np.array([[0.5, 0.5]]), "color": np.array([""])})
    assert output.tolist() == [[2]]


@pytest.mark.parametrize(("combiner", "divisor"), [("sum", 1.0), ("mean", 2.0), ("sqrtn", math.sqrt(2))])
def test_several_ids_are_combined(combiner: Any, divisor: float) -> None:
    columns = [
        fc.embedding_column(PAIR, 2, combiner=combiner, initializer=count_up),
        fc.embedding_column(COLOR, 2, combiner=combiner, initializer=count_up),
    ]
    _, output = run(columns, {"pair": np.array([[0.5, 2.0]] * 2), "color": np.array(["green", ""])})
    pooled = (2 + 6) / divisor
    assert output.tolist() == [pytest.approx([2, 2, pooled, pooled]), pytest.approx([0, 0, pooled, pooled])]


def test_a_row_without_any_id_pools_to_zeros() -> None:
    cross = fc.crossed_column([PAIR, COLOR], 50)
    _, output = run([fc.embedding_column(cross, 3)], {"pair": np.array([[0.5, 2.0]]), "color": np.array([""])})
    assert output.tolist() == [[0, 0, 0]]


def test_variables_have_the_names_of_tensorflow_and_frozen_ones_do_not_train() -> None:
    columns = [
        fc.embedding_column(COLOR, 2),
        fc.embedding_column(PAIR, 2, trainable=False),
        fc.embedding_column(fc.crossed_column(["color", PAIR], 9), 2),
    ]
    layer, _ = run(columns, {"color": np.array(["red"]), "pair": np.zeros((1, 2))})
    names = {
        piece.name.rpartition("input_layer/")[2]: table.weight.requires_grad
        for table in layer.modules()
        if isinstance(table, fc.Table)
        for piece in table.pieces
    }
    assert names == {
        "pair_bucketized_embedding/embedding_weights": False,
        "color_embedding/embedding_weights": True,
        "color_X_pair_bucketized_embedding/embedding_weights": True,
    }


class _WideAndDeep(nn.Module):
    def __init__(self, transform: fc.FeatureTransform) -> None:
        super().__init__()
        assert transform.linear is not None
        assert transform.dnn is not None
        self.linear = fc.LinearModel(transform.linear, 1)
        self.input = fc.InputLayer(transform.dnn)
        self.logits = nn.Linear(self.input.width, 1)

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.linear(features) + self.logits(self.input(features))
        return logits


@pytest.fixture
def autograd_inside_compiled_functions() -> Iterator[None]:
    torch.compiler.reset()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield
    torch.compiler.reset()


@pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "trace_autograd_ops"),
    reason="this torch cannot trace torch.autograd.grad inside a compiled function",
)
# Inductor imports a module of torch that still uses torch.jit.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.usefixtures("autograd_inside_compiled_functions")
def test_forward_and_gradients_of_touched_rows_compile_as_one_function() -> None:
    job = fc.categorical_column_with_hash_bucket("job", 50)
    wide = [job, PAIR, fc.crossed_column([COLOR, "job"], 1000), fc.numeric_column("x")]
    deep = [
        fc.embedding_column(job, 4),
        fc.embedding_column(PAIR, 4, combiner="sqrtn"),
        fc.embedding_column(COLOR, 2),
        fc.indicator_column(COLOR),
        fc.numeric_column("x"),
    ]
    transform = fc.FeatureTransform(wide, deep)
    model = _WideAndDeep(transform)
    tables = [module for module in model.modules() if isinstance(module, fc.Table)]
    dense = [p for p in model.parameters() if all(p is not table.weight for table in tables)]

    def step(features: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        gathered: list[tuple[fc.Table, torch.Tensor, torch.Tensor]] = []
        for table in tables:
            table.recorder = gathered
        loss = (model(features) - 1).square().sum()
        for table in tables:
            table.recorder = None
        gradients = torch.autograd.grad(loss, [*dense, *(rows for _, _, rows in gathered)])
        return (loss.detach(), *gradients, *(ids for _, ids, _ in gathered))

    compiled = torch.compile(step, fullgraph=True)
    generator = np.random.default_rng(0)
    for _ in range(2):
        raw = {
            "job": generator.choice(["a", "b", ""], 8),
            "color": generator.choice(["red", "green", ""], 8),
            "pair": generator.normal(size=(8, 2)),
            "x": generator.normal(size=8),
        }
        features = {key: torch.from_numpy(value) for key, value in transform(raw).items()}
        for eager, fused in zip(step(features), compiled(features), strict=True):
            torch.testing.assert_close(fused, eager)


@pytest.mark.parametrize("name", ["input_layer", "linear_model"])
def test_the_functions_of_tensorflow_name_their_replacement(name: str) -> None:
    layer = {"input_layer": "DenseFeatures", "linear_model": "LinearModel"}[name]
    with pytest.raises(InvalidTypeError, match=rf"write self.{name} = te.feature_column.{layer}\(columns\) in your"):
        getattr(fc, name)({"x": [1.0]}, [fc.numeric_column("x")])
