"""Where `torch_estimator.summary` puts what it is told while a step is observed."""

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
        kind: How ``value`` is to be shown.
        tag: Its name.
        value: A number; the numbers of a histogram, of any shape; or an image, uint8 ``[height, width, channels]``.
    """

    kind: Literal["scalar", "histogram", "image"]
    tag: str
    value: np.ndarray[Any, Any]


class _Recorder:
    """Holds the list being filled; None while nobody observes, so that a compiled step has nothing to trace."""

    def __init__(self) -> None:
        self.summaries: list[Summary] | None = None


RECORDER = _Recorder()


@contextmanager
def recording() -> Iterator[list[Summary]]:
    """Records what `torch_estimator.summary` is told in the body; a tag met again gets ``_1``, ``_2``, … behind it."""
    before = RECORDER.summaries
    summaries: list[Summary] = []
    RECORDER.summaries = summaries
    try:
        yield summaries
    finally:
        RECORDER.summaries = before


def record(summary: Summary) -> None:
    """Adds a summary to those being recorded."""
    assert RECORDER.summaries is not None
    taken = {other.tag for other in RECORDER.summaries}
    tag, again = summary.tag, 0
    while tag in taken:
        again += 1
        tag = f"{summary.tag}_{again}"
    RECORDER.summaries.append(Summary(summary.kind, tag, summary.value))
