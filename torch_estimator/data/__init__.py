"""Columnar input: `Dataset` reads, shuffles, repeats, shards and batches rows without a Python object per row."""

from torch_estimator.data.columns import Column, Columns
from torch_estimator.data.dataset import Dataset
from torch_estimator.data.iterator import Batch, DatasetIterator
from torch_estimator.data.state import StateMismatch
from torch_estimator.data.to_dataset import to_dataset
from torch_estimator.data.transform import Transform

__all__ = [
    "Batch",
    "Column",
    "Columns",
    "Dataset",
    "DatasetIterator",
    "StateMismatch",
    "Transform",
    "to_dataset",
]
