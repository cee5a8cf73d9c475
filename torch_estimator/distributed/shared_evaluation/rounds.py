"""An evaluation that the processes of a cluster share which train together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch_estimator.data.dataset import Dataset
from torch_estimator.distributed.shared_evaluation.packing import Evaluated, packed, unpacked
from torch_estimator.distributed.shared_evaluation.turns import evaluate_in_turns
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.train.model import Model
from torch_estimator.train.scores import Scores

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

_GOES_ON = b"a batch"


def evaluate_in_group(
    model: Model,
    dataset: Dataset,
    scores: Scores,
    steps: int | None,
    context: RunContext,
    schedule: HookSchedule,
    group: Group,
) -> None:
    """Has every process of a group run its batches; see `evaluate_in_turns`.

    Args:
        model: Its weights in place, which are the same in all of them.
        dataset: Of all batches.
        scores: Of the chief, takes them in.
        steps: Batches to evaluate, or None for all.
        context: Of the evaluation.
        schedule: Of its hooks.
        group: All of them come here.

    Raises:
        PeerLost: Another process is gone, or has failed.
    """
    place, size = group.here.index(group.rank), len(group.here)
    evaluate_in_turns(model, dataset, scores, steps, context, schedule, _Rounds(group), place=place, size=size)


def told_by_chief(group: Group, told: Any) -> Any:
    """Returns what the chief has given here, as JSON has it."""
    return json.loads(group.gather_texts("" if group.rank else json.dumps(told, default=float))[0])


class _Rounds:
    """In each round everybody gives the chief a batch, or nothing, which ends the evaluation for all of them."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._own: Evaluated | None = None
        self._given: list[bytes] = []
        self._is_over = False

    def begin_round(self, own: Evaluated) -> None:
        self._own = own
        self._give(_GOES_ON)

    def received(self, place: int) -> Evaluated | None:
        assert self._own is not None
        given = self._given[self._group.here[place]]
        return unpacked(given, self._own) if given else None

    def end(self) -> None:
        if not self._is_over:
            self._give(b"")

    def send(self, batches: Iterator[Evaluated]) -> None:
        for batch in batches:
            self._give(packed(batch))
            if self._is_over:
                return
        self._give(b"")

    def _give(self, data: bytes) -> None:
        lengths, self._given = self._group.collect(data)
        self._is_over = not all(lengths[rank] for rank in self._group.here)
