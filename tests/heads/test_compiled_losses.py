"""Every head's loss is one graph, so that the whole training step can be compiled."""

import numpy as np
import pytest
import torch

from torch_estimator.heads import (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)


def scaled(labels, logits, features, loss_reduction):
    assert loss_reduction is not None
    return (labels - logits).abs() * features["scale"]


ROWS = 6
HEADS = {
    "binary": (BinaryClassHead(weight_column="w"), np.arange(ROWS) % 2),
    "multi-class": (MultiClassHead(3), np.arange(ROWS) % 3),
    "multi-label": (MultiLabelHead(3, loss_reduction="weighted_mean"), np.eye(ROWS, 3, dtype=int)),
    "regression": (RegressionHead(2, loss_reduction="sum"), np.ones((ROWS, 2))),
    "regression with a loss_fn": (RegressionHead(loss_fn=scaled), np.ones(ROWS)),
    "poisson": (PoissonRegressionHead(loss_reduction="sum_by_nonzero_weights"), np.arange(ROWS)),
    "logistic regression": (LogisticRegressionHead(), np.linspace(0, 1, ROWS)),
    "multi-head": (
        MultiHead([BinaryClassHead(name="a"), RegressionHead(name="b", loss_fn=scaled)], [1, 2]),
        {"a": np.arange(ROWS) % 2, "b": np.ones(ROWS)},
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_loss_compiles_without_a_break(name):
    head, raw = HEADS[name]
    prepared = head.prepare_labels(raw)
    if isinstance(prepared, dict):
        labels = {key: torch.from_numpy(value) for key, value in prepared.items()}
        weights = {"a": torch.linspace(0, 2, ROWS)}
    else:
        labels, weights = torch.from_numpy(prepared), torch.linspace(0, 2, ROWS)
    features = {"scale": torch.linspace(1, 2, ROWS).unsqueeze(1)} if head.wants_features else None
    logits = torch.randn(ROWS, head.logits_dimension, generator=torch.Generator().manual_seed(1), requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(head.loss, fullgraph=True, backend="eager")
    for given in (weights, None):
        expected = head.loss(logits, labels, given, features)
        measured = compiled(logits, labels, given, features)
        torch.testing.assert_close(measured, expected)
        (gradient,), (wanted,) = torch.autograd.grad(measured, logits), torch.autograd.grad(expected, logits)
        torch.testing.assert_close(gradient, wanted)
