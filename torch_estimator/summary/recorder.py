"""Recorder of the summaries that a model makes while one of its steps is observed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class Summary:
    """One number, histogram or image under a tag.

    Args:
        kind: How TensorBoard shows ``value``.
        tag: Name of the summary.
        value: A number; the numbers of a histogram, of any shape; or an image, uint8 ``[height, width, channels]``.
    """

    kind: Literal["scalar", "histogram", "image"]
    tag: str
    value: np.ndarray[Any, Any]


class _Recorder:
    """Holds the list of summaries that is being filled.

    The list is None while no step is observed. Then the functions of `torch_estimator.summary` return at once, and
    leave nothing in the graph of a step that is being traced.
    """

    def __init__(self) -> None:
        self.summaries: list[Summary] | None = None


RECORDER = _Recorder()


@contextmanager
def recording() -> Iterator[list[Summary]]:
    """Collect the summaries made in the body into the returned list."""
    before = RECORDER.summaries
    summaries: list[Summary] = []
    RECORDER.summaries = summaries
    try:
        yield summaries
    finally:
        RECORDER.summaries = before


def record(summary: Summary) -> None:
    """Add a summary to the list being filled; a tag that is there already gets ``_1``, ``_2``, … appended."""
    assert RECORDER.summaries is not None
    taken = {other.tag for other in RECORDER.summaries}
    tag, number = summary.tag, 0
    while tag in taken:
        number += 1
        tag = f"{summary.tag}_{number}"
    RECORDER.summaries.append(Summary(summary.kind, tag, summary.value))
