"""`DatasetIterator`: iteration over the batches of a Dataset, with a position that can be saved.

Consecutive batches of equal length often lie in one piece of memory, because they are slices of the same chunk. The
iterator reads such a block at once, converts it at once, and cuts it into batches when they are requested. This takes
much less time than the same work batch by batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from torch_estimator import activity, tree
from torch_estimator.data.operations.prefetch import PrefetchThread
from torch_estimator.data.stream import Signature, State, StateMismatch, Stream, check_signature
from torch_estimator.errors import DataError

_BLOCKS_AHEAD = 2
_MAX_BATCHES = 1024
_MAX_BYTES = 2**26


class Batch(NamedTuple):
    """One batch, as a `DatasetIterator` returns it.

    Attributes:
        features: A column, or a dict or tuple of columns; rows first.
        labels: The same, or None.

    >>> with te.data.Dataset.from_arrays({"x": [1, 2]}, [0, 1]).batch(2).iterator() as batches:
    ...     batch = next(batches)
    >>> batch.features["x"], batch.labels
    (array([1, 2]), array([0, 1]))
    """

    features: Any
    labels: Any


class DatasetIterator:
    """Iterator over the batches of a Dataset, made by `Dataset.iterator`. Its position can be saved.

    Close the iterator, or use it as a context manager, to end its thread (if it prefetches) and free its memory.

    Args:
        stream: Stream of batches.
        signature: Description of the data and operations. It must be equal when a saved position is restored.
        convert: Applied to every `Batch`; None leaves batches as they are.
        prefetch: Whether to read and convert in a thread.

    >>> data = te.data.Dataset.from_arrays({"x": [1, 2, 3, 4, 5, 6]}).batch(2)
    >>> with data.iterator() as batches:
    ...     first, position = next(batches), batches.state()
    >>> batches = data.iterator()
    >>> batches.restore(position)
    >>> [batch.features["x"].tolist() for batch in batches]
    [[3, 4], [5, 6]]
    >>> batches.close()
    """

    def __init__(
        self,
        stream: Stream,
        signature: Signature,
        *,
        convert: Callable[[Batch], Any] | None = None,
        prefetch: bool = False,
    ) -> None:
        self._stream = stream
        self._signature = signature
        self._read = _BlockReader(stream, convert)
        self._prefetch = prefetch
        self._thread: PrefetchThread[_Block] | None = None
        self._block: _Block | None = None
        self._used = 0
        self._position = stream.state()

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        block = self._block
        if block is None or self._used == block.count:
            block = self._next_block()
        batch = block.batch(self._used)
        self._used += 1
        return batch

    def next_together(self, rows: int, count: int) -> tuple[Any, int]:
        """Return consecutive batches as one, and their number, if they have equal length and joining needs no copy.

        There are at most `count` batches and `rows` rows; the first batch is returned even if it has more. The batch is
        None at the end.
        """
        block = self._current_block()
        if block is None:
            return None, 1
        batch, together = block.together(self._used, rows, count)
        self._used += together
        return batch, together

    def next_in_block(self, count: int) -> tuple[Any, int, int, int]:
        """Return the block that holds the next batches, and the range of these batches in the block.

        A block is many batches as one. It stays the same object for many calls, so that a caller may keep results
        computed from the block.

        The results are the block as one batch, None at the end; the number of batches in the block, all of one length;
        the index in the block of the first batch that this call returns, from 0; and the number of batches that it
        returns, at most `count`.
        """
        block = self._current_block()
        if block is None:
            return None, 1, 0, 1
        first = self._used
        self._used += min(count, block.count - first)
        return block.whole, block.count, first, self._used - first

    def state(self) -> dict[str, Any]:
        """Return the position after the last batch returned: a small dict of values that JSON can represent."""
        return {"signature": self._signature, "position": self._own_position()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a saved position, so that the next batch is the first batch after this position.

        Args:
            state: The position, of this iterator or of one of an equal Dataset.

        Raises:
            StateMismatch: The position belongs to other data or another pipeline. The iterator keeps its own position.
        """
        check_signature(state.get("signature") if isinstance(state, dict) else None, self._signature)
        self._stop()
        try:
            self._stream.restore(state["position"])
        except (KeyError, TypeError) as error:
            raise StateMismatch("The saved input position is not one that this version can read.") from error
        self._block = None
        self._position = state["position"]

    def close(self) -> None:
        """End the prefetch thread, if there is one, and free the memory. May be called twice."""
        self._stop()
        self._stream.close()

    def __enter__(self) -> DatasetIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _current_block(self) -> _Block | None:
        """Return the block that holds the next batch, or None at the end of the data."""
        # This caller takes many batches at once, so stop cutting blocks into single batches in advance.
        self._read.cut = False
        block = self._block
        if block is None or self._used == block.count:
            try:
                return self._next_block()
            except StopIteration:
                return None
        return block

    def _next_block(self) -> _Block:
        self._position = self._own_position()
        # Drop the used block now, so that its memory is free while the next block is read.
        self._block = None
        block, after = self._take()
        if block is None:
            self._position = after
            raise StopIteration
        self._block, self._used = block, 0
        return block

    def _own_position(self) -> State:
        return self._block.position(self._used) if self._block is not None else self._position

    def _take(self) -> tuple[_Block | None, State]:
        try:
            if self._prefetch and self._thread is None:
                self._thread = PrefetchThread(self._read, _BLOCKS_AHEAD)
            with activity.INPUT:
                return self._read() if self._thread is None else self._thread.take()
        except StopIteration as error:
            # A StopIteration from a user's function would silently end a loop over batches, so convert the error.
            raise DataError(
                f"{_raised_at(error)} raised StopIteration in a function of the input; catch it there, or give next() "
                "a second argument."
            ) from error

    def _stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None


