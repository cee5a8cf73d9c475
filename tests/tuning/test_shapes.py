"""Which trials are compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.line_jobs import assert_same_variables, line
from tests.tuning.studies import LINE, make_study, make_trial, run_forked, run_trial
from torch_estimator.tuning.directory import Shape
from torch_estimator.tuning.shapes import ShapeChoice


@pytest.mark.parametrize(
    ("earlier", "key", "trials", "is_compiled"),
    [
        # Nothing is known of the first trial.
        ([], "a", 1000, False),
        # Each took 2 s in Python, and 12 are to come, all of this shape.
        ([("a", False, 2.0)] * 3, "a", 15, True),
        ([("a", False, 2.0)] * 3, "a", 12, False),
        # A quarter of the 40 trials to come will be of the new shape.
        ([("a", False, 2.0)] * 3, "b", 43, True),
        ([("a", False, 2.0)] * 3, "b", 42, False),
        # What is compiled says nothing about Python.
        ([("a", True, 0.1), ("b", False, 4.0)], "a", 12, True),
        ([("a", True, 0.1), ("a", False, 0.0)], "a", 1000, False),
    ],
)
def test_trials_are_compiled_where_those_of_a_shape_would_take_long(
    tmp_path: Path, earlier: list[tuple[str, bool, float]], key: str, trials: int, is_compiled: bool
) -> None:
    directory = make_study(tmp_path, "", max_trials=trials)
    for number, (name, compiled, secs) in enumerate(earlier, 1):
        make_trial(directory, number)
        directory.shape(number).write(Shape(key=name, is_compiled=compiled, python_secs=secs))
    number = len(earlier) + 1
    make_trial(directory, number)
    choice = ShapeChoice(directory, number)
    assert choice.is_compiled(key, is_cached=False) is is_compiled
    # The first answer stays, whatever has changed.
    assert choice.is_compiled(key, is_cached=True) is is_compiled
    choice.trained(1.5)
    assert ShapeChoice(directory, number).is_compiled(key, is_cached=True) is is_compiled
    assert directory.shape(number).read() == Shape(
        key=key, is_compiled=is_compiled, python_secs=0.0 if is_compiled else 1.5
    )


def test_a_trial_takes_a_step_from_the_cache_and_keeps_to_its_choice(tmp_path: Path) -> None:
    """Also where it is started again in another way, after another trial has compiled the step."""
    directory = make_study(tmp_path, LINE)
    settings = {"compile": None, "parameters": {"rate": "0.05"}}
    python, compiled, cached = (make_trial(directory, number, **settings) for number in (1, 2, 3))
    make_trial(directory, 1, pauses_at=10, starts=1, **settings)
    assert run_forked(directory, 1) == 143
    make_trial(directory, 2, **{**settings, "compile": True})
    assert run_forked(directory, 2) == 0
    assert directory.shape(2).read() is None
    for number in (1, 3):
        make_trial(directory, number, starts=2, **settings)
        assert run_trial(directory, number).returncode == 0
    shapes = [directory.shape(number).read() for number in (1, 3)]
    assert [shape.is_compiled for shape in shapes if shape] == [False, True]
    assert shapes[0].key == shapes[1].key and shapes[0].python_secs > 0
    assert_same_variables(line(compiled.job_dir), line(cached.job_dir))
    # The other one has taken all its steps in Python.
    reference = make_trial(directory, 4, **{**settings, "compile": False})
    assert run_trial(directory, 4).returncode == 0
    assert_same_variables(line(python.job_dir), line(reference.job_dir))
