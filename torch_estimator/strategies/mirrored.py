"""Mirrored training: data-parallel training on several devices of one machine, started as one program.

`MirroredStrategy.join` forks the program once for each device but the first (see
`torch_estimator.distributed.forked_replicas`). From then on the replicas train like the workers of a cluster, with the
sessions and steps of `torch_estimator.strategies.data_parallel`.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.run_config import RunConfig
from torch_estimator.strategies.checks import check_silence
from torch_estimator.strategies.data_parallel import joined
from torch_estimator.strategy import EvaluationShare, Session, Strategy

logger = logging.getLogger("torch_estimator")

_DEVICE = re.compile(r"/?(?:device:)?(cpu|gpu|cuda):(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MirroredStrategy(Strategy):
    """Strategy in which several replicas of the model on one machine take each step together.

    The user starts one program. Its own process is the first replica, which saves checkpoints. When training begins,
    the program forks a process for every other replica; these processes end with the training. Hooks run in every
    replica. All replicas update with the sum of their gradients.

    Of n replicas, replica i takes the batches i, i + n, i + 2n, … of the ``input_fn``. So a step is computed on n
    batches, as with tf.distribute. Each replica computes on one thread.

    Args:
        devices: The device of each replica, such as ``["gpu:0", "gpu:1"]`` or ``["cpu:0", "cpu:1"]``; the number of a
            CPU has no meaning. None stands for all GPUs, or for one replica on the CPU if there are no GPUs.
        replicas: The number of replicas, instead of ``devices``: one per GPU, or all on the CPU if there are no GPUs.
        silence_secs: Seconds that a replica waits for the others before it logs a warning that names them. It goes on
            waiting after the warning.

    Raises:
        InvalidTypeError, InvalidValueError: ``devices`` are not devices, ``replicas`` is not a positive whole number,
            or ``silence_secs`` is not a positive number.

    >>> strategy = te.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    >>> strategy.num_replicas_in_sync, strategy.torch_devices()
    (2, ('cpu', 'cpu'))
    >>> config = te.RunConfig("runs/census", train_distribute=strategy)
    """

    devices: Sequence[str] | None = None
    replicas: int | None = None
    silence_secs: float = 300.0

    def __post_init__(self) -> None:
        check_silence(self.silence_secs)
        if self.devices is not None and self.replicas is not None:
            raise InvalidValueError(
                f"Give devices or replicas, not both, but got devices={self.devices!r} and replicas={self.replicas!r}."
            )
        if self.replicas is not None:
            _check_replicas(self.replicas)
        if self.devices is not None:
            object.__setattr__(self, "devices", _checked(self.devices))

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that take a step together."""
        return len(self.torch_devices())

    def check(self, task: Task) -> None:
        if task.num_workers > 1 or task.num_ps:
            raise InvalidValueError(
                f"train_distribute is a MirroredStrategy, which is for the devices of one machine, but {task.source} "
                f"names a cluster of {task.num_workers + task.num_ps} processes; use a MultiWorkerMirroredStrategy, or "
                "leave train_distribute out."
            )

    @contextmanager
    def join(self, config: RunConfig) -> Iterator[Session]:
        from torch_estimator.distributed.forked_replicas import ForkedReplicas

        with ForkedReplicas(self.torch_devices()) as replicas:
            task = replicas.task
            if task.rank:
                # Mark this replica as a copy: only the first replica saves checkpoints and writes summaries.
                config = dataclasses.replace(config, _task=dataclasses.replace(config.task, is_copy=True))
            with joined(config, task, self, replicas=replicas) as session:
                yield session

    @property
    def evaluates(self) -> bool:
        return True

    def share_evaluation(self, config: RunConfig) -> AbstractContextManager[EvaluationShare | None]:
        import torch

        from torch_estimator.distributed.shared_evaluation import ForkedShare

        devices = self.torch_devices()
        if len(devices) == 1:
            return nullcontext()
        if torch.cuda.is_available():
            # A process that has used CUDA cannot be forked, and an earlier evaluation in this process may have used it.
            logger.warning("eval_distribute: evaluating on the GPU alone, with the same results.")
            return nullcontext()
        return nullcontext(ForkedShare(devices))

    def torch_devices(self) -> tuple[str, ...]:
        """Return the device of each replica as torch names it, such as ``cuda:0`` or ``cpu``.

        Raises:
            InvalidValueError: This machine does not have all of these GPUs.
        """
        import torch

        # Counting the GPUs does not initialize CUDA. After an initialization, this process could not be forked.
        gpus = torch.cuda.device_count()
        if self.devices is None:
            wanted = self.replicas or gpus or 1
            devices = tuple(f"gpu:{number}" if gpus else "cpu:0" for number in range(wanted))
        else:
            devices = tuple(self.devices)
        if devices[0].startswith("cpu"):
            return tuple("cpu" for _ in devices)
        for device in devices:
            if int(device.partition(":")[2]) >= gpus:
                raise InvalidValueError(
                    f"MirroredStrategy wants {device}, but this machine has {_count(gpus)}; name others, or 'cpu:0', "
                    "'cpu:1', ... for replicas on the CPU."
                )
        return tuple(device.replace("gpu", "cuda") for device in devices)


def _check_replicas(replicas: object) -> None:
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise InvalidTypeError(f"replicas must be a whole number, but got {replicas!r}.")
    if replicas < 1:
        raise InvalidValueError(f"replicas must be positive, but got {replicas}.")


def _checked(devices: object) -> tuple[str, ...]:
    """Check the names of the devices; return them in a normalized spelling, such as ``gpu:0``."""
    if not isinstance(devices, list | tuple) or not all(isinstance(one, str) for one in devices):
        raise InvalidTypeError(f"devices must be a list such as ['gpu:0', 'gpu:1'], but got {devices!r}.")
    found = [_DEVICE.fullmatch(one) for one in devices]
    for device, match in zip(devices, found, strict=True):
        if match is None:
            raise InvalidValueError(f"devices must be named like 'gpu:0' or 'cpu:0', but one is {device!r}.")
    named = tuple(f"{match[1].lower().replace('cuda', 'gpu')}:{int(match[2])}" for match in found if match is not None)
    if not named:
        raise InvalidValueError("devices must name at least one device, but got none; leave it out for all GPUs.")
    if len(set(named)) < len(named):
        raise InvalidValueError(f"devices must differ from each other, but got {devices!r}.")
    if len({name[:3] for name in named}) > 1:
        raise InvalidValueError(f"devices must be all GPUs or all CPUs, but got {devices!r}.")
    return named


def _count(gpus: int) -> str:
    return "no GPU" if not gpus else "one GPU" if gpus == 1 else f"{gpus} GPUs"
