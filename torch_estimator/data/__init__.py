"""Columnar input: `Dataset` reads, shuffles, repeats, shards and batches rows without a Python object per row.

The order in which data flows: a source (`sources`) reads chunks of rows, operations (`operations`) change the stream of
chunks, and a `DatasetIterator` returns batches and the position to save. `pipeline` puts them together.

Names are imported when they are first used, since most of them import PyTorch, which readers of files do without.
"""

from typing import TYPE_CHECKING

from torch_estimator.tfrecord.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)

if TYPE_CHECKING:
    from torch_estimator.data.chunk import Chunk
    from torch_estimator.data.columns import Column, Columns
    from torch_estimator.data.dataset import AUTOTUNE, Dataset
    from torch_estimator.data.iterator import Batch, DatasetIterator
    from torch_estimator.data.sources.base import Reader, ReadRequest, Source
    from torch_estimator.data.stream import StateMismatch
    from torch_estimator.data.to_dataset import to_dataset
    from torch_estimator.data.transform import Transform
    from torch_estimator.data.write_tfrecord import write_tfrecord
else:
    import lazy_loader

    from torch_estimator.torch_import import without_collections

    __getattr__, __dir__, _ = lazy_loader.attach(
        __name__,
        submod_attrs={
            "chunk": ["Chunk"],
            "columns": ["Column", "Columns"],
            "dataset": ["AUTOTUNE", "Dataset"],
            "iterator": ["Batch", "DatasetIterator"],
            "sources.base": ["Reader", "ReadRequest", "Source"],
            "stream": ["StateMismatch"],
            "to_dataset": ["to_dataset"],
            "transform": ["Transform"],
            "write_tfrecord": ["write_tfrecord"],
        },
    )
    __getattr__ = without_collections(__getattr__)

__all__ = [
    "AUTOTUNE",
    "Batch",
    "Chunk",
    "Column",
    "Columns",
    "Dataset",
    "DatasetIterator",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "RaggedFeature",
    "ReadRequest",
    "Reader",
    "Source",
    "SparseFeature",
    "StateMismatch",
    "Transform",
    "VarLenFeature",
    "to_dataset",
    "write_tfrecord",
]
