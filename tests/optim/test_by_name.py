import pickle

import pytest
import torch

from torch_estimator import optim
from torch_estimator.errors import InvalidTypeError, InvalidValueError


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Adagrad", optim.Adagrad),
        ("Adam", optim.Adam),
        ("AdamW", optim.AdamW),
        ("Ftrl", optim.Ftrl),
        ("RMSProp", optim.RMSProp),
        ("SGD", optim.GradientDescent),
    ],
)
def test_a_name_gives_a_factory_that_can_be_pickled(name, kind):
    factory = pickle.loads(pickle.dumps(optim.by_name(name, 0.3)))
    optimizer = factory([torch.zeros(1, requires_grad=True)])
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["lr"] == 0.3


def test_an_unknown_name_is_refused_with_the_known_ones():
    message = r"^Unknown optimizer 'adam'; the names are 'Adagrad', 'Adam', 'AdamW', 'Ftrl', 'RMSProp', 'SGD'\.$"
    with pytest.raises(InvalidValueError, match=message):
        optim.by_name("adam", 0.1)


def test_a_name_must_be_a_string_and_the_rate_a_number():
    with pytest.raises(InvalidTypeError, match="name must be a string, but got 3"):
        optim.by_name(3, 0.1)
    with pytest.raises(InvalidValueError, match="lr must be at least 0"):
        optim.by_name("Adam", -0.1)
