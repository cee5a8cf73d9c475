"""An evaluation that the processes of a cluster share which train together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch_estimator.data.dataset import Dataset
from torch_estimator.distributed.agreement import agree_on
from torch_estimator.distributed.description import describe_training
from torch_estimator.distributed.shared_evaluation.packing import Evaluated, packed, unpacked
from torch_estimator.distributed.shared_evaluation.turns import evaluate_in_turns
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.strategy import EvaluationShare
from torch_estimator.train.model import Model
from torch_estimator.train.scores import Scores

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

_GOES_ON = b"a batch"


class GroupShare(EvaluationShare):
    """Processes of a cluster that share an evaluation: each runs every n-th batch, the chief adds up the scores.

    Args:
        group: The processes.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.is_first = group.rank == 0

    def working(self) -> AbstractContextManager[None]:
        return self._group.sharing_work()

    def agree_on_source(self, path: str | None, seed: int) -> tuple[str | None, int]:
        path, seed = self._of_chief([path, seed])
        return path, seed

    def check_model(self, model: Model, settings: Mapping[str, Any], *, broadcast: bool) -> None:
        agree_on(self._group, {**settings, **describe_training(model, None)})
        if broadcast:
            self._group.broadcast(model.variables().values())

    def evaluate(
        self,
        model: Model,
        dataset: Dataset,
        scores: Scores,
        steps: int | None,
        context: RunContext,
        schedule: HookSchedule,
    ) -> None:
        """Run the batches of this process; see `EvaluationShare.evaluate`.

        Raises:
            PeerLost: Another process is lost, or has failed.
        """
        place, size = self._group.here.index(self._group.rank), len(self._group.here)
        rounds = _Rounds(self._group)
        evaluate_in_turns(model, dataset, scores, steps, context, schedule, rounds, place=place, size=size)

    def results(self, results: dict[str, float], batches: int) -> tuple[dict[str, float], int]:
        results, batches = self._of_chief([results, batches])
        return results, batches

    def _of_chief(self, value: Any) -> Any:
        """Return the chief's value, which goes through JSON."""
        return json.loads(self._group.gather_texts("" if self._group.rank else json.dumps(value, default=float))[0])


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
