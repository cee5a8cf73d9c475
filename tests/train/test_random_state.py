"""Random numbers: a job's do not disturb the caller's, and can be saved."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from torch_estimator.errors import CheckpointError
from torch_estimator.train.random_state import isolated, random_state, seeded, set_random_state


def test_a_seed_gives_the_same_numbers_and_leaves_the_callers_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    with seeded(7):
        first = torch.rand(3)
    with seeded(7):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.rand(2), expected)


def test_without_a_seed_the_callers_seeding_decides_and_every_use_differs() -> None:
    def two_draws() -> list[torch.Tensor]:
        draws = []
        for _ in range(2):
            with seeded(None):
                draws.append(torch.rand(3))
        return draws

    torch.manual_seed(0)
    first = two_draws()
    torch.manual_seed(0)
    again = two_draws()
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])


def test_nothing_drawn_in_isolation_shows_outside() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    for seed in (None, 3):
        torch.manual_seed(0)
        with isolated(seed):
            torch.rand(100)
        assert torch.equal(torch.rand(2), expected)


def test_the_callers_state_comes_back_after_an_error() -> None:
    before = torch.get_rng_state()
    try:
        with seeded(1):
            raise KeyError
    except KeyError:
        pass
    assert torch.equal(torch.get_rng_state(), before)


def test_the_state_is_json_and_goes_back_exactly() -> None:
    with seeded(1):
        torch.rand(5)
        state = json.loads(json.dumps(random_state()))
        expected = torch.rand(5), torch.randn(5)
        set_random_state(state)
        assert torch.equal(torch.rand(5), expected[0])
        assert torch.equal(torch.randn(5), expected[1])


def test_an_empty_state_changes_nothing() -> None:
    before = torch.get_rng_state()
    set_random_state({})
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("damaged", [{"cpu": "AAAA"}, {"cpu": 1}, {"cpu": "?"}])
def test_a_damaged_state_is_one_sentence(damaged: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="state of torch's random generators is damaged"):
        set_random_state(damaged)
