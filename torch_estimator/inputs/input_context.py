"""Which part of the input a process is to read."""

from __future__ import annotations

from dataclasses import dataclass

from torch_estimator.data.checks import check_count
from torch_estimator.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class InputContext:
    """What an ``input_fn`` is told if it names ``input_context``: one pipeline, the first, in a job of one process.

    >>> context = InputContext(num_input_pipelines=4, input_pipeline_id=1, num_replicas_in_sync=4)
    >>> context.get_per_replica_batch_size(256)
    64

    Args:
        num_input_pipelines: How many processes read input.
        input_pipeline_id: Which of them this one is, from 0.
        num_replicas_in_sync: How many replicas take a training step together.

    Raises:
        InvalidValueError, InvalidTypeError: They are not such numbers.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def __post_init__(self) -> None:
        check_count("num_input_pipelines", self.num_input_pipelines, at_least=1)
        check_count("input_pipeline_id", self.input_pipeline_id, at_least=0)
        check_count("num_replicas_in_sync", self.num_replicas_in_sync, at_least=1)
        if self.input_pipeline_id >= self.num_input_pipelines:
            raise InvalidValueError(
                f"input_pipeline_id must be less than num_input_pipelines {self.num_input_pipelines}, but got "
                f"{self.input_pipeline_id}."
            )

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns the part of a batch that one replica computes.

        Raises:
            InvalidValueError: ``global_batch_size`` is not divisible by the number of replicas.
        """
        check_count("global_batch_size", global_batch_size, at_least=1)
        if global_batch_size % self.num_replicas_in_sync:
            raise InvalidValueError(
                f"global_batch_size {global_batch_size} is not divisible by num_replicas_in_sync "
                f"{self.num_replicas_in_sync}; choose a multiple of it."
            )
        return global_batch_size // self.num_replicas_in_sync
