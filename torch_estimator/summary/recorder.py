"""Recorder of the summaries that model code calls, active only while a step is observed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class Summary:
    """One number, histogram or image.

    Args:
        kind: How TensorBoard shows the value.
        tag: Name of the summary.
        value: For a scalar an array of shape ``[]``; for a histogram numbers of any shape; for an image uint8
            ``[height, width, channels]``.
    """

    kind: Literal["scalar", "histogram", "image"]
    tag: str
    value: np.ndarray[Any, Any]


class _Recorder:
    """Holder of the list that summaries are added to.

    The list is None while no step is observed. Compiled code then finds nothing to do in a summary call.
    """

    def __init__(self) -> None:
        self.summaries: list[Summary] | None = None


RECORDER = _Recorder()


@contextmanager
def recording() -> Iterator[list[Summary]]:
    """Record the summaries that are made in the body, and yield the list of them.

    A tag that is used again gets the suffix ``_1``, ``_2`` and so on.
    """
    before = RECORDER.summaries
    summaries: list[Summary] = []
    RECORDER.summaries = summaries
    try:
        yield summaries
    finally:
        RECORDER.summaries = before


def record(summary: Summary) -> None:
    """Add a summary to the active recording."""
    assert RECORDER.summaries is not None
    taken = {other.tag for other in RECORDER.summaries}
    tag, number = summary.tag, 0
    while tag in taken:
        number += 1
        tag = f"{summary.tag}_{number}"
    RECORDER.summaries.append(Summary(summary.kind, tag, summary.value))
