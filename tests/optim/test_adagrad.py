import numpy as np
import pytest
import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.optim import Adagrad


def test_it_follows_tensorflows_formula():
    rng = np.random.default_rng(0)
    weights, accumulator = rng.normal(size=(4, 3)), np.full((4, 3), 0.1)
    param = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float32))
    optimizer = Adagrad([param], lr=0.05)
    for grad in rng.normal(size=(20, 4, 3)):
        accumulator += grad**2
        weights -= 0.05 * grad / np.sqrt(accumulator)
        param.grad = torch.tensor(grad, dtype=torch.float32)
        optimizer.step()
    np.testing.assert_allclose(param.detach().numpy(), weights, atol=2e-6)
    np.testing.assert_allclose(optimizer.state[param]["accumulator"].numpy(), accumulator, rtol=1e-5)


def test_the_accumulator_must_start_above_zero():
    with pytest.raises(InvalidValueError, match="initial_accumulator_value must be greater than 0, but got 0"):
        Adagrad([torch.zeros(1, requires_grad=True)], lr=0.1, initial_accumulator_value=0.0)
