"""Tables: one parameter that holds the weights of several columns, so that one gather serves all of them.

`pool` combines the rows of several ids, and `clip_norms` shortens rows.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.initial_values import Distribution

# Python has this constant of Linux from 3.13 on.
_MAP_NORESERVE = 0x4000

LARGE_BYTES = 1 << 26
"""Size in bytes from which a table is large: only parameter servers hold it in memory, where there are some."""


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


class LargeTables(Enum):
    """Where the weights of large tables are."""

    IN_MEMORY = auto()
    IN_FILE = auto()
    """In memory, until a checkpoint is restored into the model: `train.mapped_tables` then puts them into a file."""
    ON_SERVERS = auto()
    """On parameter servers; the model has them on torch's device ``meta``, which knows shapes and no numbers."""


@dataclass(frozen=True, slots=True)
class _Creation:
    left_at_zero: LeftAtZero | None
    large: LargeTables


_DEFAULT = _Creation(None, LargeTables.IN_MEMORY)
_CREATION: ContextVar[_Creation] = ContextVar("_CREATION", default=_DEFAULT)


@contextlib.contextmanager
def tables_of_checkpoint(*, restored: bool, large: LargeTables = LargeTables.IN_MEMORY) -> Iterator[LeftAtZero]:
    """Create tables in the ``with`` block without initial values, if a checkpoint will be restored into them.

    Otherwise, drawing initial values would take most of the time until a large model can predict. Yield the tables left
    at zero, so that the caller can draw initial values for a table that the checkpoint lacks. `large` says where large
    tables are created.
    """
    tables: LeftAtZero = {}
    token = _CREATION.set(_Creation(tables if restored else None, large))
    try:
        yield tables
    finally:
        _CREATION.reset(token)


