"""Replacements of operators that Inductor computes otherwise than PyTorch does in Python.

While a step is traced, each of these operators is expressed by others, which Inductor computes as PyTorch does:

- For ``x // y`` of floating-point numbers, Inductor rounds ``x / y`` down. So 0.5 // 0.1 would be 5, while Python's
  result is 4. Inductor computes ``x % y`` from that quotient, which loses all digits of a large x.
- A division of integers that rounds toward zero would end the process where the divisor is 0. Inductor computes
  ``fmod`` of two constant integers as Python's ``%``, which has the divisor's sign.
- The smallest or largest of many 8-bit integers would be 0 or anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_EIGHT_BITS = (torch.uint8, torch.int8)
_HALF = (torch.bfloat16, torch.float16)


def replacements() -> dict[Any, Callable[..., Any]]:
    """Return for each operator a function that takes its arguments, and returns its result or NotImplemented."""
    table: dict[Any, Callable[..., Any]] = {}
    for packet, replacement in (
        (_aten.floor_divide, _of_floats(_floor_divide)),
        (_aten.remainder, _of_floats(_remainder)),
        (_aten.div, _divide),
        (_aten.fmod, _fmod),
    ):
        in_place = getattr(_aten, f"{packet.__name__}_")
        table |= dict.fromkeys(_overloads(packet), replacement)
        table |= dict.fromkeys(_overloads(in_place), _in_place(replacement))
    for packet in (_aten.amin, _aten.amax, _aten.argmin, _aten.argmax, _aten.min, _aten.max, _aten.aminmax):
        table |= {operator: _of_integers(operator) for operator in _overloads(packet)}
    return table


def _overloads(packet: Any) -> list[Any]:
    """Return the operators of one name that have no output argument."""
    operators = [getattr(packet, name) for name in packet.overloads()]
    return [one for one in operators if not any(argument.is_out for argument in one._schema.arguments)]


def _in_place(replacement: Callable[..., Any]) -> Callable[..., Any]:
    def replaced(left: Tensor, *others: Any, **named: Any) -> Any:
        result = replacement(left, *others, **named)
        return result if result is NotImplemented else left.copy_(result)

    return replaced


def _of_floats(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """Return a function of two operands that computes floating-point results, and no others."""

    def replaced(left: Any, right: Any) -> Any:
        dtype = torch.result_type(left, right)
        return compute(*_with_dtype(left, right, dtype)).to(dtype) if dtype.is_floating_point else NotImplemented

    return replaced


def _floor_divide(left: Tensor, right: Tensor) -> Tensor:
    modulus = torch.fmod(left, right)
    quotient = (left - modulus) / right
    quotient = torch.where(_is_below(modulus, right), quotient - 1, quotient)
    # The quotient is a whole number up to rounding.
    floor = quotient.floor()
    floor = torch.where(quotient - floor > 0.5, floor + 1, floor)
    exact = left / right
    floor = torch.where(quotient == 0, torch.copysign(torch.zeros_like(exact), exact), floor)
    return torch.where(right == 0, exact, floor)


def _remainder(left: Tensor, right: Tensor) -> Tensor:
    modulus = torch.fmod(left, right)
    return torch.where(_is_below(modulus, right), modulus + right, modulus)


def _divide(left: Any, right: Any, *, rounding_mode: str | None = None) -> Any:
    dtype = torch.result_type(left, right)
    if rounding_mode == "floor":
        return _of_floats(_floor_divide)(left, right)
    if rounding_mode != "trunc" or dtype.is_floating_point or dtype == torch.bool:
        return NotImplemented
    floor = torch.floor_divide(left, right)
    return floor + ((floor * right != left) & (floor < 0))


def _fmod(left: Any, right: Any) -> Any:
    quotient = _divide(left, right, rounding_mode="trunc")
    return quotient if quotient is NotImplemented else left - quotient * right


def _of_integers(operator: Any) -> Callable[..., Any]:
    """Return a function that applies an operator to 8-bit integers as 32-bit integers."""

    def replaced(values: Tensor, *others: Any, **named: Any) -> Any:
        if values.dtype not in _EIGHT_BITS or any(isinstance(one, Tensor) for one in others):
            return NotImplemented
        result = operator(values.int(), *others, **named)
        # Indices are int64, and stay so.
        if isinstance(result, Tensor):
            return result.to(values.dtype) if result.dtype == torch.int32 else result
        return tuple(one.to(values.dtype) if one.dtype == torch.int32 else one for one in result)

    return replaced


def _with_dtype(left: Any, right: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return both operands as tensors of a dtype. Half precision becomes float32, in which PyTorch computes as well."""
    device = next(one.device for one in (left, right) if isinstance(one, Tensor))
    dtype = torch.float32 if dtype in _HALF else dtype
    return tuple(  # type: ignore[return-value]
        one.to(dtype) if isinstance(one, Tensor) else torch.full((), one, dtype=dtype, device=device)
        for one in (left, right)
    )


def _is_below(modulus: Tensor, divisor: Tensor) -> Tensor:
    """Return whether a remainder of fmod, which has the sign of the dividend, is not 0 and has not the divisor's."""
    return (modulus != 0) & ((divisor < 0) != (modulus < 0))
