"""FinalOpsHook computes values at the end of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import torch_estimator as te
from tests.line_jobs import line, points


def bias(context: te.RunContext) -> object:
    return context.variables()["linear.bias"]


def test_it_keeps_what_functions_return_after_the_last_step(tmp_path: Path) -> None:
    one, named = te.FinalOpsHook(bias), te.FinalOpsHook({"bias": bias, "step": lambda context: context.global_step})
    listed = te.FinalOpsHook([bias])
    assert one.final_ops_values is None
    estimator = line(tmp_path).train(points, steps=3, hooks=[one, named, listed])
    expected = estimator.get_variable_value("linear.bias")
    np.testing.assert_array_equal(one.final_ops_values, expected)
    np.testing.assert_array_equal(listed.final_ops_values, [expected])
    assert named.final_ops_values == {"bias": expected, "step": 3}


def test_it_works_in_evaluation(tmp_path: Path) -> None:
    hook = te.FinalOpsHook(lambda context: (str(context.mode), context.loss > 0))
    line(tmp_path).train(points, steps=1).evaluate(points, hooks=[hook])
    assert hook.final_ops_values == ["eval", True]


def test_anything_but_functions_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^final_ops must be functions of the RunContext, but got 3\.$"):
        te.FinalOpsHook({"a": bias, "b": 3})  # type: ignore[dict-item]
