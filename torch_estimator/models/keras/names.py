"""Names of a Keras model's variables in checkpoints: Keras' paths without the numbers it counts layers by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from keras.src.utils.naming import to_snake_case

_SEEDS = "seed_generator"


def variable_names(model: Any, variables: Sequence[Any]) -> list[str]:
    """Returns a name for each variable.

    Keras calls the third dense layer of a process ``dense_2``, whichever model it is in. Here layers that were given no
    name are counted within their model, so that a checkpoint fits the same model in another process.
    """
    counted = _Counted(model._flatten_layers())
    names: list[str] = []
    for variable in variables:
        name = "/".join(map(counted, variable.path.replace(".", "_").split("/")))
        names.append(_unique(name, names))
    return names


class _Counted:
    def __init__(self, layers: Iterable[Any]) -> None:
        automatic, given = [], set()
        for layer in layers:
            base = to_snake_case(type(layer).__name__)
            if re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name):
                automatic.append((layer.name, base))
            else:
                given.add(layer.name)
        self._taken = set(given)
        self._names: dict[str, str] = {}
        for name, base in automatic:
            if name not in self._names:
                self._names[name] = self._next(base)

    def __call__(self, part: str) -> str:
        if part not in self._names and re.fullmatch(rf"{_SEEDS}(_\d+)?", part):
            self._names[part] = self._next(_SEEDS)
        return self._names.get(part, part)

    def _next(self, base: str) -> str:
        name = _unique(base, self._taken)
        self._taken.add(name)
        return name


def _unique(name: str, taken: Iterable[str]) -> str:
    known, candidate, number = set(taken), name, 0
    while candidate in known:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
