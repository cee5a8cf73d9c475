"""Serialization of an evaluated batch: the module's outputs, sent to the process that adds up the metrics.

The bytes are in the format of `torch.save`. They are read with ``weights_only=True``, which allows tensors and plain
values only: unpickling arbitrary bytes from another process could execute code. Therefore the types of containers are
not sent. Dicts, named tuples and dataclasses are sent as plain dicts and lists, and the receiver takes the types from
its own batch.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import pickle
from collections.abc import Mapping
from io import BytesIO
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator import tree
from torch_estimator.errors import ClusterError, InvalidTypeError
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.scores import as_tensor

EvaluatedBatch = tuple[Any, TensorBatch]
"""The outputs of the module for a batch, and the batch without its features."""

_PLAIN = (str, bytes, bool, int, float, complex, type(None))
# Allow these values in numpy's object arrays. Readers return columns of text, dates and decimals as such arrays.
_OBJECT_VALUES = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal)
# List the functions and types with which numpy pickles arrays, because torch reads only listed ones.
_ALLOWED = [
    np.empty(0).__reduce__()[0],
    np.float32(0).__reduce__()[0],
    np.ndarray,
    np.dtype,
    *(getattr(np.dtypes, name) for name in np.dtypes.__all__),
    *_OBJECT_VALUES,
]


def pack_batch(batch: EvaluatedBatch) -> bytes:
    """Serialize the outputs of the module for a batch, and the batch without its features, to bytes.

    The outputs may hold tensors, arrays and plain values, in dicts, tuples, lists and dataclasses.
    """
    outputs, tensors = batch
    tensors = tensors._replace(raw=tree.map(as_tensor, tensors.raw))
    buffer = BytesIO()
    torch.save(_plain((outputs, tensors)), buffer)
    return buffer.getvalue()


def unpack_batch(data: bytes, like: EvaluatedBatch) -> EvaluatedBatch:
    """Deserialize a batch from `pack_batch` of another process; types of containers and devices are those of `like`."""
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            batch: EvaluatedBatch = _rebuilt(torch.load(BytesIO(data), map_location="cpu", weights_only=True), like)
    except (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, AttributeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise ClusterError(
            f"Another process has sent outputs that do not fit those of this process: {reason}"
        ) from error
    return batch


def _plain(value: Any) -> Any:
    """Convert a value to types that can be sent: dicts, lists, tensors, arrays and plain values."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Tensor):
        whole = value.detach()
        # Copy a view before saving, because torch saves its whole storage, which may be much larger.
        return whole.clone() if whole.untyped_storage().nbytes() > whole.nbytes else whole
    if isinstance(value, np.generic):
        return np.asarray(value)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray):
        items = value.flat if value.dtype == object else ()
        odd = [item for item in items if type(item) not in (*_PLAIN, *_OBJECT_VALUES)]
        if not odd:
            return value
        value = odd[0]
    raise InvalidTypeError(
        f"eval_distribute needs a module whose outputs can be sent to another process, but got a {type(value)}; return "
        "tensors, or leave eval_distribute out."
    )


def _rebuilt(value: Any, like: Any) -> Any:
    """Undo `_plain`: return a received value with the container types and devices of `like`, a value made here."""
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        return type(like)(**{name: _rebuilt(item, getattr(like, name)) for name, item in value.items()})
    if isinstance(like, Mapping):
        return type(like)({key: _rebuilt(item, like.get(key)) for key, item in value.items()})  # type: ignore[call-arg]
    if isinstance(like, tuple | list):
        # If the received list is longer than `like`, repeat the last item of `like`. The lengths of lists may differ,
        # for example of lists of the boxes found in an image.
        own_items = chain(like, repeat(like[-1] if like else None))
        items = [_rebuilt(item, own) for item, own in zip(value, own_items, strict=False)]
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
    return value.to(like.device) if isinstance(value, Tensor) and isinstance(like, Tensor) else value
