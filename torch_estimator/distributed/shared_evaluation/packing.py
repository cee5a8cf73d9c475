"""What a module made of a batch, as bytes for another process; reading them executes nothing that is in them."""

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

Evaluated = tuple[Any, TensorBatch]
"""What the module made of a batch, and the batch without its features."""

_PLAIN = (str, bytes, bool, int, float, complex, type(None))
_OF_OBJECT_COLUMNS = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal)
# All that an array of numpy is made of, which torch does not read unless it is told to.
_KNOWN = [
    np.empty(0).__reduce__()[0],
    np.float32(0).__reduce__()[0],
    np.ndarray,
    np.dtype,
    *(getattr(np.dtypes, name) for name in np.dtypes.__all__),
    *_OF_OBJECT_COLUMNS,
]


def packed(batch: Evaluated) -> bytes:
    """Packs one batch.

    Raises:
        InvalidTypeError: The module gives something else than tensors and numbers in dicts, tuples, lists and
            dataclasses.
    """
    outputs, tensors = batch
    tensors = tensors._replace(raw=tree.map(as_tensor, tensors.raw))
    buffer = BytesIO()
    torch.save(_plain((outputs, tensors)), buffer)
    return buffer.getvalue()


def unpacked(data: bytes, like: Evaluated) -> Evaluated:
    """Unpacks what `packed` made.

    Args:
        data: From another process.
        like: A batch of this process, which tells types and devices.

    Raises:
        ClusterError: It is nothing like that.
    """
    try:
        with torch.serialization.safe_globals(_KNOWN):
            batch: Evaluated = _like(torch.load(BytesIO(data), map_location="cpu", weights_only=True), like)
    except (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, AttributeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise ClusterError(f"What another process made of its batch is not like what this one did: {reason}") from error
    return batch


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Tensor):
        whole = value.detach()
        # Of a view all that it is a view of would be sent.
        return whole.clone() if whole.untyped_storage().nbytes() > whole.nbytes else whole
    if isinstance(value, np.generic):
        return np.asarray(value)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray):
        items = value.flat if value.dtype == object else ()
        odd = [item for item in items if type(item) not in (*_PLAIN, *_OF_OBJECT_COLUMNS)]
        if not odd:
            return value
        value = odd[0]
    raise InvalidTypeError(
        f"eval_distribute needs a module whose outputs another process can be sent, but got a {type(value)}; return "
        "tensors, or leave eval_distribute out."
    )


def _like(value: Any, like: Any) -> Any:
    """What `_plain` has made plain, as it was."""
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        return type(like)(**{name: _like(item, getattr(like, name)) for name, item in value.items()})
    if isinstance(like, Mapping):
        return type(like)({key: _like(item, like.get(key)) for key, item in value.items()})  # type: ignore[call-arg]
    if isinstance(like, tuple | list):
        # There may be more of them, or less.
        owns = chain(like, repeat(like[-1] if like else None))
        items = [_like(item, own) for item, own in zip(value, owns, strict=False)]
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
    return value.to(like.device) if isinstance(value, Tensor) and isinstance(like, Tensor) else value
