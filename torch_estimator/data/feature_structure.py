"""What a module is given, described: a tensor, or a dict or tuple of them, with dtypes and shapes of one row.

Descriptions are JSON, so that checkpoints can keep them: ``{"dtype": "float32", "shape": [3]}`` is a tensor ``[N, 3]``,
``{"dict": {name: …}}`` and ``{"tuple": […]}`` hold several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

Structure = dict[str, Any]
Leaf = dict[str, Any]

WHOLE = "features"
"""Name of the input that a module without names for its features has in an export."""


def describe(features: Any) -> Structure:
    """Returns the description of a batch of features; what is no tensor counts as strings."""
    if isinstance(features, Mapping):
        return {"dict": {str(key): describe(value) for key, value in features.items()}}
    if isinstance(features, tuple | list):
        return {"tuple": [describe(value) for value in features]}
    if isinstance(features, Tensor):
        return {"dtype": str(features.dtype).removeprefix("torch."), "shape": list(features.shape[1:])}
    return {"dtype": "string", "shape": list(getattr(features, "shape", ())[1:])}


def leaves(structure: Structure, name: str = "") -> Iterator[tuple[str, Leaf]]:
    """Yields the tensors of a description by name: keys and places, joined by ``/`` and ``_``.

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
    """Returns features of a description, each tensor found by name; keys for which None is found are left out."""
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
