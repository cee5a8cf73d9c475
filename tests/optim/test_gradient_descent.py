import torch

from torch_estimator.optim import GradientDescent


def test_it_subtracts_the_scaled_gradient():
    param = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = GradientDescent([param], lr=0.25)
    param.grad = torch.tensor([2.0, 4.0])
    optimizer.step()
    assert param.tolist() == [0.5, -3.0]
