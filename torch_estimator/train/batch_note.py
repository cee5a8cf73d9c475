"""Errors of a user's own module, with the batch that it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from torch_estimator.errors import UserError

_NO_LABELS = object()


@contextmanager
def noting_batch(module: nn.Module, features: Any, labels: Any = _NO_LABELS) -> Iterator[None]:
    """Adds one sentence to errors of the body: which module it was, and the shapes and dtypes of its batch.

    The error stays the one raised; what is meant for the user already is left alone.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        with_labels = "" if labels is _NO_LABELS else f" and labels {described(labels)}"
        error.add_note(
            f"The module {type(module).__name__} failed in mode {'train' if module.training else 'eval'} on a batch of "
            f"features {described(features)}{with_labels}."
        )
        raise


def described(value: Any) -> str:
    """The dtypes and shapes of a tensor, or of a dict or tuple of them."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {described(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(described, value)) + ")"
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "None" if value is None else f"strings {list(value.shape)}" if hasattr(value, "shape") else repr(value)
