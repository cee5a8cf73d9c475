"""From a Dataset's operations to the streams that carry them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch_estimator.data.batching import Batching
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.iterable import IterableSource
from torch_estimator.data.iterator import DatasetIterator
from torch_estimator.data.label import Label
from torch_estimator.data.mapping import Map
from torch_estimator.data.portion import Shard
from torch_estimator.data.prefetch import Prefetch, PrefetchStream
from torch_estimator.data.shuffle import Shuffle
from torch_estimator.data.source import Source, Wanted
from torch_estimator.data.state import Signature
from torch_estimator.data.stream import Stream
from torch_estimator.data.transform import AsNumpy, Transform, TransformStream, apply_transform, wants_others
from torch_estimator.data.windows import WindowStream


class Operation(Protocol):
    """One step of a Dataset."""

    def stream(self, upstream: Stream) -> Stream:
        """Returns what the step makes of ``upstream``."""

    def signature(self) -> str:
        """Returns what a position depends on, or ''."""


def make_iterator(
    source: Source | IterableSource, operations: Sequence[Operation], transform: Transform | None
) -> DatasetIterator:
    """Returns an iterator over what the operations make of the source, in their order.

    The transform is applied to whole windows, as early as possible: it sees every row on its own, so that only a
    map, which sees batches, must come before it.
    """
    plan = _Plan(list(operations), transform)
    signature: Signature
    if isinstance(source, IterableSource):
        signature = source.signature()
        stream = plan.over_iterable(source)
    else:
        stream, signature = plan.over_rows(source)
    steps = [step for step in (operation.signature() for operation in operations) if step]
    return DatasetIterator(stream, {**signature, "steps": steps})


class _Plan:
    def __init__(self, operations: list[Operation], transform: Transform | None) -> None:
        self._operations = operations
        self._transform = transform
        self._mapped = any(isinstance(operation, Map) for operation in operations)

    def over_iterable(self, source: IterableSource) -> Stream:
        operations = list(self._operations)
        elements = source.stream()
        if elements.from_loader:
            # A DataLoader draws from torch's global generator: in a thread, beside a model that does the same,
            # neither would be reproducible. It works ahead by itself, with num_workers.
            operations = [operation for operation in operations if not isinstance(operation, Prefetch)]
        labels = [operation for operation in operations if isinstance(operation, Label)]
        stream: Stream = elements
        if not self._mapped:
            for label in labels:
                stream = label.stream(stream)
            operations = [operation for operation in operations if not isinstance(operation, Label)]
            stream = self._transformed(stream)
        return self._append(stream, operations)

    def over_rows(self, source: Source) -> tuple[Stream, Signature]:
        operations = self._with_threads_before_batches(self._operations)
        label = self._take_label(operations)
        shuffle = operations.pop(0) if operations and isinstance(operations[0], Shuffle) else None
        assert shuffle is None or isinstance(shuffle, Shuffle)
        shuffled = shuffle is not None and shuffle.buffer > 1
        required = self._transform.required if self._transform is not None and not self._mapped else None
        others = required is not None and wants_others(self._transform)
        reader = source.open(Wanted(columns=required, label=label, shuffled=shuffled, others=others))
        shards = 0
        while shards < len(operations) and isinstance(operations[shards], Shard):
            shards += 1
        windows = WindowStream(
            reader,
            shuffling=shuffle.shuffling() if shuffle is not None and shuffled else None,
            prepare=self._prepare() if not shards else None,
        )
        stream: Stream = windows
        for shard in operations[:shards]:
            stream = shard.stream(stream)
        if shards and not self._mapped:
            stream = self._transformed(stream)
        # A position counts windows, and how a source is cut into them may depend on the columns that are read.
        signature = {**reader.signature(), "pieces": [reader.ranges, windows.count]}
        return self._append(stream, operations[shards:]), signature

    def _append(self, stream: Stream, operations: Sequence[Operation]) -> Stream:
        """Returns ``stream`` with the operations; after the last map comes the transform, if there was a map."""
        maps = sum(isinstance(operation, Map) for operation in operations)
        for place, operation in enumerate(operations):
            stream = operation.stream(stream)
            if isinstance(operation, Map):
                maps -= 1
                rest = operations[place + 1 :]
                if not maps and not any(isinstance(later, Label) for later in rest):
                    stream = self._transformed(stream)
            elif isinstance(operation, Label) and not maps:
                stream = self._transformed(stream)
        return stream

    def _prepare(self) -> Callable[[Chunk], Chunk] | None:
        transform = self._transform
        if self._mapped:
            # Once per window instead of once per batch; the function wants plain arrays.
            transform = AsNumpy()
        return None if transform is None else lambda chunk: apply_transform(transform, chunk)

    def _transformed(self, stream: Stream) -> Stream:
        return stream if self._transform is None else TransformStream(self._transform, stream)

    def _take_label(self, operations: list[Operation]) -> Label | None:
        """Takes out a label that comes before any map: the source gives it."""
        for place, operation in enumerate(operations):
            if isinstance(operation, Map):
                return None
            if isinstance(operation, Label):
                del operations[place]
                return operation
        return None

    def _with_threads_before_batches(self, operations: Sequence[Operation]) -> list[Operation]:
        """Moves prefetching below batching: one handover per window costs less than one per batch.

        With a map it stays, since the user's function is what may be slow.
        """
        prefetches = [operation for operation in operations if isinstance(operation, Prefetch) and operation.count]
        if self._mapped or not prefetches:
            return list(operations)
        moved = [operation for operation in operations if not isinstance(operation, Prefetch)]
        place = next((i for i, operation in enumerate(moved) if isinstance(operation, Batching)), len(moved))
        moved.insert(place, _OneWindow())
        return moved


class _OneWindow:
    """Reads one window ahead."""

    def stream(self, upstream: Stream) -> Any:
        return PrefetchStream(upstream, 1)

    def signature(self) -> str:
        return ""
