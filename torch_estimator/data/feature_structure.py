"""Descriptions of the features of a torch module: dtypes and shapes of a tensor, or of a dict or tuple of tensors.

Checkpoints store the descriptions as JSON. ``{"dtype": "float32", "shape": [3]}`` describes a tensor of shape ``[N,
3]``; ``{"dict": {name: …}}`` and ``{"tuple": […]}`` describe several tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

Structure = dict[str, Any]
Leaf = dict[str, Any]

WHOLE = "features"
"""Name of the input in an export if the features have no names."""


def describe(features: Any) -> Structure:
    """Return the dtypes and shapes of a batch of features. An array that is not a tensor counts as strings."""
    if isinstance(features, Mapping):
        return {"dict": {str(key): describe(value) for key, value in features.items()}}
    if isinstance(features, tuple | list):
        return {"tuple": [describe(value) for value in features]}
    if isinstance(features, Tensor):
        return {"dtype": str(features.dtype).removeprefix("torch."), "shape": list(features.shape[1:])}
    return {"dtype": "string", "shape": list(getattr(features, "shape", ())[1:])}


def leaves(structure: Structure, name: str = "") -> Iterator[tuple[str, Leaf]]:
    """Yield the name and the description (dtype and shape) of every tensor in `structure`.

    The name consists of keys, joined by ``/``, and of positions in tuples, joined by ``_``.

    >>> list(leaves({"tuple": [{"dtype": "float32", "shape": []}]}))
    [('features_0', {'dtype': 'float32', 'shape': []})]
    """
    if "dict" in structure:
        for key, value in structure["dict"].items():
            yield from leaves(value, f"{name}/{key}" if name else key)
    elif "tuple" in structure:
        for place, value in enumerate(structure["tuple"]):
            yield from leaves(value, f"{name or WHOLE}_{place}")
    else:
        yield name or WHOLE, structure


def assemble(structure: Structure, find: Callable[[str, Leaf], Any], name: str = "") -> Any:
    """Build features that have the described structure, from the tensors that `find` returns by name and description.

    If it returns None, the key of a dict is left out. `name` is that of this part of the features.
    """
    if "dict" in structure:
        found = {
            key: assemble(value, find, f"{name}/{key}" if name else key) for key, value in structure["dict"].items()
        }
        return {key: value for key, value in found.items() if value is not None}
    if "tuple" in structure:
        return tuple(
            assemble(value, find, f"{name or WHOLE}_{place}") for place, value in enumerate(structure["tuple"])
        )
    return find(name or WHOLE, structure)
