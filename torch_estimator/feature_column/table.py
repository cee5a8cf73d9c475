"""Tables: one parameter that holds the weights of several columns, so that one gather serves all of them.

`pool` combines the rows of several ids, and `clip_norms` shortens rows.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.initial_values import Distribution


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Description of one column's variable, for which a `Table` reserves rows.

    Attributes:
        name: Name of the variable.
        rows: Number of its rows.
        initializer: Function that fills the rows with their initial values, or their distribution; None for zeros.

    >>> table = fc.Table([fc.Piece(name="words", rows=1000, initializer=torch.nn.init.normal_)], dim=8)
    >>> table(torch.tensor([3, 14])).shape
    torch.Size([2, 8])
    """

    name: str
    rows: int
    initializer: Callable[[torch.Tensor], object] | Distribution | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedPiece:
    """Position of one column's variable in a table: rows ``offset`` to ``offset + rows``."""

    name: str
    offset: int
    rows: int


LeftAtZero = dict["Table", Callable[[], None]]
"""Tables without initial values, each with a function that draws them."""

_LEFT_AT_ZERO: ContextVar[LeftAtZero | None] = ContextVar("_LEFT_AT_ZERO", default=None)


@contextlib.contextmanager
def tables_of_checkpoint(*, restored: bool) -> Iterator[LeftAtZero]:
    """Create tables in the ``with`` block without initial values, if a checkpoint will be restored into them.

    Otherwise, drawing initial values would take most of the time until a large model can predict. Yield the tables left
    at zero, so that the caller can draw initial values for a table that the checkpoint lacks.
    """
    tables: LeftAtZero = {}
    token = _LEFT_AT_ZERO.set(tables if restored else None)
    try:
        yield tables
    finally:
        _LEFT_AT_ZERO.reset(token)


class Table(nn.Module):
    """Module with one parameter that holds the variables of several columns. Rows are looked up by id.

    The seed of the initial values is one number drawn from torch's global generator.
    Later draws from the global generator therefore depend neither on the size of the table nor on whether it
    is left at zero.

    Args:
        pieces: The variables that share the table, in the order of their rows.
        dim: Numbers in each row.
        trainable: Whether training changes the weight.

    Attributes:
        weight: float32 ``[rows + 1, dim]``; the last row is that of a missing value and stays zero.
        pieces: The place of each variable.
        rows: Rows of all variables.
        recorder: None, or a list while a training step updates only the rows of its batch. With None the gradient of
            `weight` is dense. With a list, the gradient is taken by the gathered rows instead of by `weight`,
            and `forward` appends ``(self, ids, rows)``. The training step that set the list then updates those rows,
            except the last row of the table.

    >>> job = fc.embedding_column(fc.categorical_column_with_hash_bucket("job", 10), dimension=4)
    >>> layer = fc.InputLayer(fc.FeatureTransform(dnn_columns=[job]).dnn)
    >>> [table] = [module for module in layer.modules() if isinstance(module, fc.Table)]
    >>> table.weight.shape, table(torch.tensor([[3], [10]])).shape
    (torch.Size([11, 4]), torch.Size([2, 1, 4]))
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
            # Postpone drawing only on the CPU, because `_draw` seeds only the generator of the CPU.
            # On a GPU, initializers use the GPU's generator, so tables must be filled in the order of creation.
            if left_at_zero is None or self.weight.device.type != "cpu":
                draw()
            else:
                left_at_zero[self] = draw

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up int64 ids ``[...]`` and return their rows, float32 ``[..., dim]``. The id `rows` gives zeros.

        Args:
            ids: Rows to look up, int64 ``[...]``; the id `rows` stands for a missing value.
        """
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
            return self._gathered(ids)
        if self.recorder is None:
            return functional.embedding(ids, self.weight, padding_idx=self.rows)
        if torch.compiler.is_compiling():
            # Before torch 2.13 a compiled step cannot make a leaf, so it differentiates by the output of the lookup.
            gathered = functional.embedding(ids, self.weight)
        else:
            gathered = self._gathered(ids).requires_grad_()
        self.recorder.append((self, ids, gathered))
        return gathered

    def _gathered(self, ids: torch.Tensor) -> torch.Tensor:
        weight = self.weight.detach()
        if self.dim > 1 or torch.compiler.is_compiling():
            return functional.embedding(ids, weight)
        # Look up rows of one number in a flat view, which is several times faster.
        return weight.view(-1).index_select(0, ids.reshape(-1)).view(*ids.shape, 1)

    def extra_repr(self) -> str:
        """Return the sizes that `print(module)` shows for this table."""
        return f"{self.rows}, {self.dim}, pieces={len(self.pieces)}"


def _draw(weight: torch.Tensor, pieces: tuple[Piece, ...], seed: int) -> None:
    """Fill a table with initial values. Functions draw from torch's CPU generator, whose state is restored."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # Seed only the CPU's generator; torch.manual_seed would also seed the generators of GPUs.
        torch.default_generator.manual_seed(seed)
        for piece, rows in zip(pieces, torch.split(weight[:-1], [piece.rows for piece in pieces]), strict=True):
            if isinstance(piece.initializer, Distribution):
                piece.initializer.fill(rows, seed, piece.name)
            elif piece.initializer is not None:
                piece.initializer(rows)


def pool(rows: torch.Tensor, weights: torch.Tensor, combiner: Combiner) -> torch.Tensor:
    """Combine the vectors of each row's ids into one vector. A row without an id gives zeros.

    With e for vectors and w for weights, ``"sum"`` is Σwe; ``"mean"`` is Σwe/Σw and ``"sqrtn"`` Σwe/√Σw², both over
    positive weights only.

    Args:
        rows: float32 ``[N, L, dimension]``, zeros where there is no id.
        weights: float32 ``[N, L]``, zeros where there is no id.
        combiner: Name of the formula.

    Returns:
        float32 ``[N, dimension]``.
    """
    if combiner == "sum":
        return (rows * weights.unsqueeze(2)).sum(1)
    weights = torch.where(weights > 0, weights, 0.0)
    total = (rows * weights.unsqueeze(2)).sum(1)
    divisor = weights.sum(1, keepdim=True) if combiner == "mean" else weights.square().sum(1, keepdim=True).sqrt()
    return total / torch.where(divisor > 0, divisor, 1.0)


def presence(ids: torch.Tensor, padding: int) -> torch.Tensor:
    """Return the weight 1.0 for each id, and 0.0 where the id is `padding`, in the shape of `ids`."""
    return (ids != padding).to(torch.float32)


def clip_norms(rows: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Shorten vectors ``[..., dimension]`` that are longer than `max_norm` to that length.

    The square root is only taken of positive numbers, so that the gradient of a zero vector is zero instead of NaN.
    """
    squares = rows.square().sum(-1, keepdim=True)
    positive = squares > 0
    norms = torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)
    return rows * (max_norm / norms.clamp(min=max_norm))
