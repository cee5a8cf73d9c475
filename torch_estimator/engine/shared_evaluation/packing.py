"""What a module made of a batch, as bytes for another process; reading them executes nothing that is in them."""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from torch_estimator.data.structure import map_columns
from torch_estimator.engine.batches import TensorBatch
from torch_estimator.engine.extra_metrics import as_tensor
from torch_estimator.errors import ClusterError, InvalidTypeError

Evaluated = tuple[Any, TensorBatch]
"""What the module made of a batch, and the batch without its features."""

_PLAIN = (Tensor, np.ndarray, np.generic, str, bytes, int, float, type(None))
# All that an array of numpy is made of, which torch does not read unless it is told to.
_OF_ARRAYS = [
    np.empty(0).__reduce__()[0],
    np.float32(0).__reduce__()[0],
    np.ndarray,
    np.dtype,
    *(getattr(np.dtypes, name) for name in np.dtypes.__all__),
]


def packed(batch: Evaluated) -> bytes:
    """Packs one batch.

    Raises:
        InvalidTypeError: The module gives something else than tensors and numbers in dicts, tuples and lists.
    """
    outputs, tensors = batch
    tensors = tensors._replace(raw=map_columns(as_tensor, tensors.raw))
    leaves, _ = _pytree.tree_flatten((outputs, tensors))
    for leaf in leaves:
        if not isinstance(leaf, _PLAIN):
            raise InvalidTypeError(
                f"eval_distribute needs a module whose outputs another process can be sent, but got a {type(leaf)}; "
                "return tensors, or leave eval_distribute out."
            )
    buffer = BytesIO()
    torch.save(leaves, buffer)
    return buffer.getvalue()


def unpacked(data: bytes, like: Evaluated) -> Evaluated:
    """Unpacks what `packed` made.

    Args:
        data: From another process.
        like: A batch of this process, of the same structure.

    Raises:
        ClusterError: It is nothing like that.
    """
    own, structure = _pytree.tree_flatten(like)
    device = next((leaf.device for leaf in own if isinstance(leaf, Tensor)), None)
    try:
        with torch.serialization.safe_globals(_OF_ARRAYS):
            leaves = torch.load(BytesIO(data), map_location=device, weights_only=True)
        batch: Evaluated = _pytree.tree_unflatten(leaves, structure)
    except (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise ClusterError(f"What another process made of its batch is not like what this one did: {reason}") from error
    return batch
