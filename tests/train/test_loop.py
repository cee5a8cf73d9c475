"""The training loop: when it stops, whom it tells, and what it does about NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.train.losses import Losses
from torch_estimator.errors import NanLossDuringTrainingError
from torch_estimator.hooks import Hook, RunContext
from torch_estimator.train.loop import StopReason, TrainingResult, run_training


class Diary(Hook):
    """Writes down what it is told, with the global step."""

    def __init__(self, *, first_step: int = 1, every_n_steps: int = 1, stop_at: int | None = None) -> None:
        self.first_step = first_step
        self.every_n_steps = every_n_steps
        self.entries: list[tuple[str, int]] = []
        self._stop_at = stop_at

    def begin(self, context: RunContext) -> None:
        self._note("begin", context)

    def before_step(self, context: RunContext) -> None:
        self._note("before", context)

    def after_step(self, context: RunContext) -> None:
        self._note("after", context)

    def end(self, context: RunContext) -> None:
        self._note("end", context)

    def _note(self, what: str, context: RunContext) -> None:
        self.entries.append((what, context.global_step))
        if self._stop_at == context.global_step:
            context.request_stop()

    def steps(self, what: str) -> list[int]:
        return [step for entry, step in self.entries if entry == what]


MakeLosses = Callable[[Iterable[float]], Losses]


@pytest.fixture(params=[1, 3, 100], ids=lambda stroke: f"stroke {stroke}")
def losses(request: pytest.FixtureRequest) -> MakeLosses:
    return lambda values: Losses(values, request.param)


def test_it_stops_at_the_last_step(losses: MakeLosses) -> None:
    diary, context = Diary(), RunContext(global_step=5)
    result = run_training(losses([1.0] * 9), context=context, last_step=7, hooks=[diary])
    assert result == TrainingResult(global_step=7, steps_taken=2, reason=StopReason.LAST_STEP)
    assert diary.entries == [("begin", 5), ("before", 5), ("after", 6), ("before", 6), ("after", 7), ("end", 7)]


def test_it_stops_where_the_input_ends(losses: MakeLosses) -> None:
    diary = Diary()
    result = run_training(losses([1.0, 2.0]), context=RunContext(global_step=0), last_step=None, hooks=[diary])
    assert result == TrainingResult(global_step=2, steps_taken=2, reason=StopReason.END_OF_INPUT)
    assert diary.steps("after") == [1, 2]
    assert diary.steps("end") == [2]


@pytest.mark.parametrize("stop_at", [0, 1, 2])
def test_it_stops_when_a_hook_asks_also_before_the_first_step(stop_at: int, losses: MakeLosses) -> None:
    hooks = [Diary(stop_at=stop_at), Diary()]
    result = run_training(losses([1.0] * 9), context=RunContext(global_step=0), last_step=None, hooks=hooks)
    assert result == TrainingResult(global_step=stop_at, steps_taken=stop_at, reason=StopReason.HOOK)
    assert hooks[1].steps("after") == list(range(1, stop_at + 1))
    assert hooks[1].steps("end") == [stop_at]


def test_a_wish_to_stop_at_the_last_step_does_not_hide_that_it_was_reached(losses: MakeLosses) -> None:
    result = run_training(losses([1.0] * 9), context=RunContext(global_step=0), last_step=3, hooks=[Diary(stop_at=3)])
    assert result.reason is StopReason.LAST_STEP


@pytest.mark.parametrize(
    ("first_step", "every_n_steps", "expected"),
    [(1, 1, list(range(11, 21))), (1, 4, [11, 15, 19]), (4, 4, [14, 18]), (3, 100, [13]), (11, 1, [])],
)
def test_a_hook_is_told_at_the_steps_of_the_run_that_it_asked_for(
    first_step: int, every_n_steps: int, expected: list[int], losses: MakeLosses
) -> None:
    diary, every = Diary(first_step=first_step, every_n_steps=every_n_steps), Diary(every_n_steps=3)
    run_training(losses([1.0] * 99), context=RunContext(global_step=10), last_step=20, hooks=[every, diary])
    assert diary.steps("after") == expected
    assert diary.steps("before") == [step - 1 for step in expected]
    assert every.steps("after") == [11, 14, 17, 20]


def test_hooks_are_told_in_order_and_see_the_loss_of_their_step(losses: MakeLosses) -> None:
    seen: list[tuple[str, float]] = []

    class Reader(Hook):
        def __init__(self, name: str) -> None:
            self.name = name

        def after_step(self, context: RunContext) -> None:
            seen.append((self.name, context.loss))

    run_training(
        losses([3.0, 2.0]), context=RunContext(global_step=0), last_step=2, hooks=[Reader("one"), Reader("two")]
    )
    assert seen == [("one", 3.0), ("two", 3.0), ("one", 2.0), ("two", 2.0)]


def test_there_is_no_loss_before_the_first_step() -> None:
    with pytest.raises(RuntimeError, match="no loss before the first step"):
        _ = RunContext(global_step=0).loss


@pytest.mark.parametrize(("bad", "word"), [("nan", "NaN"), ("inf", "infinite"), ("-inf", "infinite")])
def test_a_loss_that_is_not_finite_ends_the_run_and_nobody_is_told_of_that_step(
    losses: MakeLosses, bad: str, word: str
) -> None:
    diary = Diary()
    with pytest.raises(NanLossDuringTrainingError, match=f"^The loss became {word} at global step 3;") as raised:
        run_training(
            losses([1.0, 3e38, float(bad), 1.0]),
            context=RunContext(global_step=0),
            last_step=9,
            hooks=[diary],
        )
    assert isinstance(raised.value, RuntimeError)
    assert diary.steps("after") == [1, 2]
    assert diary.steps("end") == []


def test_nothing_is_done_where_the_last_step_is_reached_already(losses: MakeLosses) -> None:
    diary = Diary()
    result = run_training(losses([]), context=RunContext(global_step=7), last_step=7, hooks=[diary])
    assert result == TrainingResult(global_step=7, steps_taken=0, reason=StopReason.LAST_STEP)
    assert diary.entries == [("begin", 7), ("end", 7)]
