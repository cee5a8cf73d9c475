"""The contract of every iterator: from any saved position, exactly the same batches follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torch_estimator import tree
from torch_estimator.data import Batch, Dataset
from torch_estimator.data.columns import to_numpy


def check_every_position(make: Callable[[], Dataset], *, transform: Any = None, compared: int | None = None) -> int:
    """Save the position after every batch and compare the batches of a new iterator from there on; return their number.

    As in training, torch's generator is used after each batch, and its state is restored with the position.

    Args:
        make: Makes the Dataset; called for every position, as in a new process.
        transform: Given to every iterator.
        compared: Number of batches to compare from every position; None for all.
    """
    states, randoms, batches = [], [], []
    with make().iterator(transform) as iterator:
        states.append(saved(iterator.state()))
        randoms.append(torch.get_rng_state())
        for batch in iterator:
            batches.append(as_arrays(batch))
            torch.rand(3)  # A model may draw, too.
            states.append(saved(iterator.state()))
            randoms.append(torch.get_rng_state())
    for place, state in enumerate(states):
        with make().iterator(transform) as iterator:
            iterator.restore(json.loads(state))
            assert saved(iterator.state()) == state
            torch.set_rng_state(randoms[place])
            expected = batches[place:]
            wanted = len(expected) + 1 if compared is None else min(compared, len(expected) + 1)
            for number in range(wanted):
                batch = next(iterator, None)
                if number == len(expected):
                    assert batch is None
                else:
                    assert_equal(as_arrays(batch), expected[number])
                    torch.rand(3)
    return len(batches)


def saved(state: dict[str, Any]) -> str:
    """Return a state as a checkpoint stores it."""
    text = json.dumps(state)
    assert len(text) < 10_000
    return text


def as_arrays(batch: Batch) -> tuple[Any, Any]:
    """Return a batch with strings as object arrays."""
    return tree.map(to_numpy, batch.features), tree.map(to_numpy, batch.labels)


def assert_equal(one: Any, other: Any) -> None:
    """Check that two structures of arrays are equal."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_equal(one[name], other[name])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    elif one is not None:
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def numbers(data: Dataset, name: str = "x") -> list[int]:
    """Return the values of a column of all batches."""
    return [int(value) for batch in data.iterator() for value in batch.features[name]]
