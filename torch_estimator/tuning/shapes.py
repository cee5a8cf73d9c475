"""What ``compile="auto"`` means in the trials of a study. Elsewhere it depends on the time.

A trial must have the same bits however often it is started. So it is settled at the first step of its first start, and
written beside the trial. Trials whose steps have one cache key are of one shape, and share the compiled step.
"""

from __future__ import annotations

import dataclasses
import statistics

from torch_estimator.compile.policy import WORTH_SECS, AutoChoice
from torch_estimator.tuning.directory import Shape, StudyDirectory


class ShapeChoice(AutoChoice):
    """Settles ``compile="auto"`` in the process of a trial."""

    def __init__(self, directory: StudyDirectory, number: int) -> None:
        self._directory = directory
        self._number = number
        self._state = directory.shape(number)

    def is_compiled(self, key: str, *, is_cached: bool) -> bool:
        shape = self._state.read()
        if shape is None:
            shape = Shape(key=key, is_compiled=is_cached or self._is_worth_compiling(key))
            self._state.write(shape)
        return shape.is_compiled

    def trained(self, secs: float) -> None:
        shape = self._state.read()
        # Only how long Python takes decides anything.
        if shape is not None and not shape.is_compiled:
            self._state.write(dataclasses.replace(shape, python_secs=shape.python_secs + secs))

    def _is_worth_compiling(self, key: str) -> bool:
        """Estimate how long the trials of this shape that are still to come would take in Python."""
        shapes = [self._directory.shape(one.number).read() for one in self._directory.trials()]
        known = [shape for shape in shapes if shape is not None]
        secs = [shape.python_secs for shape in known if shape.python_secs and not shape.is_compiled]
        if not secs:
            return False
        share = (1 + sum(shape.key == key for shape in known)) / (1 + len(known))
        to_come = self._directory.study().max_trials - self._number + 1
        return statistics.mean(secs) * to_come * share >= WORTH_SECS
