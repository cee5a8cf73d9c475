"""Rows of weights for several columns in one parameter, so that one gather serves them all."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """What one column wants of a table: a variable name, rows, and how they start (None: zeros)."""

    name: str
    rows: int
    initializer: Callable[[torch.Tensor], object] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedPiece:
    """One column's variable inside a table: rows ``offset`` to ``offset + rows``."""

    name: str
    offset: int
    rows: int


LeftAtZero = dict["Table", Callable[[], None]]
"""Tables without initial values, and what draws these after all."""

_LEFT_AT_ZERO: ContextVar[LeftAtZero | None] = ContextVar("_LEFT_AT_ZERO", default=None)


@contextlib.contextmanager
def tables_of_checkpoint(*, restored: bool) -> Iterator[LeftAtZero]:
    """Leave the tables that the body makes at zero where a checkpoint is restored into them afterwards.

    Drawing initial values takes most of the time until a large model can predict.

    Args:
        restored: Whether a checkpoint follows; otherwise tables get their initial values.

    Returns:
        The tables left at zero.
    """
    tables: LeftAtZero = {}
    token = _LEFT_AT_ZERO.set(tables if restored else None)
    try:
        yield tables
    finally:
        _LEFT_AT_ZERO.reset(token)


class Table(nn.Module):
    """Looks up rows by id.

    Its initial values are drawn by a generator state that one draw of torch's generator seeds, so that what is drawn
    after it does not depend on its size, nor on whether it is left at zero.

    Args:
        pieces: The variables that share the table, in the order of their rows.
        dim: Numbers per row.
        trainable: Whether the weight is to be trained.

    Attributes:
        weight: float32 ``[rows + 1, dim]``; the last row is that of a missing value and stays zero.
        pieces: Where each variable lies.
        recorder: Normally None, and autograd reaches `weight` densely. While it is a list, `forward`
            differentiates the gathered rows instead and appends ``(self, ids, rows)``; whoever set it updates
            those rows, and leaves out the last row of the table.
    """

    recorder: list[tuple[Table, torch.Tensor, torch.Tensor]] | None
    not_in_fingerprint = ("recorder",)

    def __init__(self, pieces: Sequence[Piece], dim: int, *, trainable: bool = True) -> None:
        super().__init__()
        placed: list[PlacedPiece] = []
        rows = 0
        for piece in pieces:
            placed.append(PlacedPiece(name=piece.name, offset=rows, rows=piece.rows))
            rows += piece.rows
        self.pieces = tuple(placed)
        self.rows = rows
        self.dim = dim
        self.recorder = None
        self.weight = nn.Parameter(torch.zeros(rows + 1, dim), requires_grad=trainable)
        if any(piece.initializer is not None for piece in pieces):
            seed = int(torch.randint(0, 2**62, (), device="cpu"))
            draw = functools.partial(_draw, self.weight.detach(), tuple(pieces), seed)
            left_at_zero = _LEFT_AT_ZERO.get()
            # On another device initializers draw from a generator that `_draw` does not set.
            if left_at_zero is None or self.weight.device.type != "cpu":
                draw()
            else:
                left_at_zero[self] = draw

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the table, float32 ``[..., dim]``, for int64 ids ``[...]``; the id `rows` gives zeros."""
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
            return self._gathered(ids)
        if self.recorder is None:
            return functional.embedding(ids, self.weight, padding_idx=self.rows)
        gathered = self._gathered(ids).requires_grad_()
        self.recorder.append((self, ids, gathered))
        return gathered

    def _gathered(self, ids: torch.Tensor) -> torch.Tensor:
        weight = self.weight.detach()
        if self.dim > 1 or torch.compiler.is_compiling():
            return functional.embedding(ids, weight)
        # A fraction of the time for rows of one number.
        return weight.view(-1).index_select(0, ids.reshape(-1)).view(*ids.shape, 1)

    def extra_repr(self) -> str:
        """Shown by `print(module)`."""
        return f"{self.rows}, {self.dim}, pieces={len(self.pieces)}"


def _draw(weight: torch.Tensor, pieces: tuple[Piece, ...], seed: int) -> None:
    # Not torch.manual_seed, which also seeds the generators of GPUs.
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    offset = 0
    try:
        for piece in pieces:
            if piece.initializer is not None:
                with torch.no_grad():
                    piece.initializer(weight[offset : offset + piece.rows])
            offset += piece.rows
    finally:
        generator.set_state(state)
