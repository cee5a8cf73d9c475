"""Which batches are compiled for."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("torch_estimator")

_ROWS = "rows"
_SHAPES = "shapes"
_SMALLER = "smaller"

# Compiling takes seconds; input whose batches keep changing their shape would do nothing else.
_MOST_SHAPES = 8

# More than a partial last batch has epochs in most trainings.
_MANY = 200
_MOST_COUNTED = 64


class ShapeBook:
    """Decides whether batches of a shape are worth a compiled step.

    Smaller batches than before, such as a partial last one, are not, unless very many of a shape come. Batches of as
    many rows may differ in the length of their lists: each shape is, up to a limit, and those met after that are not.

    Args:
        before: What `state` returned in the run before a resume, so that each batch runs as it would have run then;
            None where there is none.

    Attributes:
        rows: Of the largest batch that was admitted.
    """

    def __init__(self, before: Mapping[str, Any] | None) -> None:
        self.rows: int = before[_ROWS] if before else 0
        self._shapes: list[str] = list(before[_SHAPES]) if before else []
        self._smaller: dict[str, int] = dict(before.get(_SMALLER, {})) if before else {}
        self._told = False

    def state(self) -> dict[str, Any]:
        """Returns what was admitted, as JSON."""
        return {_ROWS: self.rows, _SHAPES: self._shapes, _SMALLER: self._smaller}

    def admits(self, rows: int, shape: object) -> bool:
        """Whether to compile for batches of so many rows and this shape, which JSON can hold."""
        name = json.dumps(shape)
        if rows < self.rows and not self._is_one_of_many(name, rows):
            return False
        if name not in self._shapes:
            if len(self._shapes) == _MOST_SHAPES:
                if not self._told:
                    self._told = True
                    told = "Batches come in more than %d shapes; those that are not compiled yet run uncompiled."
                    logger.info(told, _MOST_SHAPES)
                return False
            self._shapes.append(name)
        self.rows = max(rows, self.rows)
        return True

    def _is_one_of_many(self, name: str, rows: int) -> bool:
        if name not in self._smaller:
            if len(self._smaller) == _MOST_COUNTED:
                return False
            self._smaller[name] = 0
        if self._smaller[name] <= _MANY:
            self._smaller[name] += 1
        if self._smaller[name] == _MANY // 4:
            told = "Batches of %d rows, after some of %d, run uncompiled until %d of them have come."
            logger.info(told, rows, self.rows, _MANY)
        return self._smaller[name] > _MANY