class _Block:
    """Consecutive batches of equal length in one piece of memory.

    `whole` has the rows of all batches, as one `Batch` or what `convert` made of this batch. `position` returns the
    position after a number of these batches, from 1.
    """

    def __init__(self, whole: Any, count: int, position: Callable[[int], State]) -> None:
        self.whole = whole
        self.count = count
        self.position = position
        self._batches: Sequence[Any] | None = None

    def cut(self) -> None:
        """Cut the block into all its batches at once. This is faster than one batch at a time."""
        self._batches = [self.whole] if self.count == 1 else tree.split_rows(self.whole, self.count)

    def batch(self, number: int) -> Any:
        """Return the batch with the index `number` in this block, from 0."""
        return self.together(number, 0, 1)[0] if self._batches is None else self._batches[number]

    def together(self, first: int, rows: int, count: int) -> tuple[Any, int]:
        """Return the batches from number `first` on as one, and their number, within the limits `rows` and `count`."""
        size = _rows(self.whole) // self.count
        several = max(1, min(count, rows // size, self.count - first))
        if several == self.count:
            return self.whole, several
        return tree.slice_rows(self.whole, first * size, (first + several) * size), several


class _BlockReader:
    """Callable that returns a stream's next block. A thread may call it, so it holds no reference to the iterator.

    `convert` is applied to every block as one `Batch`; it treats rows independently. None leaves batches as they are.
    `cut` says whether to cut blocks into batches in advance.
    """

    def __init__(self, stream: Stream, convert: Callable[[Batch], Any] | None) -> None:
        self._stream = stream
        self._convert = convert
        self._max_rows = 2**62
        self.cut = True

    def __call__(self) -> tuple[_Block | None, State]:
        """Return the next block, or None at the end, and the position after the block."""
        chunk, count = self._stream.next_block(self._max_rows, _MAX_BATCHES)
        after = self._stream.state()
        if chunk is None:
            return None, after
        batch = Batch(chunk.features, chunk.labels)
        whole = batch if self._convert is None else self._convert(batch)
        if self._convert is not None:
            # A converted block may be on a GPU, so limit its memory. The first block of a chunk is a single batch.
            nbytes = sum(getattr(leaf, "nbytes", 0) for leaf in tree.leaves(whole))
            self._max_rows = _MAX_BYTES * chunk.rows // max(1, nbytes)
        block = _Block(whole, count, self._stream.block_positions(count))
        if self.cut:
            block.cut()
        return block, after


def _rows(values: Any) -> int:
    while isinstance(values, dict | tuple):
        values = next(iter(values.values() if isinstance(values, dict) else values))
    return len(values)


def _raised_at(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{place.filename}, line {place.lineno}"
