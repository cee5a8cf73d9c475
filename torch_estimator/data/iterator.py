"""Iterating over a Dataset with a position that can be saved."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch_estimator.data.prefetch_thread import Ahead
from torch_estimator.data.runs import Batch, Run, RunReader
from torch_estimator.data.state import Signature, StateMismatch, check_signature
from torch_estimator.data.stream import State, Stream
from torch_estimator.errors import DataError

_RUNS_AHEAD = 2

__all__ = ["Batch", "DatasetIterator"]


class DatasetIterator:
    """Batches of a Dataset, one after the other; see `Dataset.iterator`.

    Close it, or use it as a context manager, to end its thread (if it prefetches) and free its memory.

    Args:
        stream: Of batches.
        signature: What a position depends on.
        convert: What to make of every `Batch`, or None to leave it as it is.
        ahead: Whether to work ahead in a thread.
    """

    def __init__(
        self,
        stream: Stream,
        signature: Signature,
        *,
        convert: Callable[[Batch], Any] | None = None,
        ahead: bool = False,
    ) -> None:
        self._stream = stream
        self._signature = signature
        self._read = RunReader(stream, convert)
        self._ahead = ahead
        self._work: Ahead[Run] | None = None
        self._run: Run | None = None
        self._used = 0
        self._position = stream.state()

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        run = self._run
        if run is None or self._used == run.count:
            run = self._next_run()
        batch = run.batch(self._used)
        self._used += 1
        return batch

    def next_together(self, rows: int, count: int) -> tuple[Any, int]:
        """Returns several of the next batches as one where that takes no copy, and how many they are.

        Args:
            rows: How many they may have together, unless the first alone has more.
            count: How many they may be.

        Returns:
            The batch, whose parts all have the same length, and 1 or more; None at the end.
        """
        run = self._run_at_hand()
        if run is None:
            return None, 1
        batch, together = run.together(self._used, rows, count)
        self._used += together
        return batch, together

    def next_of_run(self, count: int) -> tuple[Any, int, int, int]:
        """Returns several of the next batches as rows of what they lie in, which stays the same for many calls.

        Args:
            count: How many they may be.

        Returns:
            The batch that they are parts of, None at the end; how many batches of one length that is; which of them,
            from 0, is the first of these; and how many these are, 1 or more.
        """
        run = self._run_at_hand()
        if run is None:
            return None, 1, 0, 1
        first = self._used
        self._used += min(count, run.count - first)
        return run.whole, run.count, first, self._used - first

    def state(self) -> dict[str, Any]:
        """Returns the position after the last batch returned: a small dict of JSON's types."""
        return {"signature": self._signature, "position": self._own_position()}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position that `state` returned, of this or an equal Dataset; the next batch is exactly the next.

        Raises:
            StateMismatch: The position belongs to other data or another pipeline; the iterator stays where it was.
        """
        check_signature(state.get("signature") if isinstance(state, dict) else None, self._signature)
        self._stop()
        try:
            self._stream.restore(state["position"])
        except (KeyError, TypeError) as error:
            raise StateMismatch("The saved input position is not one that this version can read.") from error
        self._run = None
        self._position = state["position"]

    def close(self) -> None:
        """Ends the thread and frees the memory; may be called twice."""
        self._stop()
        self._stream.close()

    def __enter__(self) -> DatasetIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run_at_hand(self) -> Run | None:
        """The run that the next batch is of, which nobody takes apart any more; None at the end."""
        self._read.apart = False
        run = self._run
        if run is None or self._used == run.count:
            try:
                return self._next_run()
            except StopIteration:
                return None
        return run

    def _next_run(self) -> Run:
        self._position = self._own_position()
        # Its memory is free while the next one is waited for.
        self._run = None
        run, after = self._take()
        if run is None:
            self._position = after
            raise StopIteration
        self._run, self._used = run, 0
        return run

    def _own_position(self) -> State:
        return self._run.position(self._used) if self._run is not None else self._position

    def _take(self) -> tuple[Run | None, State]:
        try:
            if not self._ahead:
                return self._read()
            if self._work is None:
                self._work = Ahead(self._read, _RUNS_AHEAD)
            return self._work.take()
        except StopIteration as error:
            # A loop over the batches would take it for the end of the data.
            raise DataError(
                f"{_raised_at(error)} raised StopIteration in a function of the input; catch it there, or give next() "
                "a second argument."
            ) from error

    def _stop(self) -> None:
        if self._work is not None:
            self._work.stop()
            self._work = None


def _raised_at(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{place.filename}, line {place.lineno}"
