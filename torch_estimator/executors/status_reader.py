"""Which training the checkpoints in a directory are of, for one that follows them."""

from __future__ import annotations

from collections.abc import Callable

from torch_estimator.cluster.process_start import job_start, process_start
from torch_estimator.executors.evaluation_record import EvaluationRecord
from torch_estimator.executors.training_status import TrainingState, read_training_state

# For a chief that is started together with the evaluator to say that another training begins.
_GRACE_SECS = 10.0


class TrainingWatch:
    """Tells the training that goes on, or has just ended, from earlier ones.

    Args:
        model_dir: Of the training.
        max_steps: That it is expected to have.
        clock: Seconds that only go forward.

    Attributes:
        earlier: The training that the directory tells of, where that is an earlier one.
    """

    def __init__(self, model_dir: str, max_steps: int | None, clock: Callable[[], float]) -> None:
        self.earlier: TrainingState | None = None
        self._model_dir = model_dir
        self._max_steps = max_steps
        self._clock = clock
        self._grace_ends = clock() + _GRACE_SECS
        self._before = read_training_state(model_dir)

    def look(self, record: EvaluationRecord) -> TrainingState | None:
        """Returns what the chief has told of the training to follow; None where it has told nothing yet.

        Args:
            record: What this evaluator, and those before it, have followed, and to whose end they have seen.
        """
        state = read_training_state(self._model_dir)
        is_earlier = state is not None and self._is_earlier(state, record)
        self.earlier = state if is_earlier else None
        return None if is_earlier else state

    def is_of_before(self, state: TrainingState) -> bool:
        """Whether the training had begun before this was made."""
        return self._before is not None and state.run == self._before.run

    def _is_earlier(self, state: TrainingState, record: EvaluationRecord) -> bool:
        is_followed = record.followed == (state.run, self._max_steps)
        if record.finished == state.run:
            # Who was started again after the end of what it would have followed waits for no other one.
            return not (is_followed and job_start() < record.finished_at < process_start())
        if is_followed:
            return False
        if self._before is None or not self.is_of_before(state):
            return False
        if state.max_steps != self._max_steps:
            # Going on with more steps begins a training anew, unless the one before is found to go on itself.
            return self._before.ended or not state.ended
        return self._before.ended and self._clock() < self._grace_ends
