"""Streams: iterators over chunks of rows that can save their position. Every source and operation is a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.sources.input_files import files_difference
from torch_estimator.errors import InvalidValueError

State = dict[str, Any]
"""A position in a stream: a small dict of JSON's types."""

Signature = dict[str, Any]
"""What must be equal for a saved position to mean the same rows: a small dict of JSON's types."""


class Stream(ABC):
    """Iterator over chunks of rows, with a position that can be saved and restored.

    A stream begins at epoch 0. Its state is the position of the next chunk. Another stream made from the same Dataset
    that restores this state returns exactly the chunks that this stream would have returned.
    """

    @abstractmethod
    def start(self, epoch: int) -> None:
        """Go to the beginning of the data. Random choices, such as the order of a shuffle, depend on `epoch`."""

    @abstractmethod
    def next(self) -> Chunk | None:
        """Return the next chunk, or None at the end. A chunk has at least one row."""

    def next_block(self, max_rows: int, max_chunks: int) -> tuple[Chunk | None, int]:
        """Return consecutive chunks as one, and their number, if they have equal length and joining them needs no copy.

        Code that treats rows independently is faster with few large chunks than with many small ones. There are at most
        `max_chunks` chunks and `max_rows` rows; the first chunk is returned even if it has more. The chunk is None at
        the end.
        """
        return self.next(), 1

    @abstractmethod
    def state(self) -> State:
        """Return the position of the next chunk."""

    def block_positions(self, count: int) -> Callable[[int], State]:
        """Return a function from a number of used chunks of the last block to the position after these chunks.

        The last block is what `next_block` returned last. The number is at least 1. The function may be called after
        the stream has returned further chunks. `count` is the number of chunks in the block.
        """
        state = self.state()
        return lambda used: state

    def endless_epoch(self) -> int | None:
        """Return the epoch of the nearest `repeat` without end among the operations so far, or None without one."""
        upstream = getattr(self, "_upstream", None)
        return upstream.endless_epoch() if isinstance(upstream, Stream) else None

    @abstractmethod
    def restore(self, state: State) -> None:
        """Go to a saved position, so that the next chunk is the chunk at this position."""

    @abstractmethod
    def close(self) -> None:
        """Free files, threads and memory. The stream is not used afterwards."""


class PassThroughStream(Stream):
    """Base class of a stream without state. Its position is the position of the stream that it reads."""

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


class ChunkMapStream(PassThroughStream):
    """Stream that applies a function to every chunk. The function must keep the number and order of rows."""

    def __init__(self, function: Callable[[Chunk], Chunk], upstream: Stream) -> None:
        super().__init__(upstream)
        self._function = function

    def next(self) -> Chunk | None:
        chunk = self._upstream.next()
        return None if chunk is None else self._function(chunk)


class StateMismatch(InvalidValueError):
    """Error about a saved input position that belongs to other data or to another pipeline.

    >>> with te.data.Dataset.from_arrays({"x": [1, 2]}).batch(2).iterator() as batches:
    ...     position = batches.state()
    >>> with te.data.Dataset.from_arrays({"x": [1, 2, 3]}).batch(2).iterator() as batches:
    ...     batches.restore(position)
    Traceback (most recent call last):
        ...
    torch_estimator.data.stream.StateMismatch: The saved position belongs to another input: its rows was 2, but is 3.
    """


def check_signature(saved: Any, own: Signature) -> None:
    """Check that a saved position belongs to this pipeline; raise a StateMismatch that names the first difference."""
    if not isinstance(saved, Mapping):
        raise StateMismatch("The saved input position is not one that this version can read.")
    for key in (*own, *saved):
        if saved.get(key) == own.get(key):
            continue
        if key == "files" and key in own and saved.get("source") == own["source"]:
            difference = files_difference(saved.get(key), own[key])
        else:
            difference = _difference(key, saved, own)
        raise StateMismatch(f"The saved position belongs to another input: {difference}.")


def _difference(key: str, saved: Mapping[str, Any], own: Signature) -> str:
    before, now = _shorten(saved.get(key)), _shorten(own.get(key))
    if key == "steps":
        return f"the operations of the Dataset were {before!r}, but are {now!r}"
    return f"its {key} was {before}, but is {now}"


def _shorten(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
