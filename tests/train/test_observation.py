"""An observed forward pass leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torch_estimator.train.observation import Observer


class Remembering(nn.Module):
    """Keeps its last input in a buffer, as a new tensor each time, and counts its calls in another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("optional", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x + torch.rand(1)
        self.calls += 1
        self.optional = x
        return x


def test_buffers_and_random_states_are_restored_even_after_an_error() -> None:
    module = nn.Sequential(Remembering(), nn.Dropout())
    last, calls = module[0].last, module[0].calls
    state = torch.get_rng_state()

    def fail() -> None:
        module(torch.ones(4))
        raise ConnectionError

    observer = Observer(module)
    observer.observe(lambda: module(torch.ones(4)))
    with pytest.raises(ConnectionError):
        observer.observe(fail)
    assert module[0].last is last and module[0].calls is calls and module[0].optional is None
    assert (last.item(), calls.item()) == (0.0, 0.0)
    assert torch.equal(torch.get_rng_state(), state)


def in_place(teacher: Tensor, own: Tensor) -> None:
    teacher.lerp_(own, 0.5)


def through_data(teacher: Tensor, own: Tensor) -> None:
    teacher.data.mul_(0.5).add_(own.data)


@pytest.mark.parametrize("follow", [in_place, through_data])
def test_parameters_that_a_forward_pass_changes_are_restored_every_time(
    follow: Callable[[Tensor, Tensor], None],
) -> None:
    class Following(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Linear(1, 1)
            self.teacher = nn.Linear(1, 1).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                follow(self.teacher.weight, self.own.weight)
            return self.own(x) + self.teacher(x)

    module = Following()
    observer, before = Observer(module), module.teacher.weight.clone()
    for _ in range(3):
        observer.observe(lambda: module(torch.ones(1, 1)))
        torch.testing.assert_close(module.teacher.weight, before, rtol=0, atol=0)


def test_buffers_of_a_loss_and_other_tensors_are_restored() -> None:
    loss, other = Remembering(), torch.zeros(3)
    observer, last = Observer(nn.Linear(1, 1), [None, loss]), loss.last

    def forward() -> None:
        loss(torch.ones(4))
        other.add_(1)

    for _ in range(3):
        observer.observe(forward, [other, loss.calls])
        assert loss.last is last and (loss.calls.item(), other.sum().item()) == (0.0, 0.0)


def test_only_forward_hooks_that_were_added_later_are_removed_for_a_while() -> None:
    module = nn.Sequential(nn.Identity(), nn.Identity())
    called: list[str] = []
    module[0].register_forward_hook(lambda *args: called.append("model's"))
    observer = Observer(module)
    later = module[0].register_forward_hook(lambda *args: called.append("later"))
    before = module[1].register_forward_pre_hook(lambda *args: called.append("later, before"))
    with observer.unobserved():
        module(torch.ones(1))
    assert called == ["model's"]
    module(torch.ones(1))
    assert called == ["model's", "model's", "later", "later, before"]
    later.remove()
    before.remove()
    module(torch.ones(1))
    assert called[4:] == ["model's"]
