"""What users give as ``train_distribute``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch_estimator.errors import InvalidTypeError, InvalidValueError

_COMMUNICATIONS = ("AUTO", "RING", "NCCL")


@dataclass(frozen=True, slots=True)
class MultiWorkerMirroredStrategy:
    """Every worker has the whole model; they take each step together, on the sum of their gradients.

    What processes of a cluster without parameter servers do by default. A batch of the ``input_fn`` is that of one
    worker: with n workers a step is one of n times as many rows. Losses that are sums are added up over the workers,
    all others averaged, and so are their gradients.

    Args:
        communication: ``"RING"`` is gloo over TCP, ``"NCCL"`` is for GPUs; ``"AUTO"`` chooses.
        silence_secs: A process that all others have waited for so long is named in their logs; they wait on.
        elastic: Whether to go on without a worker that is gone until it is there again, and not to wait for it: steps
            are of fewer rows meanwhile. All are waited for in the beginning, where the chief is replaced, and the chief
            always.

    Raises:
        InvalidTypeError: The seconds are no number, or ``elastic`` is no bool.
        InvalidValueError: There is no such communication, or the seconds are not positive.
    """

    communication: Literal["AUTO", "RING", "NCCL"] = "AUTO"
    silence_secs: float = 300.0
    elastic: bool = False

    def __post_init__(self) -> None:
        if self.communication not in _COMMUNICATIONS:
            raise InvalidValueError(
                f"communication must be one of {', '.join(_COMMUNICATIONS)}, but got {self.communication!r}."
            )
        check_silence(self.silence_secs)
        if not isinstance(self.elastic, bool):
            raise InvalidTypeError(f"elastic must be True or False, but got {self.elastic!r}.")

    @property
    def backend(self) -> str:
        """What torch.distributed calls it."""
        import torch

        if self.elastic and self.communication != "RING" and torch.cuda.is_available():
            raise InvalidValueError(
                "elastic=True needs communication='RING': who waits in NCCL does not notice a loss."
            )
        if self.communication == "NCCL" and not torch.cuda.is_available():
            raise InvalidValueError("communication='NCCL' needs GPUs, but there are none here; use 'RING' or 'AUTO'.")
        # Texts go through gloo in any case.
        return "cpu:gloo,cuda:nccl" if self.communication != "RING" and torch.cuda.is_available() else "gloo"


@dataclass(frozen=True, slots=True)
class FullyShardedStrategy:
    """Every worker has some rows of each parameter and of its optimizer state, for models that do not fit one device.

    They take each step together, as with `MultiWorkerMirroredStrategy`; what a part of the module computes with is
    gathered for as long as that takes (`torch.distributed.fsdp.fully_shard`). Each worker writes its rows into the
    checkpoint, which any number of processes reads. One process alone trains as without a strategy.

    Args:
        units: Types of the modules that are gathered one at a time, such as ``[TransformerBlock]``; whatever is in none
            of them is gathered together. None takes the members of each `nn.ModuleList` and `nn.Sequential`. Their
            parameters are to be used in their ``forward`` only, and by every worker's batch or by none.
        silence_secs: As in `MultiWorkerMirroredStrategy`.

    Raises:
        InvalidTypeError: ``units`` are not types, or the seconds no number.
        InvalidValueError: The seconds are not positive.
    """

    units: Sequence[type[Any]] | None = None
    silence_secs: float = 300.0

    def __post_init__(self) -> None:
        check_silence(self.silence_secs)
        if self.units is None:
            return
        if not isinstance(self.units, Sequence) or not self.units or not all(isinstance(o, type) for o in self.units):
            raise InvalidTypeError(f"units must be a list of types of modules, but got {self.units!r}.")
        object.__setattr__(self, "units", tuple(self.units))


@dataclass(frozen=True, slots=True)
class ParameterServerStrategy:
    """Parameters are with servers, and every worker takes steps of its own, without waiting for the others.

    What processes of a cluster with ``ps`` tasks do by default. A global step is one batch of one worker.

    Args:
        pipeline: Whether to compute a batch while the gradients of the one before are on their way: more steps per
            second, with gradients one step older. Without, one worker computes what a process alone computes.
        max_staleness: How many steps of its own a worker may be ahead of the slowest one before it has to wait for it,
            as long as that is connected; None for any number.
        silence_secs: A worker that has sent nothing for so long is named in the log of the first server, and neither
            the end of the training nor ``max_staleness`` waits for it. More than its longest pause between two steps.

    Raises:
        InvalidTypeError: One of them is of the wrong type.
        InvalidValueError: The seconds are not positive, or the steps negative.
    """

    pipeline: bool = False
    max_staleness: int | None = None
    silence_secs: float = 300.0

    def __post_init__(self) -> None:
        if not isinstance(self.pipeline, bool):
            raise InvalidTypeError(f"pipeline must be True or False, but got {self.pipeline!r}.")
        if self.max_staleness is not None:
            if not isinstance(self.max_staleness, int) or isinstance(self.max_staleness, bool):
                raise InvalidTypeError(f"max_staleness must be a whole number or None, but got {self.max_staleness!r}.")
            if self.max_staleness < 0:
                raise InvalidValueError(f"max_staleness must be 0 or more, but got {self.max_staleness}.")
        check_silence(self.silence_secs)


def check_silence(secs: object) -> None:
    """Raises where these are no seconds to wait."""
    if not isinstance(secs, int | float) or isinstance(secs, bool):
        raise InvalidTypeError(f"silence_secs must be a number, but got {secs!r}.")
    if not secs > 0:
        raise InvalidValueError(f"silence_secs must be positive, but got {secs}.")
