"""Check that a user's loss or metric does not broadcast labels ``[N]`` against outputs ``[N, 1]``.

Labels and outputs are meant to be compared row by row, but broadcasting makes a matrix ``[N, N]`` of all pairs. No
error is raised: the loss then trains another model, and the metric of a perfect model is far from perfect. The same
holds for ``[N, T]`` and ``[N, 1, T]``, and so on. Only functions that users write can do this. The losses of torch that
`torch_estimator.heads.torch_losses` knows get labels of the right shape.

The check runs the function once under a `TorchFunctionMode`, which intercepts every operation. The mode records which
arguments each tensor was computed from, and raises an error if an operation pairs all rows of tensors that come from
different arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torch_estimator.errors import PairsError

_T = TypeVar("_T")

_Origins = frozenset[str]
"""Names of the arguments that a value was computed from."""

_NOTHING: _Origins = frozenset()

# Operations with a reduced result, whose shape does not show the broadcast inside the operation.
# The check looks only at the shapes of their operands.
_REDUCED = frozenset(
    {
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss", "gaussian_nll_loss", "kl_div"),
        *("hinge_embedding_loss", "multilabel_soft_margin_loss"),
        *("dist", "pairwise_distance", "cosine_similarity", "allclose"),
    }
)


class BroadcastCheck:
    """Callable that runs a user's function, and raises an error if an operation pairs all rows of two arguments.

    Pairs within one argument, such as those of a ranking loss, are intended and allowed. Checking a small loss takes
    longer than the loss itself, so only the first call for each combination of numbers of dimensions is checked.

    >>> outputs, labels = torch.zeros(3, 1), torch.zeros(3)
    >>> check = BroadcastCheck("The loss")
    >>> check({"outputs": outputs, "labels": labels}, lambda: (outputs - labels).sum())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    torch_estimator.errors.PairsError: The loss compares each with each: sub of outputs [3, 1] and labels [3] ...
    >>> check({"outputs": outputs, "labels": labels}, lambda: (outputs[:, 0] - labels).sum())
    tensor(0.)
    """

    # Leave `_seen` out of the compiled step's cache key, because it does not change what is computed.
    not_in_fingerprint = ("_seen",)

    def __init__(self, what: str) -> None:
        self._what = what
        self._seen: set[tuple[int | None, ...]] = set()

    def __call__(self, arguments: Mapping[str, Any], call: Callable[[], _T]) -> _T:
        """Return the result of `call`, which calls the function; check it if the numbers of dimensions are new.

        `arguments` are those of the function by name: tensors, or mappings and tuples of tensors. Raise PairsError if
        an operation makes ``[N, N, ...]`` of ``[N, ...]`` and ``[N, 1, ...]`` that come from different arguments.
        """
        # Skip the check during compilation. The step has run in Python before, and has passed the check there.
        if torch.compiler.is_compiling():
            return call()
        ranks = tuple([one.dim() if isinstance(one, Tensor) else None for one in arguments.values()])
        if ranks in self._seen:
            return call()
        watch = _Watch(self._what, arguments)
        with watch:
            result = call()
        if watch.has_rows:
            self._seen.add(ranks)
        return result


class _Watch(TorchFunctionMode):
    """Mode that records which arguments a tensor was computed from, and checks the shapes of every operation.

    `has_rows` says whether an argument has more than one row. With one row, [N, N] and [N, 1] are the same shape.
    """

    def __init__(self, what: str, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._what = what
        # Map the id of each tensor to the tensor and the names of the arguments that it was computed from.
        # Keep the tensor alive, because Python may give the id of a deleted object to a new object.
        self._origins: dict[int, tuple[Tensor, _Origins]] = {}
        for name, argument in arguments.items():
            self._set_origins(argument, frozenset({name}))
        self.has_rows = any(len(one) > 1 for one, _ in self._origins.values() if one.dim())

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operands = [(one, self.origins(one)) for one in _tensors((args, kwargs))]
        origins = _NOTHING.union(*(one for _, one in operands))
        if origins:
            name = getattr(func, "__name__", "")
            # An operation in `_REDUCED` compares its first two operands, so check only these two.
            # torch itself checks the shapes of further operands, such as variances.
            compared = operands[:2] if name in _REDUCED else operands
            self.check(name, compared, result, always=name in _REDUCED)
            self._set_origins(result, origins)
            if isinstance(result, np.ndarray):
                return _WatchedArray.of(result, self, origins)
        return result

    def origins(self, value: object) -> _Origins:
        """Return the names of the arguments that a value was computed from."""
        if isinstance(value, _WatchedArray):
            return value.origins
        return self._origins.get(id(value), (None, _NOTHING))[1]

    def check(self, name: str, operands: Sequence[tuple[Any, _Origins]], result: Any, *, always: bool = False) -> None:
        """Raise PairsError if an operation pairs all rows of one operand with all rows of another operand.

        With `always`, raise even if no result has the shape ``[N, N, ...]``.
        """
        columns = [(one, origins) for one, origins in operands if one.ndim >= 2 and one.shape[1] == 1 < len(one)]
        for column, ours in columns:
            for row, theirs in operands:
                if row.ndim != column.ndim - 1 or not ours or not theirs or ours == theirs:
                    continue
                pairs = _pairs_shape(column.shape, row.shape)
                made = result if isinstance(result, tuple | list) else (result,)
                if pairs and (always or any(tuple(getattr(one, "shape", ())) == pairs for one in made)):
                    raise PairsError(
                        f"{self._what} compares each with each: {name.strip('_') or 'an operation'} of {_words(ours)} "
                        f"{list(column.shape)} and {_words(theirs)} {list(row.shape)} makes {list(pairs)}{_caller()}; "
                        "give both one shape, for instance by labels.reshape(outputs.shape), or index one with "
                        "[None, :] where all pairs are meant."
                    )

    def _set_origins(self, value: Any, origins: _Origins) -> None:
        for one in _tensors(value):
            if isinstance(one, Tensor):
                self._origins[id(one)] = (one, origins)


class _WatchedArray(np.ndarray):
    """NumPy array made from a tracked tensor, for example by ``outputs.numpy()``. Its operations are checked too."""

    watch: _Watch | None = None
    origins: _Origins = _NOTHING

    @classmethod
    def of(cls, array: np.ndarray, watch: _Watch, origins: _Origins) -> _WatchedArray:
        """Return a view of an array whose operations are checked."""
        watched = array.view(cls)
        watched.watch, watched.origins = watch, origins
        return watched

    def __array_finalize__(self, source: Any) -> None:
        # NumPy calls this method for every view and copy, so pass the origins on.
        self.watch = getattr(source, "watch", None)
        self.origins = getattr(source, "origins", _NOTHING)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # Unwrap keyword arguments, too: "where" can be a watched array, and "out" a tuple of watched arrays.
        plain = {key: tuple(map(_plain, one)) if key == "out" else _plain(one) for key, one in kwargs.items()}
        result = getattr(ufunc, method)(*map(_plain, inputs), **plain)
        operands = [(one, one.origins) for one in inputs if isinstance(one, _WatchedArray)]
        if self.watch is None or not operands:
            return result
        self.watch.check(ufunc.__name__, operands, result)
        origins = _NOTHING.union(*(one for _, one in operands))
        return _WatchedArray.of(result, self.watch, origins) if isinstance(result, np.ndarray) else result


def _pairs_shape(column: Sequence[int], row: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape ``[N, N, ...]`` that ``[N, 1, ...]`` and ``[N, ...]`` broadcast to; None for other shapes."""
    if column[0] != row[0]:
        return None
    try:
        return (column[0], row[0], *np.broadcast_shapes(tuple(column[2:]), tuple(row[1:])))
    except ValueError:
        return None


def _plain(value: Any) -> Any:
    """Convert a watched array to an ordinary one; return anything else unchanged."""
    return value.view(np.ndarray) if isinstance(value, _WatchedArray) else value


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors and the watched arrays of a nested structure."""
    if isinstance(value, Tensor | _WatchedArray):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)


def _words(origins: _Origins) -> str:
    return " and ".join(sorted(origins))


def _caller() -> str:
    """Return the file and line of the user's code that is running, in parentheses, or an empty string."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "torch_estimator"):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"
