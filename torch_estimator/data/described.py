"""Descriptions of sources and operations in one line, for the `repr` of a Dataset. They hold no values of the data."""

from __future__ import annotations

from typing import Any

from torch_estimator.data.operations.batching import Batching
from torch_estimator.data.operations.repeat import Repeat
from torch_estimator.data.operations.shuffle import Shuffle
from torch_estimator.data.operations.take_skip_shard import Shard, Skip, Take
from torch_estimator.data.sources.combined import CombinedSource
from torch_estimator.data.sources.memory import MemorySource

_MOST_NAMES = 6


def described_source(source: Any) -> str:
    """Return the kind of a source, with the names of its files or columns.

    >>> from torch_estimator.data.sources.memory import memory_source
    >>> described_source(memory_source({"age": [31, 52], "job": ["clerk", "farmer"]}, [0, 1]))
    '2 rows in memory: age, job, labels'
    """
    if isinstance(source, MemorySource):
        names = list(map(str, source.features)) if isinstance(source.features, dict) else []
        columns = _listed([*names, *([] if source.labels is None else ["labels"])])
        return f"{source.rows} rows in memory" + (f": {columns}" if columns else "")
    if isinstance(source, CombinedSource):
        return f"{source.kind} of {len(source.datasets)}"
    kind = type(source).__name__.strip("_").removesuffix("Source") or type(source).__name__
    patterns = getattr(source, "patterns", None)
    return kind if patterns is None else f"{kind} {_listed(list(map(str, patterns)))}"


def described_operation(operation: Any) -> str:
    """Return an operation as the call that made it, without functions.

    >>> described_operation(Batching(size=32))
    'batch(32)'
    """
    match operation:
        case Batching():
            return f"batch({operation.size})"
        case Shuffle():
            return f"shuffle({operation.buffer})"
        case Repeat():
            return "repeat()" if operation.count is None else f"repeat({operation.count})"
        case Take() | Skip():
            return f"{type(operation).__name__.lower()}({operation.count})"
        case Shard():
            return f"shard({operation.num_shards}, {operation.index})"
    return type(operation).__name__.lower()


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
