"""Iterating over a Dataset with a position that can be saved."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

from torch_estimator.data.state import Signature, StateMismatch, check_signature
from torch_estimator.data.stream import Stream


class Batch(NamedTuple):
    """One batch: features (a column, or a dict or tuple of columns) and labels (the same, or None)."""

    features: Any
    labels: Any


class DatasetIterator:
    """Batches of a Dataset, one after the other; see `Dataset.iterator`.

    Close it, or use it as a context manager, to end its thread (if it prefetches) and free its memory.
    """

    def __init__(self, stream: Stream, signature: Signature) -> None:
        self._stream = stream
        self._signature = signature

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Batch:
        chunk = self._stream.next()
        if chunk is None:
            raise StopIteration
        return Batch(chunk.features, chunk.labels)

    def next_together(self, rows: int, count: int) -> tuple[Batch | None, int]:
        """Returns several of the next batches as one where that takes no copy, and how many they are.

        Args:
            rows: How many they may have together, unless the first alone has more.
            count: How many they may be.

        Returns:
            The batch, whose parts all have the same length, and 1 or more; None at the end.
        """
        chunk, together = self._stream.next_together(rows, count)
        return (None if chunk is None else Batch(chunk.features, chunk.labels)), together

    def state(self) -> dict[str, Any]:
        """Returns the position after the last batch returned: a small dict of JSON's types."""
        return {"signature": self._signature, "position": self._stream.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position that `state` returned, of this or an equal Dataset; the next batch is exactly the next.

        Raises:
            StateMismatch: The position belongs to other data or another pipeline; the iterator stays where it was.
        """
        check_signature(state.get("signature") if isinstance(state, dict) else None, self._signature)
        try:
            self._stream.restore(state["position"])
        except (KeyError, TypeError) as error:
            raise StateMismatch("The saved input position is not one that this version can read.") from error

    def close(self) -> None:
        """Ends the thread and frees the memory; may be called twice."""
        self._stream.close()

    def __enter__(self) -> DatasetIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
