"""Settings of a job, such as its directory, its random seed, and how often it saves checkpoints."""

from __future__ import annotations

import dataclasses
import numbers
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from torch_estimator.cluster import Task, task_from_environment
from torch_estimator.cluster.task import (
    EVALUATOR,
    WAIT_SECS,
    WORKER,
    ClusterSpec,
    check_has_chief,
)
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.strategy import Strategy


class _Default:
    def __repr__(self) -> str:
        return "<default>"


_DEFAULT: Final = _Default()
_DEFAULT_SAVE_CHECKPOINTS_SECS: Final = 600
_DEFAULT_LOG_STEP_COUNT_STEPS: Final = 100
_DEFAULT_MIN_LOG_SECS: Final = 1.0
_MOST_WAIT_SECS: Final = 1_000_000_000
_WHOLE_NUMBERS: Final = (
    "save_summary_steps",
    "save_checkpoints_steps",
    "keep_checkpoint_max",
    "log_step_count_steps",
)

_DEVICE: Final = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")

COMPILE = "TORCH_ESTIMATOR_COMPILE"
"""Environment variable: ``true`` or ``false`` in place of ``compile="auto"``, where the time must not decide."""

_NO_SESSIONS = "PyTorch has neither sessions nor a graph that it would apply to"
_DROPPED = {
    "checkpoint_save_graph_def": _NO_SESSIONS,
    "device_fn": _NO_SESSIONS,
    "experimental_distribute": "train_distribute is its name",
    "protocol": _NO_SESSIONS,
    "session_config": _NO_SESSIONS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Settings of a job. A setting that tf.estimator's RunConfig also has keeps its name and default.

    Args:
        model_dir: Directory of checkpoints, summaries and exports; a path or an fsspec URL (``memory://``, ``s3://``).
        random_seed: Seed of initial weights and of dropout; None draws a seed.
        tf_random_seed: Old name of ``random_seed``; give at most one of the two.
        save_summary_steps: Steps between summaries of the loss and, if a schedule changes it, of the learning rate;
            None or 0 writes none.
        save_checkpoints_steps: Steps between checkpoints. None or 0 switches saving by steps off.
        save_checkpoints_secs: Seconds between checkpoints; 600 if neither this nor ``save_checkpoints_steps`` is given.
        keep_checkpoint_max: Number of newest checkpoints to keep; None or 0 keeps all.
        keep_checkpoint_every_n_hours: Hours of training per additional checkpoint that is kept for good.
        log_step_count_steps: Steps between log lines of loss and speed; None logs none. By default every 100 steps, but
            at most once a second.
        resume_input: Whether training that starts from a checkpoint continues its input at the position saved there;
            False starts the input over, as tf.estimator did.
        compile: Whether the training step, from the forward pass to the optimizers' updates, is compiled into machine
            code. ``"auto"`` trains in Python at first, and compiles in the background if training takes longer than a
            second. Training switches to the compiled step when it is ready, or at once if an earlier run has left it
            in the cache. True waits for the compiler; False always trains in Python.
        device: What to compute on: ``"cpu"``, ``"cuda:1"``, or ``"cuda"`` for the GPU that ``"auto"`` would take.
            ``"auto"`` takes a GPU if there is one; the processes of a cluster take the GPUs of their host in turn, or
            the CPU if the cluster has parameter servers. `distribute.MirroredStrategy` has devices of its own.
        train_distribute: How the processes of a cluster train together. None stands for
            `distribute.ParameterServerStrategy` if the cluster has parameter servers, and for
            `distribute.MultiWorkerMirroredStrategy` if not. `distribute.MirroredStrategy` trains on all devices of one
            machine. `distribute.FullyShardedStrategy` is for models that do not fit one device.
        eval_distribute: How several processes share the batches of one evaluation. Every example counts once, and the
            metrics equal those of one process. `distribute.MirroredStrategy` shares the batches among replicas on the
            CPU of the evaluating machine. `distribute.MultiWorkerMirroredStrategy` shares them among the processes that
            train together, if the cluster has no evaluator. With None, one process evaluates alone.
        session_creation_timeout_secs: Seconds that the processes of a cluster wait for each other; None stands for
            7200.
        experimental_max_worker_delay_secs: Maximum delay of a worker's start, with parameter servers; by default 60.
            Worker n starts 5 * (n + 1) seconds after the chief, but not later than this. 0 starts all at once.
        mixed_precision: ``"bf16"`` runs those operations of the training's forward pass in bfloat16 that
            `torch.autocast` considers safe. Weights, optimizer state, checkpoints, evaluation, prediction and exports
            stay float32.

    Raises:
        InvalidValueError: A value is out of range, or two contradict each other.
        InvalidTypeError: A value is of the wrong type.

    >>> config = te.RunConfig("runs/census", random_seed=1, save_checkpoints_steps=1000)
    >>> config.save_checkpoints_steps, config.save_checkpoints_secs, config.keep_checkpoint_max
    (1000, None, 5)
    >>> config.task_type, config.is_chief, config.num_worker_replicas
    ('worker', True, 1)
    """

    model_dir: str | os.PathLike[str] | None = field(default=None, kw_only=False)
    random_seed: int | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | _Default | None = _DEFAULT
    save_checkpoints_secs: float | _Default | None = _DEFAULT
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10_000
    log_step_count_steps: int | _Default | None = _DEFAULT
    resume_input: bool = True
    compile: Literal["auto"] | bool = "auto"
    mixed_precision: Literal["bf16"] | None = None
    device: str = "auto"
    train_distribute: Strategy | None = None
    eval_distribute: Strategy | None = None
    session_creation_timeout_secs: float = WAIT_SECS
    experimental_max_worker_delay_secs: int | None = None
    _task: Task = field(default_factory=task_from_environment, repr=False)
    _min_log_secs: float | None = field(default=None, repr=False)

    def __new__(cls, *args: Any, **settings: Any) -> RunConfig:
        for name in settings:
            if name in _DROPPED:
                raise InvalidTypeError(f"RunConfig has no setting {name}: {_DROPPED[name]}; remove it.")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self._check_strategies()
        self._resolve_log_steps()
        self._resolve_save_checkpoints()
        self._resolve_seed()
        self._resolve_model_dir()
        _check_integer("experimental_max_worker_delay_secs", self.experimental_max_worker_delay_secs)
        for name in (
            "save_summary_steps",
            "save_checkpoints_steps",
            "save_checkpoints_secs",
            "keep_checkpoint_max",
            "experimental_max_worker_delay_secs",
        ):
            value = getattr(self, name)
            _check_number(name, value)
            if value is not None and not value >= 0:
                raise InvalidValueError(f"{name} must not be negative, but got {value}.")
        for name in ("keep_checkpoint_every_n_hours", "log_step_count_steps", "session_creation_timeout_secs"):
            value = getattr(self, name)
            _check_number(name, value)
            if value is not None and not value > 0:
                raise InvalidValueError(f"{name} must be positive, but got {value}.")
        self._resolve_wait()
        for name in _WHOLE_NUMBERS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, int(getattr(self, name)))
        if not isinstance(self.resume_input, bool):
            raise InvalidTypeError(f"resume_input must be True or False, but got {self.resume_input!r}.")
        if not isinstance(self.compile, bool) and self.compile != "auto":
            raise InvalidTypeError(f'compile must be "auto", True or False, but got {self.compile!r}.')
        if self.compile == "auto" and os.environ.get(COMPILE) in ("true", "false"):
            object.__setattr__(self, "compile", os.environ[COMPILE] == "true")
        _check_mixed_precision(self.mixed_precision)
        if not (isinstance(self.device, str) and _DEVICE.fullmatch(self.device)):
            raise InvalidValueError(f'device must be "auto", "cpu" or a GPU such as "cuda:0", but got {self.device!r}.')

    def _check_strategies(self) -> None:
        if self.train_distribute is None:
            check_has_chief(self._task)
        elif not isinstance(self.train_distribute, Strategy):
            raise InvalidTypeError(
                "train_distribute must be a MirroredStrategy, a MultiWorkerMirroredStrategy, a FullyShardedStrategy or "
                f"a ParameterServerStrategy of torch_estimator.distribute, but got {self.train_distribute!r}."
            )
        else:
            # Check an evaluator as if it were a worker, because all processes of a job have the same configuration.
            is_evaluator = self._task.type == EVALUATOR
            self.train_distribute.check(dataclasses.replace(self._task, type=WORKER) if is_evaluator else self._task)
        given = self.eval_distribute
        if given is not None and not (isinstance(given, Strategy) and given.evaluates):
            raise InvalidTypeError(
                "eval_distribute must be a MirroredStrategy or a MultiWorkerMirroredStrategy of "
                f"torch_estimator.distribute, but got {given!r}."
            )

    def _resolve_log_steps(self) -> None:
        is_default = self.log_step_count_steps is _DEFAULT
        if is_default:
            object.__setattr__(self, "log_step_count_steps", _DEFAULT_LOG_STEP_COUNT_STEPS)
        if self._min_log_secs is None:
            # By default, limit the log to one line per second, because a small model takes 10,000 steps in a second.
            object.__setattr__(self, "_min_log_secs", _DEFAULT_MIN_LOG_SECS if is_default else 0.0)

    def _resolve_save_checkpoints(self) -> None:
        steps, secs = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps is _DEFAULT and secs is _DEFAULT:
            steps, secs = None, _DEFAULT_SAVE_CHECKPOINTS_SECS
        elif steps is _DEFAULT:
            steps = None
        elif secs is _DEFAULT:
            secs = None
        if steps is not None and secs is not None:
            raise InvalidValueError(
                "Give save_checkpoints_steps or save_checkpoints_secs, not both, but got "
                f"save_checkpoints_steps={steps} and save_checkpoints_secs={secs}."
            )
        object.__setattr__(self, "save_checkpoints_steps", steps)
        object.__setattr__(self, "save_checkpoints_secs", secs)

    def _resolve_wait(self) -> None:
        secs = self.session_creation_timeout_secs
        if secs is None:
            object.__setattr__(self, "session_creation_timeout_secs", WAIT_SECS)
        elif secs > _MOST_WAIT_SECS:
            raise InvalidValueError(
                f"session_creation_timeout_secs must be at most {_MOST_WAIT_SECS}, but got {secs}; every wait "
                "has an end."
            )

    def _resolve_seed(self) -> None:
        for name in ("random_seed", "tf_random_seed"):
            value = getattr(self, name)
            _check_integer(name, value)
            if value is not None and not -(2**63) <= value < 2**64:
                raise InvalidValueError(f"{name} must fit into 64 bits, but got {value}.")
        seeds = {self.random_seed, self.tf_random_seed} - {None}
        if len(seeds) > 1:
            raise InvalidValueError(
                "random_seed and tf_random_seed are two names of one setting, but got "
                f"random_seed={self.random_seed} and tf_random_seed={self.tf_random_seed}; give one of them."
            )
        seed = seeds.pop() if seeds else None
        object.__setattr__(self, "random_seed", seed)
        object.__setattr__(self, "tf_random_seed", seed)

    def _resolve_model_dir(self) -> None:
        if not isinstance(self.model_dir, str | os.PathLike | None):
            raise InvalidTypeError(f"model_dir must be a path or a URL, but got {self.model_dir!r}.")
        model_dir = None if self.model_dir is None else os.fspath(self.model_dir)
        if model_dir is not None and not model_dir:
            raise InvalidValueError("model_dir must be a non-empty path or URL, but got ''.")
        from_environment = self._task.model_dir
        if model_dir and from_environment and model_dir != from_environment:
            raise InvalidValueError(
                f"model_dir is {model_dir!r} in RunConfig but {from_environment!r} in TF_CONFIG; "
                "make them the same or remove one of them."
            )
        object.__setattr__(self, "model_dir", model_dir or from_environment)

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy of this configuration with some settings changed.

        A value for ``save_checkpoints_steps`` sets ``save_checkpoints_secs`` to None, and the other way round.

        Args:
            changes: Settings and their new values, by name.

        Raises:
            InvalidValueError: A name is not one of the settings, or a value is invalid.

        >>> config = te.RunConfig("runs/census").replace(save_checkpoints_steps=100)
        >>> config.save_checkpoints_steps, config.save_checkpoints_secs
        (100, None)
        """
        settings = {f.name for f in dataclasses.fields(self) if not f.name.startswith("_")}
        for name in changes:
            if name not in settings:
                raise InvalidValueError(
                    f"Replacing {name} is not supported; the settings of a RunConfig are {', '.join(sorted(settings))}."
                )
        for one, other in (
            ("save_checkpoints_steps", "save_checkpoints_secs"),
            ("save_checkpoints_secs", "save_checkpoints_steps"),
        ):
            if changes.get(one) is not None and other not in changes:
                changes[other] = None
        for one, other in (("random_seed", "tf_random_seed"), ("tf_random_seed", "random_seed")):
            if one in changes and other not in changes:
                changes[other] = changes[one]
        if "log_step_count_steps" in changes:
            changes["_min_log_secs"] = None
        return dataclasses.replace(self, **changes)

    @property
    def task(self) -> Task:
        """The task of the cluster that this process runs, and how to reach the other tasks."""
        return self._task

    @property
    def task_type(self) -> str:
        """Type of this process's task: ``chief``, ``master``, ``worker``, ``ps`` or ``evaluator``.

        Without a cluster it is ``worker``.
        """
        return self._task.type

    @property
    def task_id(self) -> int:
        """Index of this process's task among the tasks of the same type."""
        return self._task.id

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and summaries."""
        return self._task.is_chief

    @property
    def num_worker_replicas(self) -> int:
        """Number of processes that train, including the chief; 0 in an evaluator, which is not part of the cluster."""
        return self._task.num_workers

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers; 0 in an evaluator."""
        return self._task.num_ps

    @property
    def global_id_in_cluster(self) -> int | None:
        """Index of this process's task among all tasks of the cluster; None for an evaluator.

        The chief comes first, then the other types in alphabetical order, then the parameter servers.
        """
        return self._task.global_id

    @property
    def cluster_spec(self) -> ClusterSpec:
        """Addresses of the cluster's tasks by type; empty without a cluster and in an evaluator.

        It is also empty under launchers such as torchrun, which do not give the addresses of all tasks.
        """
        if self._task.type == EVALUATOR:
            return ClusterSpec()
        return ClusterSpec({type: list(addresses) for type, addresses in self._task.cluster.items()})

    @property
    def master(self) -> str:
        """Address that a TensorFlow session of this task would connect to, for ported code that reads this property.

        It is ``session_master`` of TF_CONFIG or, without that entry, ``grpc://`` and the task's address. It is empty in
        an evaluator, in a cluster of one task, and without a cluster.
        """
        if self._task.type == EVALUATOR:
            return ""
        if self._task.session_master is not None:
            return self._task.session_master
        only = sum(map(len, self._task.cluster.values())) <= 1
        return "" if only else f"grpc://{self._task.address}"

    @property
    def evaluation_master(self) -> str:
        """Entry ``eval_session_master`` of TF_CONFIG in an evaluator or without a cluster; empty in all other tasks."""
        evaluates = self._task.type == EVALUATOR or not self._task.cluster
        return (self._task.eval_session_master or "") if evaluates else ""

    @property
    def service(self) -> Mapping[str, Any]:
        """Entry ``service`` of TF_CONFIG, unchanged."""
        return self._task.service


def _check_integer(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise InvalidValueError(f"{name} must be an integer, but got {value!r}.")


def _check_number(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise InvalidTypeError(f"{name} must be a number or None, but got {value!r}.")
    if name in _WHOLE_NUMBERS and not float(value).is_integer():
        raise InvalidValueError(f"{name} must be a whole number or None, but got {value}.")


def _check_mixed_precision(value: object) -> None:
    if value in ("fp16", "float16"):
        raise InvalidValueError(
            f"mixed_precision={value!r} is not supported, since it would need the loss to be scaled; use 'bf16', which "
            "has the range of float32."
        )
    if value not in (None, "bf16"):
        raise InvalidValueError(f"mixed_precision must be 'bf16' or None, but got {value!r}.")
