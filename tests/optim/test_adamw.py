import numpy as np
import pytest
import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.optim import AdamW


@pytest.mark.parametrize("settings", [{}, {"lr": 0.05, "weight_decay": 0.3}, {"lr": 0.05, "weight_decay": 0.0}])
def test_it_does_what_torch_does(settings):
    rng = np.random.default_rng(0)
    start = torch.from_numpy(rng.normal(size=(4, 3))).float()
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    mine = AdamW([ours], **settings, beta1=0.8, beta2=0.99, epsilon=1e-3)
    reference = torch.optim.AdamW([theirs], **settings, betas=(0.8, 0.99), eps=1e-3)
    for grad in torch.from_numpy(rng.normal(size=(30, 4, 3))).float():
        for param, optimizer in ((ours, mine), (theirs, reference)):
            param.grad = grad.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert mine.state[ours]["step"] == 30


def test_its_defaults_are_torchs():
    ours = AdamW([torch.zeros(1, requires_grad=True)]).defaults
    theirs = torch.optim.AdamW([torch.zeros(1, requires_grad=True)]).defaults
    assert ours["epsilon"] == theirs["eps"]
    assert {key: ours[key] for key in ("lr", "betas", "weight_decay")} == {
        key: theirs[key] for key in ("lr", "betas", "weight_decay")
    }


def test_decay_must_not_be_negative():
    with pytest.raises(InvalidValueError, match=r"^weight_decay must be at least 0, but got -0.1\.$"):
        AdamW(weight_decay=-0.1)
