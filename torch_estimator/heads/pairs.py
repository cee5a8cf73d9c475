"""Refuses losses and metrics that compare every label with every output by mistake.

Labels of shape ``[N]`` and outputs of shape ``[N, 1]`` are meant to be compared one by one, but broadcasting makes
``[N, N]`` of them: a loss then trains something else, and a metric of a perfect model is far from perfect, without any
error. The same holds for ``[N, T]`` and ``[N, 1, T]``, and so on. Only the user's own functions can do that: the losses
of torch that `torch_losses` knows get fitted labels.
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

_NOTHING: _Origins = frozenset()
# The shape of their result does not show what they broadcast inside.
_REDUCED = frozenset(
    {
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss", "gaussian_nll_loss", "kl_div"),
        *("hinge_embedding_loss", "multilabel_soft_margin_loss"),
        *("dist", "pairwise_distance", "cosine_similarity", "allclose"),
    }
)


class PairCheck:
    """Calls a function of a user and raises where it pairs all values of one argument with all of another.

    Pairs within one argument, such as those of a ranking loss, are taken as meant. Only the first call for each
    combination of ranks is watched, since watching takes longer than a small loss.

    Args:
        what: Names the function in the error, for instance ``"The loss"``.
    """

    not_in_fingerprint = ("_seen",)

    def __init__(self, what: str) -> None:
        self._what = what
        self._seen: set[tuple[int | None, ...]] = set()

    def __call__(self, arguments: Mapping[str, Any], call: Callable[[], _T]) -> _T:
        """Return what ``call`` returns.

        Args:
            arguments: What the function is called with, by name: tensors, or mappings and tuples of them.
            call: Calls the function.

        Raises:
            PairsError: An operation makes ``[N, N, ...]`` of ``[N, ...]`` and ``[N, 1, ...]`` that come from different
                arguments.
        """
        # What is compiled has been checked in Python before.
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
    """Notes which arguments each tensor is computed from, and looks at the shapes of every operation."""

    def __init__(self, what: str, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._what = what
        # With the tensors, whose ids nothing else may have meanwhile.
        self._origins: dict[int, tuple[Tensor, _Origins]] = {}
        for name, argument in arguments.items():
            self._note(argument, frozenset({name}))
        self.has_rows = any(len(one) > 1 for one, _ in self._origins.values() if one.dim())

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operands = [(one, self.origins(one)) for one in _tensors((args, kwargs))]
        origins = _NOTHING.union(*(one for _, one in operands))
        if origins:
            name = getattr(func, "__name__", "")
            # What follows outputs and labels, such as the variances of gaussian_nll_loss, torch fits itself.
            compared = operands[:2] if name in _REDUCED else operands
            self.check(name, compared, result, always=name in _REDUCED)
            self._note(result, origins)
            if isinstance(result, np.ndarray):
                return _Watched.of(result, self, origins)
        return result

    def origins(self, value: object) -> _Origins:
        """Return the names of the arguments that a value is computed from."""
        return value.origins if isinstance(value, _Watched) else self._origins.get(id(value), (None, _NOTHING))[1]

    def check(self, name: str, operands: Sequence[tuple[Any, _Origins]], result: Any, *, always: bool = False) -> None:
        """Raise where an operation pairs all of one operand with all of another."""
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
                        f"{list(column.shape)} and {_words(theirs)} {list(row.shape)} makes {list(pairs)}{_place()}; "
                        "give both one shape, for instance by labels.reshape(outputs.shape), or index one with "
                        "[None, :] where all pairs are meant."
                    )

    def _note(self, value: Any, origins: _Origins) -> None:
        for one in _tensors(value):
            if isinstance(one, Tensor):
                self._origins[id(one)] = (one, origins)


class _Watched(np.ndarray):
    """A tensor's numbers as an array whose operations are watched, too."""

    watch: _Watch | None = None
    origins: _Origins = _NOTHING

    @classmethod
    def of(cls, array: np.ndarray, watch: _Watch, origins: _Origins) -> _Watched:
        """Return a view of an array."""
        watched = array.view(cls)
        watched.watch, watched.origins = watch, origins
        return watched

    def __array_finalize__(self, made_of: Any) -> None:
        self.watch = getattr(made_of, "watch", None)
        self.origins = getattr(made_of, "origins", _NOTHING)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # "where" may be watched, too; "out" is a tuple.
        given = {key: tuple(map(_plain, one)) if key == "out" else _plain(one) for key, one in kwargs.items()}
        result = getattr(ufunc, method)(*map(_plain, inputs), **given)
        operands = [(one, one.origins) for one in inputs if isinstance(one, _Watched)]
        if self.watch is None or not operands:
            return result
        self.watch.check(ufunc.__name__, operands, result)
        origins = _NOTHING.union(*(one for _, one in operands))
        return _Watched.of(result, self.watch, origins) if isinstance(result, np.ndarray) else result


def _pairs_shape(column: Sequence[int], row: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape ``[N, N, ...]`` that ``[N, 1, ...]`` and ``[N, ...]`` broadcast to; None for other shapes."""
    if column[0] != row[0]:
        return None
    try:
        return (column[0], row[0], *np.broadcast_shapes(tuple(column[2:]), tuple(row[1:])))
    except ValueError:
        return None


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Watched) else value


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors, and the watched arrays, of a structure."""
    if isinstance(value, Tensor | _Watched):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)


def _words(origins: _Origins) -> str:
    return " and ".join(sorted(origins))


def _place() -> str:
    """Return where the user's code is, in words that follow a sentence's verb."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "torch_estimator"):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"
