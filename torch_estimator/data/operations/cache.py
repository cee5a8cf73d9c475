"""Caching: storing the chunks of the first epoch, and reading the stored chunks in later epochs."""

from __future__ import annotations

import json
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch_estimator import tree
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import read_only
from torch_estimator.data.stream import State, StateMismatch, Stream
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.files import is_local


class CacheStore(ABC):
    """Storage of chunks in the order in which they were added. Stored chunks must not be changed.

    `complete` says whether the store has all chunks of the stream.
    """

    complete: bool

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of stored chunks."""

    @abstractmethod
    def get(self, number: int) -> Chunk:
        """Return the stored chunk with this number, counted from 0."""

    @abstractmethod
    def add(self, chunk: Chunk) -> Chunk:
        """Add a chunk and return it in the form in which it is stored."""

    @abstractmethod
    def finish(self) -> None:
        """Mark the store as complete, after the last chunk of the stream was added."""

    @abstractmethod
    def close(self) -> None:
        """Free files and memory that only this store uses."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, weakref_slot=True)
class Cache:
    """Operation that stores the rows or batches of the preceding operations, in memory or, with a path, in a file."""

    path: str | None = None
    _kept: weakref.WeakKeyDictionary[Any, dict[str, MemoryStore]] = field(default_factory=weakref.WeakKeyDictionary)

    def __post_init__(self) -> None:
        if self.path is None:
            return
        if not isinstance(self.path, str):
            raise InvalidTypeError(f"cache's filename must be a path, but got {self.path!r}.")
        if not self.path or not is_local(self.path):
            raise InvalidValueError(f"cache's filename must be a path on this machine, but got {self.path!r}.")

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream that stores the chunks of `upstream` in memory. Other iterators do not share them."""
        return CacheStream(upstream, lambda begin: MemoryStore())

    def shared_stream(self, upstream: Stream, identity: Any, owner: Any) -> Stream:
        """Return a stream that stores the chunks of `upstream` in memory, and shares them with other iterators.

        The chunks are kept until the Dataset or `owner`, the transform that was applied to `upstream`, is deleted. Only
        iterators with the same transform share them. JSON can represent `identity`, which differs from that of any
        other stream of this Dataset.
        """
        if not _can_own(owner):
            return self.stream(upstream)

        def store(begin: State) -> CacheStore:
            key = json.dumps([identity, begin])
            kept = self._kept.get(owner, {}).get(key)
            return kept if kept is not None else MemoryStore(lambda full: self._keep(owner, key, full))

        return CacheStream(upstream, store)

    def file_stream(self, upstream: Stream, identity: Any) -> Stream:
        """Return a stream that stores the chunks of `upstream` in the file `path`.

        JSON can represent `identity`, which is equal in another run only if the run reads the same rows.
        """
        from torch_estimator.data.operations.cache_file import FileStore

        path = self.path
        assert path is not None
        return CacheStream(upstream, lambda begin: FileStore(path, json.dumps([identity, begin], sort_keys=True)))

    def signature(self) -> str:
        """Return "cache" without the path, since a saved position stays valid if the path changes."""
        return "cache"

    def _keep(self, owner: Any, key: str, full: MemoryStore) -> None:
        self._kept.setdefault(owner, {})[key] = full


class CacheStream(Stream):
    """Stream that reads another stream once and stores its chunks. Later passes return the stored chunks.

    If a pass ends early, the next pass continues to fill the store. A position consists of the position at which the
    other stream began, and the number of chunks returned since then. A resumed run reads these chunks again, to fill
    the store. `store` returns a store for the chunks from a position on, which may have chunks already.
    """

    def __init__(self, upstream: Stream, store: Callable[[State], CacheStore]) -> None:
        self._upstream = upstream
        self._new_store = store
        self._begin = upstream.state()
        self._store = store(self._begin)
        self._next = 0

    def start(self, epoch: int) -> None:
        self._next = 0

    def next(self) -> Chunk | None:
        if self._next < len(self._store):
            chunk: Chunk | None = self._store.get(self._next)
        else:
            chunk = self._read()
        self._next += chunk is not None
        return chunk

    def state(self) -> State:
        return {"of": self._begin, "chunk": self._next}

    def restore(self, state: State) -> None:
        if state["of"] != self._begin:
            self._upstream.restore(state["of"])
            self._begin = state["of"]
            self._store.close()
            self._store = self._new_store(self._begin)
        while len(self._store) < state["chunk"]:
            if self._read() is None:
                raise StateMismatch("The input ended before the saved position; it must be the same again.")
        self._next = state["chunk"]

    def close(self) -> None:
        self._store.close()
        self._upstream.close()

    def _read(self) -> Chunk | None:
        if self._store.complete:
            return None
        chunk = self._upstream.next()
        if chunk is None:
            self._store.finish()
            return None
        return self._store.add(chunk)


class MemoryStore(CacheStore):
    """Storage of chunks in memory, which calls `when_complete` with itself when it has all chunks."""

    def __init__(self, when_complete: Callable[[MemoryStore], None] | None = None) -> None:
        self.complete = False
        self._chunks: list[Chunk] = []
        self._when_complete = when_complete

    def __len__(self) -> int:
        return len(self._chunks)

    def get(self, number: int) -> Chunk:
        return self._chunks[number]

    def add(self, chunk: Chunk) -> Chunk:
        kept = chunk.with_columns(tree.map(read_only, chunk.features), tree.map(read_only, chunk.labels))
        self._chunks.append(kept)
        return kept

    def finish(self) -> None:
        self.complete = True
        if self._when_complete is not None:
            self._when_complete(self)
            self._when_complete = None

    def close(self) -> None:
        # Other iterators may share this store, so do not free the chunks here. Python frees the chunks with the last
        # reference to the store.
        pass


def _can_own(owner: Any) -> bool:
    """Return whether an object can be a key of a WeakKeyDictionary: it has a hash and supports weak references."""
    try:
        hash(owner), weakref.ref(owner)
    except TypeError:
        return False
    return True
