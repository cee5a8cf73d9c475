"""Map: a user's function that is applied to batches, or, before batching, to many rows at once."""

from __future__ import annotations

import dis
import functools
import logging
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from torch_estimator import tree
from torch_estimator.data import arrow
from torch_estimator.data.chunk import Chunk, chunk_of
from torch_estimator.data.columns import Array, Column, to_numpy
from torch_estimator.data.lists import is_lists
from torch_estimator.data.stream import PassThroughStream, Stream
from torch_estimator.errors import InvalidTypeError, InvalidValueError

logger = logging.getLogger("torch_estimator")

_MANY_EMPTY = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Map:
    """Operation that calls a user's function with the features and labels of every batch, as numpy arrays.

    A batch of which the function leaves no rows is skipped. Without `of_batches`, the function is called with parts of
    the stream of rows, in which a column of lists is an object array with one array per row. `missing` has, by feature,
    the number that replaces a missing one in its results.
    """

    function: Callable[..., Any]
    of_batches: bool = True
    missing: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidTypeError(f"map takes a function, but got {self.function!r}.")

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream of the results that the function returns for the chunks of `upstream`."""
        return _MapStream(upstream, self)

    def signature(self) -> str:
        """Return "map" without the function, so that a resumed run may use a corrected function."""
        return "map"


class _MapStream(PassThroughStream):
    def __init__(self, upstream: Stream, settings: Map) -> None:
        super().__init__(upstream)
        self._function = settings.function
        self._of_batches = settings.of_batches
        self._missing = settings.missing

    def next(self) -> Chunk | None:
        empty = 0
        while (chunk := self._upstream.next()) is not None:
            mapped = self._mapped(chunk)
            if mapped.rows:
                return mapped
            empty += 1
            if empty == _MANY_EMPTY:
                # If the function removes all rows of an endless input, this loop never ends. Warn about this once.
                logger.warning("The function given to map has removed all rows of %d consecutive batches.", empty)
        return None

    def _mapped(self, chunk: Chunk) -> Chunk:
        result = call(self._function, chunk, of_batches=self._of_batches)
        result = _pair(result) if chunk.labels is not None else _pair_or_features(result, chunk.features)
        mapped = chunk_of(*result, chunk.locate, self._missing)
        if not self._of_batches and mapped.rows != chunk.rows:
            raise InvalidValueError(
                f"the function given to map must return as many rows as it gets, but made {mapped.rows} of "
                f"{chunk.rows}; before batch it sees many rows at once."
            )
        mapped.label_column = chunk.label_column
        return mapped


def call(function: Callable[..., Any], chunk: Chunk, *, of_batches: bool) -> Any:
    """Call a user's function with the features of a chunk, and its labels if there are any, as numpy arrays.

    Lists are padded if `of_batches` is set; otherwise a column of lists is an object array with one array per row.
    """
    convert = to_numpy if of_batches else _row_by_row
    structures = [chunk.features] if chunk.labels is None else [chunk.features, chunk.labels]
    arguments = [tree.map(convert, one) for one in structures]
    try:
        return function(*arguments)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # The function's own code has raised it.
        given = "features, since the Dataset has no labels" if chunk.labels is None else "features and labels"
        raise InvalidTypeError(f"A function of map or filter is called with {given}: {error}.") from error


def _row_by_row(column: Column) -> Array:
    if isinstance(column, np.ndarray) or not is_lists(column):
        return to_numpy(column)
    return arrow.to_numpy(column)


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise InvalidValueError(
            f"the function given to map must return (features, labels) if it gets both, but returned {_kind(result)}."
        )
    return result[0], result[1]


def _pair_or_features(result: Any, features: Any) -> tuple[Any, Any]:
    """Split the result of a function that was called without labels into features and labels (None if absent).

    A pair is taken as features and labels, unless the features were a pair themselves.
    """
    was_pair = isinstance(features, tuple) and len(features) == 2
    if isinstance(result, tuple) and len(result) == 2 and not was_pair:
        return result
    return result, None


def _kind(result: Any) -> str:
    return f"a {type(result).__name__}" + (f" of {len(result)}" if isinstance(result, tuple | list) else "")


def function_identity(function: Any) -> str:
    """Return a hash of a function and everything that it uses. Equal hashes in two runs mean equal functions.

    The hash covers the code, defaults, closure and global values of the function, and of the functions that these refer
    to. A module is represented by its version, or by its file's time of modification if it has no version. Raise if the
    function uses a value that cannot be compared between runs.
    """
    return sha256(repr(_described(function, function, ())).encode()).hexdigest()


def _described(value: Any, function: Any, seen: tuple[int, ...]) -> Any:
    """Return a description of a value for hashing, made of strings, numbers, lists and tuples.

    `function` is named in messages. `seen` holds the ids of the values that this value is a part of.
    """
    if id(value) in seen:
        return "recursion"
    seen = (*seen, id(value))

    def inside(part: Any) -> Any:
        return _described(part, function, seen)

    if isinstance(value, FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        named = {name: value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__}
        return (_code(value.__code__), *map(inside, (value.__defaults__, value.__kwdefaults__, cells, named)))
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, MethodType):
        return inside(value.__func__), inside(value.__self__)
    if isinstance(value, functools.partial):
        return tuple(map(inside, (value.func, value.args, value.keywords)))
    if isinstance(value, ModuleType):
        return value.__name__, getattr(value, "__version__", None) or _file_time(value)
    if isinstance(value, dict):
        return [(repr(key), inside(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [inside(part) for part in value]
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return str(value.dtype), value.shape, sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype):
        return repr(value)
    return _pickled(value, function)


def _pickled(value: Any, function: Any) -> str:
    try:
        return f"{type(value).__qualname__} {sha256(pickle.dumps(value)).hexdigest()}"
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise InvalidValueError(
            f"cache(filename) cannot tell whether the function {name} is the same in another run: it uses {value!r}; "
            "use cache() without a filename."
        ) from error


def _file_time(module: ModuleType) -> int | None:
    try:
        return os.stat(str(module.__file__)).st_mtime_ns
    except (AttributeError, OSError):
        return None


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames


def _constant(value: Any) -> str:
    # The order of a set of strings differs from process to process, so sort the elements of a set.
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def _names(code: CodeType) -> list[str]:
    """Return the names of the globals that a code object reads. `co_names` also includes names of attributes."""
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names(one)]
    own = [str(one.argval) for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"]
    return [*own, *inner]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"
