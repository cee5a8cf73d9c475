import numpy as np
import pytest
import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.optim import RMSProp


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_it_follows_tensorflows_formula(momentum):
    rng = np.random.default_rng(0)
    weights, mean_square, velocity = rng.normal(size=(4, 3)), np.ones((4, 3)), np.zeros((4, 3))
    param = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float32))
    optimizer = RMSProp([param], lr=0.01, momentum=momentum)
    for grad in rng.normal(size=(20, 4, 3)):
        mean_square = 0.9 * mean_square + 0.1 * grad**2
        velocity = momentum * velocity + 0.01 * grad / np.sqrt(mean_square + 1e-10)
        weights -= velocity
        param.grad = torch.tensor(grad, dtype=torch.float32)
        optimizer.step()
    np.testing.assert_allclose(param.detach().numpy(), weights, atol=1e-6)


def test_the_decay_must_be_a_share():
    with pytest.raises(InvalidValueError, match=r"decay must be at least 0 and at most 1, but got 1\.5"):
        RMSProp([torch.zeros(1, requires_grad=True)], lr=0.1, decay=1.5)