class RowBlock:
    """The rows of a table that one batch looks up, in a worker of a training whose table is on parameter servers.

    Before each batch, the rows are written to `values`, and the place there of each lookup to `positions`. A lookup
    takes its rows by position, so a step works with tensors that do not depend on the size of the table.

    Attributes:
        values: Rows ``[capacity + 1, dim]``; the last one is that of a missing value and stays zero.
        positions: For each lookup of a batch the place of its row, int64 ``[capacity]``.
        ids: For each lookup of a batch its id, int64 ``[capacity]``.
        at: The number of lookups of a forward pass so far; 0 after its last one.
        count: The number of lookups of the batch.
    """

    def __init__(self, capacity: int, dim: int, dtype: torch.dtype) -> None:
        self.values = torch.zeros(capacity + 1, dim, dtype=dtype, requires_grad=True)
        self.positions = torch.full((capacity,), capacity)
        self.ids = torch.zeros(capacity, dtype=torch.int64)
        self.at = self.count = 0

    def next_lookup(self, ids: torch.Tensor) -> slice:
        """Return which lookups of the batch the next one of a forward pass is; an empty slice if there is no space.

        The answer must not depend on the batch, because it is a constant of a compiled step.
        """
        start, self.at = self.at, self.at + ids.numel()
        return slice(start, self.at) if self.at <= len(self.positions) else slice(0, 0)

    def positions_of(self, lookup: slice, ids: torch.Tensor) -> torch.Tensor:
        """Return the positions of a lookup in the shape of its ids; those of missing values for an empty slice.

        A model that looks up other rows than were found out before is noticed by the ids of its gradients, and the step
        is repeated.
        """
        if lookup.stop == lookup.start:
            return torch.full_like(ids, len(self.positions))
        return self.positions[lookup].view(ids.shape)


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
        block: The rows of the batch, if `weight` is on parameter servers and a training runs; otherwise None.
        is_in_file: Whether `weight` goes into a file when a checkpoint is restored.
        mapped: The memory of that file, or None.
        stored: The rows in a checkpoint's files (`mapped_tables.StoredTable`), if `weight` has no numbers because only
            an export reads it.
        initial: The seed and the variables to make initial values of, if `weight` is on parameter servers.
        read_from: For variables that a warm start takes over, the files to read them from (`row_file.SavedRows`), if
            `weight` is on parameter servers.

    >>> job = fc.embedding_column(fc.categorical_column_with_hash_bucket("job", 10), dimension=4)
    >>> layer = fc.InputLayer(fc.FeatureTransform(dnn_columns=[job]).dnn)
    >>> [table] = [module for module in layer.modules() if isinstance(module, fc.Table)]
    >>> table.weight.shape, table(torch.tensor([[3], [10]])).shape
    (torch.Size([11, 4]), torch.Size([2, 1, 4]))
    """

    recorder: list[tuple[Table, torch.Tensor, torch.Tensor]] | None
    block: RowBlock | None
    not_in_fingerprint = ("recorder", "block")

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
        self.block = None
        self.mapped: torch.Tensor | None = None
        self.stored: Any = None
        self.initial: tuple[int, tuple[Piece, ...]] | None = None
        self.read_from: dict[str, list[Any]] = {}
        creation = _CREATION.get()
        self.weight = nn.Parameter(_zeros(rows + 1, dim, creation.large, trainable), requires_grad=trainable)
        self.is_in_file = creation.large is LargeTables.IN_FILE and self.weight.nbytes >= LARGE_BYTES
        seed = 0
        if any(piece.initializer is not None for piece in pieces):
            seed = int(torch.randint(0, 2**62, (), device="cpu"))
        if self.weight.is_meta:
            self.initial = seed, tuple(pieces)
        elif seed:
            draw = functools.partial(draw_values, self.weight.detach(), tuple(pieces), seed)
            # Postpone drawing only on the CPU, because `draw_values` seeds only the generator of the CPU.
            # On a GPU, initializers use the GPU's generator, so tables must be filled in the order of creation.
            if creation.left_at_zero is None or self.weight.device.type != "cpu":
                draw()
            else:
                creation.left_at_zero[self] = draw

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up int64 ids ``[...]`` and return their rows, float32 ``[..., dim]``. The id `rows` gives zeros.

        Args:
            ids: Rows to look up, int64 ``[...]``; the id `rows` stands for a missing value.
        """
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
            return self._gathered(ids, self.weight.detach())
        if self.weight.is_meta:
            return self._looked_up_in_block(ids)
        if self.recorder is None:
            return functional.embedding(ids, self.weight, padding_idx=self.rows)
        return self._recorded(ids, ids, self.weight)

    def _looked_up_in_block(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up rows of a table that is on parameter servers."""
        if self.recorder is not None and self.block is None:
            # This pass finds out which rows a batch looks up; nobody reads its result.
            gathered = torch.zeros(*ids.shape, self.dim, dtype=self.weight.dtype)
            self.recorder.append((self, ids, gathered))
            return gathered
        if self.block is None:
            raise _is_elsewhere(self, "looking up rows")
        lookup = self.block.next_lookup(ids)
        positions = self.block.positions_of(lookup, ids)
        if self.recorder is not None:
            return self._recorded(ids, positions, self.block.values)
        # An additional pass over the batch of the last step, for a hook that observes it.
        if self.block.at >= self.block.count:
            self.block.at = 0
        if not torch.equal(self.block.ids[lookup], ids.reshape(-1)):
            raise _is_elsewhere(self, "looking up other rows than the last step's")
        return functional.embedding(positions, self.block.values.detach())

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Table:
        if not self.weight.is_meta:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        else:
            # A table on parameter servers has no numbers here to move to another device, but it has a dtype.
            self.weight.data = self.weight.data.to(fn(self.weight.new_empty(0, device="cpu")).dtype)
        return self

    def _recorded(self, ids: torch.Tensor, places: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        assert self.recorder is not None
        if torch.compiler.is_compiling():
            # Before torch 2.13 a compiled step cannot make a leaf, so it differentiates by the output of the lookup.
            gathered = functional.embedding(places, weight)
        else:
            gathered = self._gathered(places, weight.detach()).requires_grad_()
        self.recorder.append((self, ids, gathered))
        return gathered

    def _gathered(self, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.dim > 1 or torch.compiler.is_compiling():
            return functional.embedding(ids, weight)
        # Look up rows of one number in a flat view, which is several times faster.
        return weight.view(-1).index_select(0, ids.reshape(-1)).view(*ids.shape, 1)

    def extra_repr(self) -> str:
        """Return the sizes that `print(module)` shows for this table."""
        return f"{self.rows}, {self.dim}, pieces={len(self.pieces)}"


def tables_of(module: nn.Module) -> Iterator[Table]:
    """Yield the tables in a module."""
    return (one for one in module.modules() if isinstance(one, Table))


def _is_elsewhere(table: Table, what: str) -> InvalidValueError:
    """Return the error that `what` needs the rows of a table which are on parameter servers."""
    return InvalidValueError(
        f"{what[0].upper()}{what[1:]} needs the table of {table.pieces[0].name!r}, which has {table.rows} rows and is "
        "on parameter servers; read it from checkpoints, with Estimator.get_variable_value or by evaluating these."
    )


def _zeros(rows: int, dim: int, large: LargeTables, trainable: bool) -> torch.Tensor:
    """Return zeros ``[rows, dim]`` for a weight, in the place where large ones are created."""
    dtype = torch.get_default_dtype()
    if large is not LargeTables.IN_MEMORY and rows * dim * dtype.itemsize >= LARGE_BYTES:
        if large is LargeTables.ON_SERVERS and trainable:
            return torch.zeros(rows, dim, device="meta")
        if large is LargeTables.IN_FILE and torch.get_default_device().type == "cpu" and sys.platform == "linux":
            # Pages that nobody writes to take no memory. The system must not refuse more of them than it has.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            return torch.frombuffer(mmap.mmap(-1, rows * dim * dtype.itemsize, flags), dtype=dtype).view(rows, dim)
    return torch.zeros(rows, dim)


def draw_values(weight: torch.Tensor, pieces: tuple[Piece, ...], seed: int) -> None:
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
