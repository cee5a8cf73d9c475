"""Which part of the input a process reads."""

from __future__ import annotations

from typing import Any

import pytest

import torch_estimator as te
from torch_estimator.errors import InvalidTypeError, InvalidValueError, UserError


def test_one_process_reads_everything() -> None:
    context = te.InputContext()
    assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (1, 0, 1)
    assert context.get_per_replica_batch_size(7) == 7


def test_a_global_batch_is_divided_among_the_replicas() -> None:
    context = te.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    assert context.get_per_replica_batch_size(64) == 16
    with pytest.raises(InvalidValueError, match="global_batch_size 66 is not divisible by num_replicas_in_sync 4"):
        context.get_per_replica_batch_size(66)
    with pytest.raises(InvalidTypeError, match=r"global_batch_size must be a whole number, but got 6\.0"):
        context.get_per_replica_batch_size(6.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0,), InvalidValueError, "num_input_pipelines must be at least 1, but got 0"),
        ((2, 2), InvalidValueError, "input_pipeline_id must be less than num_input_pipelines 2, but got 2"),
        ((2, -1), InvalidValueError, "input_pipeline_id must be at least 0, but got -1"),
        ((1, 0, 0), InvalidValueError, "num_replicas_in_sync must be at least 1, but got 0"),
        (("1",), InvalidTypeError, "num_input_pipelines must be a whole number, but got '1'"),
    ],
)
def test_other_numbers_are_refused(arguments: Any, error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        te.InputContext(*arguments)
