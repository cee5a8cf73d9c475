"""Recorder of the summaries that model code makes. It records only in the steps that are summarized."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary for TensorBoard: one number, histogram or image.

    `value` is an array of shape ``[]`` for a scalar; numbers of any shape for a histogram; uint8 ``[height, width,
    channels]`` for an image.
    """

    kind: Literal["scalar", "histogram", "image"]
    tag: str
    value: np.ndarray[Any, Any]


class _Recorder:
    """Holder of the list to which the summaries of the current step are added; None if the step is not summarized.

    While the list is None, a summary call does nothing, so that compiled code contains no operations for it.
    """

    def __init__(self) -> None:
        self.summaries: list[Summary] | None = None


RECORDER = _Recorder()


@contextmanager
def recording() -> Iterator[list[Summary]]:
    """Yield a list to which all summaries made in the ``with`` block are added.

    If a tag is used again, the suffix ``_1``, ``_2`` and so on is added to it.
    """
    before = RECORDER.summaries
    summaries: list[Summary] = []
    RECORDER.summaries = summaries
    try:
        yield summaries
    finally:
        RECORDER.summaries = before


def record(summary: Summary) -> None:
    """Add a summary to the list that the active `recording` block has yielded."""
    assert RECORDER.summaries is not None
    taken = {other.tag for other in RECORDER.summaries}
    tag, number = summary.tag, 0
    while tag in taken:
        number += 1
        tag = f"{summary.tag}_{number}"
    RECORDER.summaries.append(Summary(summary.kind, tag, summary.value))
