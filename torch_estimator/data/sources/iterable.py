"""Any iterable of batches as a source, including torch DataLoaders."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from torch_estimator.data.chunk import Chunk, as_pair, chunk_of, copied
from torch_estimator.data.sources.memory import frame_columns, is_frame
from torch_estimator.data.stream import Signature, State, StateMismatch, Stream
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class IterableSource:
    """Source of batches from a Python iterable, or from a function that returns a new one for every pass.

    A batch is features or a pair (features, labels). Features may be a pandas DataFrame.
    """

    iterable: Iterable[Any] | Callable[[], Iterable[Any]]

    def __post_init__(self) -> None:
        if not callable(self.iterable) and not hasattr(self.iterable, "__iter__"):
            raise InvalidTypeError(
                f"from_iterable takes an iterable of batches, or a function giving one, but got {self.iterable!r}."
            )

    def stream(self, missing: Mapping[str, float], *, own_random: bool = False) -> IterableStream:
        """Return a stream of the batches. The arguments have the same meaning as in `IterableStream`."""
        return IterableStream(self.iterable, missing, own_random=own_random)

    def signature(self) -> Signature:
        """Return the kind of iterable, which must be the same when a saved position is restored."""
        kind = "function" if callable(self.iterable) else type(self.iterable).__name__
        return {"source": kind}


class IterableStream(Stream):
    """Stream of an iterable's batches. A position is a number of batches, and `restore` skips that many batches.

    The batches of a DataLoader also depend on the states of random generators at the beginning of the pass: torch's
    global generator, and the generators given to the DataLoader or its samplers. These states are part of the position.
    With `own_random`, a DataLoader draws from a copy of torch's global generator instead of the generator itself. Then
    the position determines all batches that follow, so that a resumed run can fill a cache again. `missing` has, by
    feature, the number that replaces a missing one.
    """

    def __init__(
        self,
        given: Iterable[Any] | Callable[[], Iterable[Any]],
        missing: Mapping[str, float],
        *,
        own_random: bool = False,
    ) -> None:
        self._given = given
        self._missing = missing
        self._next_pass: Iterable[Any] | None = given() if callable(given) else given
        self.from_loader = isinstance(self._next_pass, DataLoader)
        self._iterator: Iterator[Any] | None = None
        self._taken = 0
        # `_random` is the state of torch's global generator at the beginning of the current pass over the data.
        # `_generators` has the states of the DataLoader's own generators at that time.
        self._random: str | None = None
        self._generators: list[str] = []
        # `_own` is the state of this stream's copy of torch's global generator, or None if there is no copy.
        self._own: torch.Tensor | None = None
        if own_random and self.from_loader:
            self._own = torch.get_rng_state()
            self._generators = [_encode(one.get_state()) for one in _own_generators(self._next_pass)]

    def start(self, epoch: int) -> None:
        self._drop()

    def next(self) -> Chunk | None:
        while (chunk := self._next_chunk()) is not None:
            # Skip batches without rows, because a stream must return chunks with at least one row.
            if chunk.rows:
                return chunk
        return None

    def _next_chunk(self) -> Chunk | None:
        with self._drawing():
            if self._iterator is None:
                self._random = _encode(torch.get_rng_state()) if self.from_loader else None
                self._iterator = self._new_pass(self._generators)
            element = next(self._iterator, _END)
        if element is _END:
            return None
        locate = _Locator(self._taken)
        self._taken += 1
        try:
            features, labels = as_pair(element)
            features = frame_columns(features) if is_frame(features) else features
        except InvalidValueError as error:
            raise DataError(f"{locate(0)}: {error}") from error
        if not self.from_loader:
            features, labels = copied(features), copied(labels)
        return chunk_of(features, labels, locate, self._missing)

    def state(self) -> State:
        state: State = {"taken": self._taken}
        random = self._random if self._own is None or self._random is not None else _encode(self._own)
        if random is not None:
            state["random"] = random
            state["generators"] = self._generators
        return state

    def restore(self, state: State) -> None:
        if self._is_ahead(state):
            self._skip(state["taken"] - self._taken)
            return
        self._drop()
        if self._own is not None and "random" in state:
            self._own = _decode(state["random"])
            self._generators = state["generators"]
        if not state["taken"]:
            return
        self._random = state.get("random")
        with torch.random.fork_rng(devices=[]):
            if self._random is not None:
                torch.set_rng_state(_decode(self._random))
            self._iterator = self._new_pass(state.get("generators"))
            self._skip(state["taken"])
            if self._own is not None:
                self._own = torch.get_rng_state()

    def close(self) -> None:
        self._drop()

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Let the ``with`` block draw from this stream's copy of torch's global generator, if there is a copy."""
        if self._own is None:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._own)
            yield
            self._own = torch.get_rng_state()

    def _is_ahead(self, state: State) -> bool:
        """Return whether a position can be reached by skipping batches of the current pass.

        The answer is always False for a DataLoader, because its position includes the states of random generators.
        """
        return self._iterator is not None and not self.from_loader and state["taken"] >= self._taken

    def _skip(self, count: int) -> None:
        assert self._iterator is not None
        place = self._taken + count
        while self._taken < place:
            self._taken += 1
            if next(self._iterator, _END) is _END:
                self._drop()
                raise StateMismatch(
                    f"The input ended before batch {place}, where the saved position is: it must yield the same "
                    "batches again."
                )

    def _new_pass(self, generators: list[str] | None = None) -> Iterator[Any]:
        """Start another pass over the iterable, and return its iterator.

        The DataLoader's own generators are set to the states `generators`, if any are given.
        """
        iterable = self._next_pass
        if callable(self._given):
            iterable = self._given() if iterable is None else iterable
            self._next_pass = None
        elif isinstance(self._given, Iterator):
            self._next_pass = None
        if iterable is None:
            raise DataError(
                "The input is an iterator, which cannot be gone through a second time: give from_iterable a function "
                "that makes a new one."
            )
        own = _own_generators(iterable)
        for generator, state in zip(own, generators or (), strict=False):
            generator.set_state(_decode(state))
        self._generators = [_encode(generator.get_state()) for generator in own]
        return iter(iterable)

    def _drop(self) -> None:
        self._iterator = None
        self._taken = 0
        self._random = None
        self._generators = []


@dataclass(frozen=True, slots=True)
class _Locator:
    batch: int

    def __call__(self, row: int) -> str:
        return f"batch {self.batch} of the input, row {row} (both from 0)"


_END = object()


def _own_generators(iterable: Any) -> list[torch.Generator]:
    """Return the generators that a DataLoader and its samplers use instead of torch's global one."""
    if not isinstance(iterable, DataLoader):
        return []
    holders = [iterable, iterable.sampler, iterable.batch_sampler, getattr(iterable.batch_sampler, "sampler", None)]
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decode(state: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8)
