import numpy as np
import pytest
import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.optim import Adam


def test_it_follows_tensorflows_formula_with_epsilon_hat():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 3))
    m, v = np.zeros((4, 3)), np.zeros((4, 3))
    param = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float32))
    optimizer = Adam([param], lr=0.01, epsilon=0.1)
    for t, grad in enumerate(rng.normal(size=(20, 4, 3)), start=1):
        m = 0.9 * m + 0.1 * grad
        v = 0.999 * v + 0.001 * grad**2
        weights -= 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 0.1)
        param.grad = torch.tensor(grad, dtype=torch.float32)
        optimizer.step()
    np.testing.assert_allclose(param.detach().numpy(), weights, atol=1e-6)
    assert optimizer.state[param]["step"] == 20


def test_the_step_counter_of_half_precision_parameters_survives_loading():
    param = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = Adam([param])
    optimizer.state[param]["step"].fill_(1001.0)
    loaded = Adam([param])
    loaded.load_state_dict(optimizer.state_dict())
    assert loaded.state[param]["step"] == 1001.0


def test_betas_must_be_below_one():
    with pytest.raises(InvalidValueError, match="beta2 must be at least 0 and less than 1, but got 1"):
        Adam([torch.zeros(1, requires_grad=True)], beta2=1.0)
