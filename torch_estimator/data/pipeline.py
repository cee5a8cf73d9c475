"""Pipelines: building the iterator that reads a Dataset's source and applies the operations of the Dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.iterator import Batch, DatasetIterator
from torch_estimator.data.label import Label
from torch_estimator.data.operations.batching import Batching, PadStream
from torch_estimator.data.operations.bucketing import Bucketing
from torch_estimator.data.operations.cache import Cache
from torch_estimator.data.operations.class_weight import ClassWeight
from torch_estimator.data.operations.filter import CALLS, Filter, Unbatch
from torch_estimator.data.operations.map import Map, function_identity
from torch_estimator.data.operations.prefetch import Prefetch
from torch_estimator.data.operations.shuffle import Shuffle
from torch_estimator.data.operations.take_skip_shard import Shard
from torch_estimator.data.sources.base import Reader, ReadRequest, Source
from torch_estimator.data.sources.combined import CombinedSource
from torch_estimator.data.sources.iterable import IterableSource
from torch_estimator.data.sources.windows import WindowStream
from torch_estimator.data.stream import ChunkMapStream, Signature, Stream
from torch_estimator.data.transform import AS_NUMPY, Transform, apply_transform, wants_others
from torch_estimator.errors import InvalidValueError

_CACHE_FORMAT = 1


class Operation(Protocol):
    """Protocol of a Dataset's operations, such as shuffle and batch. An operation holds its settings."""

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream that applies this operation to the rows or batches of the stream `upstream`."""

    def signature(self) -> str:
        """Return, as text, the settings that must be unchanged when a saved position is restored."""


def make_iterator(
    source: Source | IterableSource | CombinedSource,
    operations: Sequence[Operation],
    transform: Transform | None,
    convert: Callable[[Batch], Any] | None = None,
) -> DatasetIterator:
    """Return an iterator over the batches that result from applying the operations, in order, to the source's rows.

    The transform is applied to whole windows and as early as possible, which is faster than batch by batch. This is
    correct because the transform treats rows independently. Only operations that need raw columns, which are a map and
    a cache in a file, come before the transform.
    """
    pipeline = _Pipeline(operations, transform, missing=getattr(transform, "missing", {}))
    stream, signature = pipeline.over(source)
    return DatasetIterator(stream, signature, convert=convert, prefetch=pipeline.prefetch)


class _Pipeline:
    """Builder of a Dataset's streams. The first stream reads the source; each operation adds a further stream.

    Label and class weight operations that come before any map are applied to whole windows, right after reading. Their
    order relative to shuffling or batching does not matter, because they treat rows independently.

    `prefetch` says whether the iterator, instead of a stream, reads ahead in a thread. The iterator passes on many
    batches at once, which is faster unless a user's function produces the batches one by one.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        transform: Transform | None,
        *,
        missing: Mapping[str, float],
        is_part: bool = False,
    ) -> None:
        self._given = tuple(operations)
        self._is_part = is_part
        self._transform = transform
        self._missing = missing
        maps = [place for place, operation in enumerate(operations) if isinstance(operation, CALLS)]
        early = [one for one in operations[: maps[0] if maps else None] if isinstance(one, Label | ClassWeight)]
        self._mapped = bool(maps)
        self._labels = [one for one in early if isinstance(one, Label)]
        self._weights = [one for one in early if isinstance(one, ClassWeight)]
        kept = [one for one in operations if not any(one is other for other in early)]
        self._operations = [self._with_missing(one) for one in kept]
        # `_late` is true if an operation needs raw columns, so that the transform cannot run right after reading.
        self._late = any(map(_needs_raw_columns, self._operations))
        self.prefetch = False
        self._buckets = next((one for one in operations if isinstance(one, Bucketing)), None)

    def over(self, source: Source | IterableSource | CombinedSource) -> tuple[Stream, Signature]:
        """Return a stream of the rows or batches of a source, and the signature of source and operations."""
        if isinstance(source, IterableSource):
            stream, signature = self.over_iterable(source)
        elif isinstance(source, CombinedSource):
            stream, signature = self.over_combined(source)
        else:
            stream, signature = self.over_rows(source)
        steps = [step for step in (operation.signature() for operation in self._given) if step]
        return stream, {**signature, "steps": steps}

    def over_combined(self, source: CombinedSource) -> tuple[Stream, Signature]:
        """Return a stream of the rows or batches of several Datasets, and the signature of all."""
        operations = self._operations if source.runs_user_code else self._without_prefetch(self._operations)
        stream, signature = source.open(self._part)
        for label in self._labels:
            stream = label.stream(stream)
        stream = ChunkMapStream(self._prepare, stream)
        return self._padded(self._append(stream, operations, signature, None)), signature

    def _padded(self, stream: Stream) -> Stream:
        # Rows that are combined with others are padded later, to one length for the whole batch.
        return stream if self._is_part else PadStream(stream)

    def over_iterable(self, source: IterableSource) -> tuple[Stream, Signature]:
        """Return a stream of a user's batches, and the source's signature.

        The signature is saved with each position in the input, to check later that the source is still the same.
        """
        operations = self._operations
        own_random = self._is_part or any(isinstance(one, Cache | Shard | Unbatch) for one in self._given)
        elements = source.stream(self._missing, own_random=own_random)
        if elements.from_loader:
            # Do not read a DataLoader in a thread. The DataLoader and the model both draw from torch's global random
            # generator, so their random numbers would depend on timing. `num_workers` is the safe alternative.
            operations = [operation for operation in operations if not isinstance(operation, Prefetch)]
        stream: Stream = elements
        for label in self._labels:
            stream = label.stream(stream)
        stream = ChunkMapStream(self._prepare, stream)
        signature = source.signature()
        return self._padded(self._append(stream, operations, signature, None)), signature

    def over_rows(self, source: Source) -> tuple[Stream, Signature]:
        """Return a stream of rows of files or arrays, and the source's signature, which saved positions include."""
        operations = self._without_prefetch(self._operations)
        shuffle = operations.pop(0) if operations and isinstance(operations[0], Shuffle) else None
        assert shuffle is None or isinstance(shuffle, Shuffle)
        shuffled = shuffle is not None and shuffle.buffer > 1
        reader = source.open(self._request(shuffled))
        shards = 0
        while shards < len(operations) and isinstance(operations[shards], Shard):
            shards += 1
        windows = WindowStream(
            reader,
            shuffling=shuffle.shuffling() if shuffle is not None and shuffled else None,
            # With shards, prepare rows after sharding. The rows of other shards are then never prepared.
            prepare=self._prepare if not shards else None,
        )
        stream: Stream = windows
        for shard in operations[:shards]:
            stream = shard.stream(stream)
        if shards:
            stream = ChunkMapStream(self._prepare, stream)
        # A saved position holds a window number, so it is valid only for the same ranges and windows. The number of
        # windows may change with the columns that are read.
        signature = {**reader.signature(), "pieces": [reader.ranges, windows.count]}
        stream = self._append(stream, operations[shards:], signature, reader)
        return self._padded(stream) if self._mapped else stream, signature

    def _request(self, shuffled: bool) -> ReadRequest:
        required = self._transform.required if self._transform is not None and not self._mapped else None
        return ReadRequest(
            columns=required,
            label=self._labels[0] if self._labels else None,
            shuffled=shuffled,
            extra=() if self._buckets is None else (self._buckets.column,),
            optional=frozenset(weight.column for weight in self._weights),
            others=required is not None and wants_others(self._transform),
            missing=self._missing,
            see_names=None if self._mapped else getattr(self._transform, "see_names", None),
        )

    def _prepare(self, chunk: Chunk) -> Chunk:
        """Apply class weights to newly read rows. Apply the transform, too, unless an operation needs raw columns."""
        for weight in self._weights:
            chunk = weight.apply(chunk)
        if not self._late:
            return self._transformed(chunk)
        # A later map calls a user's function, which expects numpy arrays.
        return apply_transform(AS_NUMPY, chunk) if self._mapped else chunk

    def _transformed(self, chunk: Chunk) -> Chunk:
        if self._transform is None:
            return chunk
        if self._buckets is not None:
            # Measure the list lengths now, because the transform may drop the column that determines the bucket.
            chunk = self._buckets.measure(chunk)
        return apply_transform(self._transform, chunk)

    def _append(
        self, stream: Stream, operations: Sequence[Operation], signature: Signature, reader: Reader | None
    ) -> Stream:
        """Add operations to `stream`. The transform follows the last operation that needs raw columns."""
        last = max((place for place, operation in enumerate(operations) if _needs_raw_columns(operation)), default=None)
        for place, operation in enumerate(operations):
            if isinstance(operation, Cache):
                applied = self._transform if last is None or place > last else None
                stream = self._cached(operation, stream, signature, reader, applied)
            else:
                stream = operation.stream(stream)
            if place == last and self._transform is not None:
                buckets = [one for one in operations[:place] if isinstance(one, Bucketing)]
                late = self._transformed if not buckets else partial(apply_transform, self._transform)
                stream = ChunkMapStream(late, stream)
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
                f"cache({cache.path!r}) cannot tell whether an iterable, or several Datasets, give the same in another "
                "run; use cache() without a filename."
            )
        steps = [_identity(one, self._missing) for one in (*early, *before) if not isinstance(one, Prefetch)]
        return cache.file_stream(stream, [_CACHE_FORMAT, reader.identity(), signature, steps])

    def _part(self, dataset: Any) -> tuple[Stream, Signature]:
        """Return the stream and the signature of a Dataset that is combined with others, without a transform."""
        part = _Pipeline(dataset._operations, None, missing=self._missing, is_part=True)
        return part.over(dataset._source)

    def _with_missing(self, operation: Operation) -> Operation:
        """Give an operation the numbers that the model takes for missing ones, and the values with which it pads lists.

        Padding values that the user gave are kept.
        """
        if isinstance(operation, Map):
            return replace(operation, missing=self._missing)
        values = getattr(self._transform, "list_padding", None)
        if not values or not isinstance(operation, Batching | Bucketing) or operation.padding.values is not None:
            return operation
        return replace(operation, padding=replace(operation.padding, values=values))

    def _without_prefetch(self, operations: Sequence[Operation]) -> list[Operation]:
        """Remove the prefetch operations if the iterator can read ahead instead. Set `self.prefetch` accordingly.

        If there is a map, the operations stay, because the user's function may take most of the time.
        """
        prefetches = [operation for operation in operations if isinstance(operation, Prefetch) and operation.count]
        self.prefetch = bool(prefetches) and not self._mapped
        return [operation for operation in operations if not (self.prefetch and isinstance(operation, Prefetch))]


def _needs_raw_columns(operation: Operation) -> bool:
    """Return whether an operation must run before the transform, because it reads or stores raw columns."""
    if isinstance(operation, Cache):
        return operation.path is not None
    return isinstance(operation, CALLS | Label | ClassWeight)


def _identity(operation: Operation, missing: Mapping[str, float]) -> Any:
    """Return a list or text that is equal in two runs only if the operation does the same in both runs.

    `missing` has, by feature, the number that replaces a missing one.
    """
    if isinstance(operation, Map):
        found = ["map", operation.of_batches, function_identity(operation.function)]
        return [*found, dict(missing)] if missing else found
    if isinstance(operation, Filter):
        return ["filter", operation.of_batches, function_identity(operation.predicate)]
    # Leave out the seed that a shuffle drew. The cache compares this seed as part of the position.
    return operation.signature() if isinstance(operation, Shuffle | Cache) else repr(operation)
