"""Dense parameters that one optimizer updates together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_estimator.parameter_server.rules import RULES

VALUE = "value"

Arrays = Mapping[str, np.ndarray]


class Run(ABC):
    """Parameters of one group that lie side by side.

    Args:
        rule: Name of the optimizer.
        settings: Of its group, as they are at each update.
        values: ``[numbers]``, the memory of all of them; filled.
        shapes: Of each.
        parts: Of each the ``value`` and the state.
    """

    def __init__(
        self,
        rule: str,
        settings: Mapping[str, Any],
        values: np.ndarray,
        shapes: Sequence[tuple[int, ...]],
        parts: Sequence[Arrays],
    ) -> None:
        self._settings = settings
        self._values = values
        self._shapes = list(shapes)
        ends = np.cumsum([part[VALUE].size for part in parts]).tolist()
        self._places = [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
        for place, part in zip(self._places, parts, strict=True):
            values[place] = part[VALUE].reshape(-1)

    @abstractmethod
    def update(self, gradients: np.ndarray, present: np.ndarray) -> None:
        """Updates those that have a gradient, uint8 ``[parameters]``, by gradients ``[numbers]``."""

    @abstractmethod
    def parts(self) -> list[dict[str, np.ndarray]]:
        """Return of each parameter views of the value and the state."""


class RuleRun(Run):
    """By a rule in numpy: all of them at one stroke where all have a gradient and have had as many updates."""

    def __init__(
        self,
        rule: str,
        settings: Mapping[str, Any],
        values: np.ndarray,
        shapes: Sequence[tuple[int, ...]],
        parts: Sequence[Arrays],
    ) -> None:
        super().__init__(rule, settings, values, shapes, parts)
        self._rule = RULES[rule]
        first = {key: one for key, one in parts[0].items() if key != VALUE}
        scalars = [key for key in first if key in _SCALARS]
        self._state = {
            key: np.concatenate([part[key].reshape(-1) for part in parts]) for key in first if key not in scalars
        }
        self._scalars = {key: np.array([part[key] for part in parts]) for key in scalars}

    def update(self, gradients: np.ndarray, present: np.ndarray) -> None:
        """See `Run.update`."""
        if present.all() and all((one == one[0]).all() for one in self._scalars.values()):
            self._update(slice(None), 0, gradients)
            for one in self._scalars.values():
                one += 1
            return
        for index in np.flatnonzero(present).tolist():
            self._update(self._places[index], index, gradients)
            for one in self._scalars.values():
                one[index] += 1

    def parts(self) -> list[dict[str, np.ndarray]]:
        """See `Run.parts`."""
        return [
            {
                VALUE: self._values[place].reshape(shape),
                **{key: one[place].reshape(shape) for key, one in self._state.items()},
                **{key: one[index, ...] for key, one in self._scalars.items()},
            }
            for index, (place, shape) in enumerate(zip(self._places, self._shapes, strict=True))
        ]

    def _update(self, place: slice, index: int, gradients: np.ndarray) -> None:
        state = {key: one[place] for key, one in self._state.items()}
        scalars = {key: one[index] for key, one in self._scalars.items()}
        self._rule(self._values[place], gradients[place], {**state, **scalars}, self._settings)


_SCALARS = ("step",)
"""What the rules count, and is no array; a parameter may be a single number, too."""
