"""The shuffle operation, and the stream that shuffles the rows of preceding operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_estimator.data.chunk import Chunk, concat_chunks
from torch_estimator.data.sources.windows import WINDOW_ROWS, Shuffling, permute_rows
from torch_estimator.data.stream import State, Stream
from torch_estimator.errors import InvalidTypeError, InvalidValueError


@dataclass(frozen=True, kw_only=True, slots=True)
class Shuffle:
    """Operation that shuffles rows, in another order every epoch.

    If `shuffle` is the first operation, the source itself is read in random order (see `WindowStream`). Otherwise
    `ShuffleStream` shuffles the rows that the preceding operations return.

    At least `buffer` rows are shuffled at once; 1 does not shuffle. `drawn_seed` was drawn when the Dataset was made.
    It is used, and saved in the position, if `seed` is None.
    """

    buffer: int
    seed: int | None
    drawn_seed: int

    def __post_init__(self) -> None:
        if isinstance(self.buffer, bool) or not isinstance(self.buffer, int):
            raise InvalidTypeError(f"shuffle's buffer must be a number of rows, but got {self.buffer!r}.")
        if self.buffer < 1:
            raise InvalidValueError(f"shuffle's buffer must be positive, but got {self.buffer}.")
        if self.seed is not None and (not isinstance(self.seed, int) or self.seed < 0):
            raise InvalidValueError(f"shuffle's seed must be a whole number from 0, but got {self.seed!r}.")

    def shuffling(self) -> Shuffling:
        """Return the buffer and seed for a new stream: the user's seed or, if None, the drawn seed."""
        return Shuffling(buffer=self.buffer, seed=self.drawn_seed if self.seed is None else self.seed)

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream that shuffles the rows of `upstream`; `upstream` itself if the buffer is 1."""
        return upstream if self.buffer == 1 else ShuffleStream(upstream, self.shuffling())

    def signature(self) -> str:
        """Return the buffer and the user's seed as text. They must be unchanged when a position is restored."""
        return f"shuffle({self.buffer}, {self.seed})"


def draw_seed() -> int:
    """Return a seed from torch's global generator, so that `torch.manual_seed` makes shuffling reproducible."""
    return int(torch.randint(0, 2**62, ()))


class ShuffleStream(Stream):
    """Stream that collects the chunks of another stream into groups of `buffer` rows or more and shuffles each."""

    def __init__(self, upstream: Stream, shuffling: Shuffling) -> None:
        self._upstream = upstream
        self._shuffling = shuffling
        self._rows = max(shuffling.buffer, WINDOW_ROWS)
        self._epoch = 0
        self._window = 0

    def start(self, epoch: int) -> None:
        self._upstream.start(epoch)
        self._epoch = epoch
        self._window = 0

    def next(self) -> Chunk | None:
        chunks: list[Chunk] = []
        while sum(chunk.rows for chunk in chunks) < self._rows:
            chunk = self._upstream.next()
            if chunk is None:
                break
            chunks.append(chunk)
        if not chunks:
            return None
        window = concat_chunks(chunks)
        order = permute_rows(window.rows, seed=self._shuffling.seed, epoch=self._epoch, window=self._window)
        self._window += 1
        return window.take(order)

    def state(self) -> State:
        return {
            "epoch": self._epoch,
            "window": self._window,
            "seed": self._shuffling.seed,
            "of": self._upstream.state(),
        }

    def restore(self, state: State) -> None:
        self._upstream.restore(state["of"])
        self._epoch = state["epoch"]
        self._window = state["window"]
        self._shuffling.seed = state["seed"]

    def close(self) -> None:
        self._upstream.close()
