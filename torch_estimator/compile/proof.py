"""Proof of a compiled step: one batch is trained on by Python and by the compiled step, and the results are compared.

Nothing else shows that machine code computes what Python computes. A step may read a number from a file, and a
compiler may have a defect. So a runner uses a compiled step only after `prove` has found no difference.

The Python step is the training's own step: what it does besides computing, such as a call of a user's hook, happens
once. Then the tensors get their values from before, and the compiled step takes the same batch. Of tables, only the
rows that the batch looks up are copied.

Compiled code adds up in another order than Python, so the results differ by rounding. Small differences are accepted
(`_ACCEPTED`). Some steps enlarge rounding: Adam divides a gradient that is nearly zero by its own size. Then a second
step in Python, from weights and gradients that are changed by their rounding, shows how large a difference may be in
each element.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator import tree
from torch_estimator.compile.trace_checks import CannotBeCompiled
from torch_estimator.compile.traced_update import put_back, replaceable
from torch_estimator.train.step import TrainStep

# Differences of this share of a tensor's change are taken for rounding, and those of so many units in the last place.
_ACCEPTED = 1e-4
_ULPS = 4

# A compiled step may differ from Python by this many times the difference that rounding makes between two Python steps.
_TIMES_ROUNDING = 10

# Gradients are changed by so many units in the last place of the largest one, which sums of many numbers are off by.
_ULPS_OF_GRADIENTS = 16

# One of so many elements may differ by more than rounding did in that element, which is a sample of one.
_ONE_OF = 4


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of `prove`.

    Attributes:
        loss: Loss of the batch, of the step whose results were kept.
        difference: What differed, in words that fit after "because"; None if the compiled step computes what Python
            computes.
    """

    loss: float
    difference: str | None


def prove(
    step: TrainStep,
    tensors: Sequence[tuple[str, Tensor]],
    inputs: tuple[Any, Any, Any],
    run: Callable[[], float | None],
    *,
    keeps: bool = True,
) -> Proof:
    """Train on one batch in Python and with a compiled step, and compare the results.

    Args:
        step: The step in Python. The caller completes it by ``step.end()``.
        tensors: The tensors that the step may change, with names.
        inputs: Features, labels and weights of the batch.
        run: Takes the compiled step on the same batch; returns its loss, or None if it fails.
        keeps: Whether the tensors and the random generators are left as the compiled step leaves them, or, if it
            differs, as Python does. If False, all are left as they were.
    """
    changed = _Changed(step, [*tensors, *step.results()])
    generators, of_python, places = _generators(), _python_generators(), replaceable(step)
    try:
        loss = _take_in_python(step, inputs, changed)
        try:
            put_back(step, places)
        except CannotBeCompiled as error:
            return Proof(loss, str(error))
        end = _State(loss, changed.values(), _generators())
        if not math.isfinite(loss):
            return Proof(loss, None)
        if not _are_equal(_python_generators(), of_python):
            return Proof(loss, "it draws from Python's or numpy's random numbers, which machine code would not do")
        changed.restore(changed.start)
        _set_generators(generators)
        difference: str | None = "it fails on a batch on which Python does not"
        found = run()
        if found is not None:
            difference = _difference(changed, end, compiled := _State(found, changed.values(), _generators()))
            if difference is not None and step.rounds:
                # What changes by itself would look like rounding.
                _set_generators(generators)
                repeated = _take_from(changed.start, step, inputs, changed)
                _set_generators(generators)
                rounded = _take_rounded(step, inputs, changed)
                _set_python_generators(of_python)
                if abs(repeated - loss) <= _ACCEPTED * abs(loss):
                    difference = _difference(changed, end, compiled, rounded)
            if difference is None:
                end = compiled
        changed.restore(end.values)
        _set_generators(end.generators)
        return Proof(end.loss, difference)
    finally:
        if not keeps:
            changed.restore(changed.start)
            _set_generators(generators)
            _set_python_generators(of_python)


class _Changed:
    """The tensors that a step may change, with their values from before the step.

    A table that is updated by rows belongs to it with the rows that the Python step updates, from that moment on.
    """

    def __init__(self, step: TrainStep, tensors: Sequence[tuple[str, Tensor]]) -> None:
        names = {id(tensor): (name, tensor) for name, tensor in reversed(tensors)}
        self._by_rows = {id(one): "a table" for update in step.tables for one in update.changed_by_rows()}
        self._by_rows.update((key, name) for key, (name, _) in names.items() if key in self._by_rows)
        scratch = set(map(id, step.scratch()))
        self._whole = [
            (name, tensor.detach())
            for key, (name, tensor) in names.items()
            if key not in self._by_rows and key not in scratch and not _overlaps(tensor)
        ]
        self._rows: list[tuple[str, Tensor, Tensor]] = []
        self.start = self.values()

    @property
    def names(self) -> list[str]:
        """The name of each of `values`."""
        return [*(name for name, _ in self._whole), *(name for name, _, _ in self._rows)]

    def add_rows(self, table: Tensor, at: Tensor) -> None:
        """Add elements of a flattened table, which the step is about to change."""
        if all(table is not one for _, one, _ in self._rows):
            self._rows.append((self._by_rows[id(table)], table, at))
            self.start.append(table.detach().view(-1).index_select(0, at))

    def values(self) -> list[Tensor]:
        """Return copies of the present values."""
        rows = [table.detach().view(-1).index_select(0, at) for _, table, at in self._rows]
        return [*(tensor.clone() for _, tensor in self._whole), *rows]

    def restore(self, values: Sequence[Tensor]) -> None:
        """Set the tensors to values that `values` has returned, or to `start`."""
        for (_, tensor), value in zip(self._whole, values, strict=False):
            tensor.copy_(value)
        for (_, table, at), value in zip(self._rows, values[len(self._whole) :], strict=False):
            table.detach().view(-1).scatter_(0, at, value)


