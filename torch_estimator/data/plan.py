"""From a Dataset's operations to the streams that carry them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from torch_estimator.data.batching import Batching
from torch_estimator.data.bucketing import Bucketing
from torch_estimator.data.cache import Cache
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.class_weight import ClassWeight
from torch_estimator.data.function_identity import function_identity
from torch_estimator.data.iterable import IterableSource
from torch_estimator.data.iterator import Batch, DatasetIterator
from torch_estimator.data.label import Label
from torch_estimator.data.mapping import Map
from torch_estimator.data.padding import PadStream
from torch_estimator.data.prefetch import Prefetch
from torch_estimator.data.shuffle import Shuffle
from torch_estimator.data.source import Reader, Source, Wanted
from torch_estimator.data.state import Signature
from torch_estimator.data.stream import Stream
from torch_estimator.data.take_skip_shard import Shard
from torch_estimator.data.transform import AS_NUMPY, Applied, Transform, apply_transform, wants_others
from torch_estimator.data.windows import WindowStream
from torch_estimator.errors import InvalidValueError

_CACHE_FORMAT = 1


class Operation(Protocol):
    """One step of a Dataset."""

    def stream(self, upstream: Stream) -> Stream:
        """Returns what the step makes of ``upstream``."""

    def signature(self) -> str:
        """Returns what a position depends on, or ''."""


def make_iterator(
    source: Source | IterableSource,
    operations: Sequence[Operation],
    transform: Transform | None,
    convert: Callable[[Batch], Any] | None = None,
) -> DatasetIterator:
    """Returns an iterator over what the operations make of the source, in their order.

    The transform is applied to whole windows, as early as possible: it sees every row on its own, so that only what
    must see raw columns (a map, a cache in a file) must come before it.
    """
    plan = _Plan(operations, transform)
    stream, signature = plan.over_iterable(source) if isinstance(source, IterableSource) else plan.over_rows(source)
    steps = [step for step in (operation.signature() for operation in operations) if step]
    return DatasetIterator(stream, {**signature, "steps": steps}, convert=convert, ahead=plan.ahead)


class _Plan:
    """What is done to rows one by one, at once where they come in, and the operations that are left.

    Labels and class weights before any map are taken out of the operations: rows do not depend on each other, so that
    it does not matter how they are mixed before.

    Attributes:
        ahead: Whether a thread is to make batches ahead: many are handed over at once, for which there must be no
            function of the user's in between.
    """

    def __init__(self, operations: Sequence[Operation], transform: Transform | None) -> None:
        self._given = tuple(operations)
        self._transform = transform
        maps = [place for place, operation in enumerate(operations) if isinstance(operation, Map)]
        early = [one for one in operations[: maps[0] if maps else None] if isinstance(one, Label | ClassWeight)]
        self._mapped = bool(maps)
        self._labels = [one for one in early if isinstance(one, Label)]
        self._weights = [one for one in early if isinstance(one, ClassWeight)]
        kept = [one for one in operations if not any(one is other for other in early)]
        self._operations = [_padding_missing(one, transform) for one in kept]
        self._late = any(map(_wants_raw, self._operations))
        self.ahead = False
        self._buckets = next((one for one in operations if isinstance(one, Bucketing)), None)

    def over_iterable(self, source: IterableSource) -> tuple[Stream, Signature]:
        """Returns the stream over batches that a user's code gives."""
        operations = self._operations
        elements = source.stream(own_random=any(isinstance(one, Cache | Shard) for one in self._given))
        if elements.from_loader:
            # A DataLoader draws from torch's global generator: in a thread, beside a model that does the same,
            # neither would be reproducible. It works ahead by itself, with num_workers.
            operations = [operation for operation in operations if not isinstance(operation, Prefetch)]
        stream: Stream = elements
        for label in self._labels:
            stream = label.stream(stream)
        signature = source.signature()
        return PadStream(self._append(Applied(self._at_source, stream), operations, signature, None)), signature

    def over_rows(self, source: Source) -> tuple[Stream, Signature]:
        """Returns the stream over the rows of files or arrays."""
        operations = self._with_the_thread_at_the_end(self._operations)
        shuffle = operations.pop(0) if operations and isinstance(operations[0], Shuffle) else None
        assert shuffle is None or isinstance(shuffle, Shuffle)
        shuffled = shuffle is not None and shuffle.buffer > 1
        reader = source.open(self._wanted(shuffled))
        shards = 0
        while shards < len(operations) and isinstance(operations[shards], Shard):
            shards += 1
        windows = WindowStream(
            reader,
            shuffling=shuffle.shuffling() if shuffle is not None and shuffled else None,
            prepare=self._at_source if not shards else None,
        )
        stream: Stream = windows
        for shard in operations[:shards]:
            stream = shard.stream(stream)
        if shards:
            stream = Applied(self._at_source, stream)
        # A position counts windows, and how a source is cut into them may depend on the columns that are read.
        signature = {**reader.signature(), "pieces": [reader.ranges, windows.count]}
        stream = self._append(stream, operations[shards:], signature, reader)
        return PadStream(stream) if self._mapped else stream, signature

    def _wanted(self, shuffled: bool) -> Wanted:
        required = self._transform.required if self._transform is not None and not self._mapped else None
        return Wanted(
            columns=required,
            label=self._labels[0] if self._labels else None,
            shuffled=shuffled,
            also=() if self._buckets is None else (self._buckets.column,),
            optional=frozenset(weight.column for weight in self._weights),
            others=required is not None and wants_others(self._transform),
            missing=getattr(self._transform, "missing", {}),
        )

    def _at_source(self, chunk: Chunk) -> Chunk:
        """Does to the rows what does not depend on other rows: once per window instead of once per batch."""
        for weight in self._weights:
            chunk = weight.apply(chunk)
        if not self._late:
            return self._transformed(chunk)
        # A user's function wants plain arrays.
        return apply_transform(AS_NUMPY, chunk) if self._mapped else chunk

    def _transformed(self, chunk: Chunk) -> Chunk:
        if self._transform is None:
            return chunk
        if self._buckets is not None:
            # The column may be gone afterwards.
            chunk = self._buckets.measure(chunk)
        return apply_transform(self._transform, chunk)

    def _append(
        self, stream: Stream, operations: Sequence[Operation], signature: Signature, reader: Reader | None
    ) -> Stream:
        """Returns ``stream`` with the operations; after the last that wants raw columns comes the transform."""
        last = max((place for place, operation in enumerate(operations) if _wants_raw(operation)), default=None)
        for place, operation in enumerate(operations):
            if isinstance(operation, Cache):
                applied = self._transform if last is None or place > last else None
                stream = self._cached(operation, stream, signature, reader, applied)
            else:
                stream = operation.stream(stream)
            if place == last and self._transform is not None:
                buckets = [one for one in operations[:place] if isinstance(one, Bucketing)]
                late = self._transformed if not buckets else partial(apply_transform, self._transform)
                stream = Applied(late, stream)
        return stream

    def _cached(
        self, cache: Cache, stream: Stream, signature: Signature, reader: Reader | None, applied: Transform | None
    ) -> Stream:
        before = self._given[: next(place for place, one in enumerate(self._given) if one is cache)]
        early: list[Operation] = [*self._labels, *self._weights]
        if cache.path is None:
            owner = cache if applied is None else applied
            return cache.shared_stream(stream, [signature, list(map(repr, early))], owner)
        if reader is None:
            raise InvalidValueError(
                f"cache({cache.path!r}) cannot tell whether an iterable gives the same in another run; use cache() "
                "without a filename."
            )
        steps = [_identity(one) for one in (*early, *before) if not isinstance(one, Prefetch)]
        return cache.file_stream(stream, [_CACHE_FORMAT, reader.identity(), signature, steps])

    def _with_the_thread_at_the_end(self, operations: Sequence[Operation]) -> list[Operation]:
        """Leaves prefetching to the iterator; with a map it stays, since the user's function is what may be slow."""
        prefetches = [operation for operation in operations if isinstance(operation, Prefetch) and operation.count]
        self.ahead = bool(prefetches) and not self._mapped
        return [operation for operation in operations if not (self.ahead and isinstance(operation, Prefetch))]


def _padding_missing(operation: Operation, transform: Transform | None) -> Operation:
    """What makes batches for a map: lists are filled up with what a model's columns take for missing values."""
    values = getattr(transform, "list_padding", None)
    if not values or not isinstance(operation, Batching | Bucketing) or operation.padding.values is not None:
        return operation
    return replace(operation, padding=replace(operation.padding, values=values))


def _wants_raw(operation: Operation) -> bool:
    """Whether an operation must come before the transform: it sees raw columns, or keeps them for other models."""
    if isinstance(operation, Cache):
        return operation.path is not None
    return isinstance(operation, Map | Label | ClassWeight)


def _identity(operation: Operation) -> Any:
    if isinstance(operation, Map):
        return ["map", operation.of_batches, function_identity(operation.function)]
    # Of a shuffle, a drawn seed is in the position.
    return operation.signature() if isinstance(operation, Shuffle | Cache) else repr(operation)
