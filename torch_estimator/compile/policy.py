"""Policy of compilation: which batch shapes are compiled, and when compiling saves time.

`ShapePolicy` answers the first question. The second depends on what a compiler costs: 5 to 20 seconds of one core,
after which a step is three to ten times as fast. A runner that pauses the training for it asks `is_worth_waiting`. A
runner that compiles in another process, at the lowest priority, asks `is_worth_compiling_in_background`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Protocol

logger = logging.getLogger("torch_estimator")

_ROWS = "rows"
_SHAPES = "shapes"
_SMALLER = "smaller"

# At most this number of shapes is compiled, because each takes many seconds. Batches of other shapes run in Python.
_MAX_SHAPES = 8

# A smaller shape is compiled after this number of batches. Most trainings have fewer partial last batches.
_MANY = 200
# Batches are counted for at most this number of smaller shapes, which limits the memory of the counts.
_MAX_COUNTED = 64

# Measure steps in Python for this time before estimating how long the rest of a training takes.
_MEASURE_STEPS_SECS = 1.0
# If after a shorter time the rest is estimated to take so long, compile in the background at once. In a shorter
# training it would count that the compiler slows the training down by a tenth.
_FIRST_MEASURE_SECS = 0.2
_LONG_SECS = 3.0

WORTH_SECS = 20.0
"""Seconds that steps still take in Python, at least, for a training to pause until they are compiled."""

CHECK_EVERY_SECS = 10.0
"""Seconds between two comparisons of a compiled step with Python, before checkpoints."""


class AutoChoice(Protocol):
    """What settles ``compile="auto"`` in a process, where that must not depend on the time; see `choose_with`."""

    def is_compiled(self, key: str, *, is_cached: bool) -> bool:
        """Return whether ``"auto"`` means True or False for the step with a cache key."""

    def trained(self, secs: float) -> None:
        """Hear how many seconds the steps that ran in Python have taken, at the end of a training."""


_choice: AutoChoice | None = None


def choose_with(choice: AutoChoice) -> None:
    """Have ``compile="auto"`` settled by `choice` in this process from now on."""
    global _choice
    _choice = choice


def auto_choice() -> AutoChoice | None:
    """Return what settles ``compile="auto"`` in this process; None if time does."""
    return _choice


class ShapePolicy:
    """Rule that decides for each batch, by its shape, whether the batch runs as compiled code or in Python.

    Batches that are smaller than an earlier one, such as the partial last batch of an epoch, run in Python, until very
    many of one shape have come. Among batches with the same number of rows, shapes may differ in the length of lists;
    the first eight shapes are compiled.

    Args:
        before: The `state` in the run before a resume, or None. With it, a resumed run takes each batch the same way
            as an uninterrupted run, so that the results are equal bit for bit.

    Attributes:
        rows: Number of rows of the largest batch that was admitted.
    """

    def __init__(self, before: Mapping[str, Any] | None) -> None:
        self.rows: int = before[_ROWS] if before else 0
        self._shapes: list[str] = list(before[_SHAPES]) if before else []
        self._smaller: dict[str, int] = dict(before.get(_SMALLER, {})) if before else {}
        self._has_logged_limit = False

    def state(self) -> dict[str, Any]:
        """Return the shapes that are compiled and the counts of smaller shapes, as values that JSON can represent."""
        return {_ROWS: self.rows, _SHAPES: self._shapes, _SMALLER: self._smaller}

    def admits(self, rows: int, shape: object) -> bool:
        """Count a batch by its shape, and return whether batches of this shape are compiled.

        Args:
            rows: Number of rows in the batch.
            shape: Description of all its tensors, in values that JSON can represent.
        """
        name = json.dumps(shape)
        if rows < self.rows and not self._is_frequent(name, rows):
            return False
        if name not in self._shapes:
            if len(self._shapes) == _MAX_SHAPES:
                if not self._has_logged_limit:
                    self._has_logged_limit = True
                    logger.info(
                        "Batches come in more than %d shapes; only the first %d are compiled.", _MAX_SHAPES, _MAX_SHAPES
                    )
                return False
            self._shapes.append(name)
        self.rows = max(rows, self.rows)
        return True

    def _is_frequent(self, name: str, rows: int) -> bool:
        """Count a batch with fewer rows than an earlier batch; return whether more than 200 of its shape have come."""
        if name not in self._smaller:
            if len(self._smaller) == _MAX_COUNTED:
                return False
            self._smaller[name] = 0
        if self._smaller[name] <= _MANY:
            self._smaller[name] += 1
        if self._smaller[name] == _MANY // 4:
            message = "Batches of %d rows, after some of %d, run uncompiled until %d of them have come."
            logger.info(message, rows, self.rows, _MANY)
        return self._smaller[name] > _MANY


def is_worth_waiting(eager_secs: float, eager_steps: int, steps_left: float | None) -> bool:
    """Return whether a training ends sooner if it pauses until its step is compiled.

    Args:
        eager_secs: Seconds that steps have taken in Python so far.
        eager_steps: Number of these steps.
        steps_left: Number of steps until training ends, or None if that is not known.
    """
    return eager_secs >= _MEASURE_STEPS_SECS and _secs_left(eager_secs, eager_steps, steps_left) >= WORTH_SECS


def is_worth_compiling_in_background(eager_secs: float, eager_steps: int, steps_left: float | None, cores: int) -> bool:
    """Return whether to compile a step in another process while the training goes on.

    The answer is False until steps have taken a second, or 0.2 seconds if the rest will take 3 seconds or longer. The
    compiler takes what time others leave of a core, and even if this training ends too soon to gain, the next run of
    the same program finds the compiled step in the cache. On a single core the training would pay for it.

    Args:
        eager_secs: Seconds that steps have taken in Python so far.
        eager_steps: Number of these steps.
        steps_left: Number of steps until training ends, or None if that is not known.
        cores: How many cores this process may use.
    """
    if eager_secs < _FIRST_MEASURE_SECS or cores < 2:
        return False
    return eager_secs >= _MEASURE_STEPS_SECS or _secs_left(eager_secs, eager_steps, steps_left) >= _LONG_SECS


def missing_core(eager_secs: float, cores: int) -> str:
    """Return for a log line why no step was compiled in the background; empty if the training was too short to tell."""
    return "this process has one core" if cores < 2 and eager_secs >= _MEASURE_STEPS_SECS else ""


def _secs_left(eager_secs: float, eager_steps: int, steps_left: float | None) -> float:
    """Estimate how many seconds the remaining steps of a training would take in Python.

    If the last step is not known, the rest is assumed to take as long as the training has run already.
    """
    return eager_secs if steps_left is None else steps_left * eager_secs / eager_steps