@dataclass(frozen=True, slots=True)
class _State:
    """What a step leaves behind: the loss of its batch, the values of all tensors, and the random generators."""

    loss: float
    values: list[Tensor]
    generators: list[Tensor]


def _take_in_python(step: TrainStep, inputs: tuple[Any, Any, Any], changed: _Changed) -> float:
    for update in step.tables:
        update.before_change = changed.add_rows
    try:
        # A forward pass may change its inputs in place, so it gets copies.
        loss, left = step.compute(*tree.map(Tensor.clone, inputs))
        step.update_left(left)
    finally:
        for update in step.tables:
            update.before_change = None
    return float(loss)


def _take_from(start: Sequence[Tensor], step: TrainStep, inputs: tuple[Any, Any, Any], changed: _Changed) -> float:
    """Take the Python step from other values of the tensors; return its loss."""
    changed.restore(start)
    places = replaceable(step)
    loss = _take_in_python(step, inputs, changed)
    put_back(step, places)
    return loss


def _take_rounded(step: TrainStep, inputs: tuple[Any, Any, Any], changed: _Changed) -> _State:
    """Take the Python step from weights and with gradients that differ by their rounding from the right ones."""
    generator = torch.Generator().manual_seed(0)

    def rounded(value: Tensor) -> Tensor:
        if not value.dtype.is_floating_point:
            return value
        signs = torch.randint(-_ULPS, _ULPS + 1, value.shape, generator=generator).to(value)
        return value + signs * torch.finfo(value.dtype).eps * value.abs()

    def across_zero(gradient: Tensor) -> Tensor:
        # Towards zero, so that a gradient whose sign is a matter of rounding changes it.
        by = torch.finfo(gradient.dtype).eps * _ULPS_OF_GRADIENTS * gradient.abs().max()
        return torch.where(gradient > 0, gradient - by, gradient + by)

    def differentiate(*batch: Any) -> tuple[Any, ...]:
        loss, dense, sparse = type(step).differentiate(step, *batch)
        return (
            loss,
            [None if one is None else across_zero(one) for one in dense],
            [None if one is None else (one[0], across_zero(one[1])) for one in sparse],
        )

    start = [rounded(one) for one in changed.start]
    step.differentiate = differentiate  # type: ignore[method-assign, assignment]
    try:
        loss = _take_from(start, step, inputs, changed)
    finally:
        del step.differentiate
    # The difference is that of the changes, not that of the weights from which they began.
    ends = [
        end if begin.dtype == torch.bool or not begin.dtype.is_floating_point else end - (begin - other)
        for end, begin, other in zip(changed.values(), start, changed.start, strict=True)
    ]
    return _State(loss, ends, _generators())


def _difference(changed: _Changed, python: _State, compiled: _State, rounded: _State | None = None) -> str | None:
    """Return what a compiled step computes differently, in words; None if nothing does by more than its rounding."""
    if not _are_equal(python.generators, compiled.generators):
        return "it draws other random numbers than Python does"
    allowed = _ACCEPTED * abs(python.loss)
    if rounded is not None:
        allowed = max(allowed, _TIMES_ROUNDING * abs(rounded.loss - python.loss))
    if not abs(compiled.loss - python.loss) <= allowed:
        return f"its loss of a batch is {compiled.loss:.6g}, where Python's is {python.loss:.6g}"
    for place, (name, start) in enumerate(zip(changed.names, changed.start, strict=True)):
        size = _gaps(python.values[place], start)
        gaps = _gaps(compiled.values[place], python.values[place])
        if not size.numel():
            continue
        limit = _ACCEPTED * size.max() if size.max().isfinite() else torch.zeros_like(size.max())
        if rounded is not None:
            # Integers are equal, or else rounding has decided between them, which the rounded step shows.
            noise = _gaps(rounded.values[place], python.values[place])
            # Where a change is nothing but rounding, one sample of an element says little, and the others say more.
            limits = torch.maximum(limit, _TIMES_ROUNDING * torch.maximum(noise, noise.median()))
            differs = bool((gaps > limits).sum() > gaps.numel() // _ONE_OF or (gaps > limits.max()).any())
        else:
            differs = bool((gaps > limit).any() or gaps.norm() > _ACCEPTED * size.norm())
        if differs:
            by, where = float(gaps.max()), float(size.max())
            return f"it changes {name} otherwise than Python does, by {by:.3g} where Python does by {where:.3g}"
    return None


def _gaps(one: Tensor, other: Tensor) -> Tensor:
    """Return how far the elements of two tensors differ, beyond units in the last place; infinity for integers."""
    if torch.equal(one, other):
        return torch.zeros(one.shape, dtype=torch.float64, device=one.device)
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if not one.is_floating_point():
        return torch.where(one == other, 0.0, math.inf).double()
    ulp = torch.finfo(one.dtype).eps * _ULPS
    one, other = one.double(), other.double()
    gaps = ((one - other).abs() - ulp * torch.maximum(one.abs(), other.abs())).clamp(min=0)
    return gaps.masked_fill_((one == other) | (one.isnan() & other.isnan()), 0).nan_to_num_(math.inf)


def _overlaps(tensor: Tensor) -> bool:
    """Return whether elements of a tensor share memory, so that no step can change it in place."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _generators() -> list[Tensor]:
    """Return the states of torch's random generators."""
    of_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *of_devices]


def _set_generators(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def _python_generators() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_python_generators(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two states of generators are equal, which hold tensors, arrays and numbers."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray | Tensor) else bool(one == other)
