"""When a step is compiled in the background."""

from __future__ import annotations

import pytest

from torch_estimator.compile.policy import is_worth_compiling_in_background


@pytest.mark.parametrize(
    ("eager_secs", "steps_left", "cores", "is_worth"),
    [
        (0.1, 1e6, 2, False),
        (0.2, 1e6, 2, True),
        (0.2, 100, 2, False),
        (0.2, None, 2, False),
        (1.0, 100, 2, True),
        (1.0, None, 2, True),
        (1.0, None, 64, True),
        (1e4, None, 1, False),
        (1.0, 1e6, 1, False),
    ],
)
def test_a_step_is_compiled_after_a_second_or_earlier_in_a_long_training_if_there_are_two_cores(
    eager_secs: float, steps_left: float | None, cores: int, is_worth: bool
) -> None:
    assert is_worth_compiling_in_background(eager_secs, 100, steps_left, cores) is is_worth
