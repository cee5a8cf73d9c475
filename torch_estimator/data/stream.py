"""What every step of a pipeline is when it runs: a stream of chunks with a position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch_estimator.data.chunk import Chunk

State = dict[str, Any]


class Stream(ABC):
    """Chunks of rows, one after the other.

    A stream begins at epoch 0. Its state is the position of the next chunk: small, made of JSON's types, and
    enough for another stream made alike to go on with exactly that chunk.
    """

    @abstractmethod
    def start(self, epoch: int) -> None:
        """Goes to the beginning; ``epoch`` decides about what is random."""

    @abstractmethod
    def next(self) -> Chunk | None:
        """Returns the next chunk, never one without rows; None at the end."""

    def next_together(self, rows: int, count: int) -> tuple[Chunk | None, int]:
        """Returns several of the next chunks as one, and how many they are; all of them have the same length.

        Whoever looks at rows one by one is faster with few large chunks. There is no second chunk where putting them
        together would take a copy.

        Args:
            rows: How many they may have together, unless the first alone has more.
            count: How many they may be.
        """
        return self.next(), 1

    @abstractmethod
    def state(self) -> State:
        """Returns the position of the next chunk."""

    def positions(self, together: int) -> Callable[[int], State]:
        """Returns a function that tells the position after each of the chunks that `next_together` gave last.

        It is called with the number of those that were used, from 1, when the stream may be elsewhere.

        Args:
            together: How many they are.
        """
        state = self.state()
        return lambda used: state

    @abstractmethod
    def restore(self, state: State) -> None:
        """Goes to a position that `state` returned."""

    @abstractmethod
    def close(self) -> None:
        """Frees what the stream holds; it is not used afterwards."""


class Passing(Stream):
    """A stream whose position is that of the stream it reads."""

    def __init__(self, upstream: Stream) -> None:
        self._upstream = upstream

    def start(self, epoch: int) -> None:
        self._upstream.start(epoch)

    def state(self) -> State:
        return self._upstream.state()

    def restore(self, state: State) -> None:
        self._upstream.restore(state)

    def close(self) -> None:
        self._upstream.close()
