"""What a user asks for: the options of ``jobs submit training`` and gcloud's configuration, as a `JobSpec`."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch_estimator.cluster.task import CHIEF, EVALUATOR, PARAMETER_SERVER, WORKER
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import JobSpec, Machine
from torch_estimator.jobs.table import CUSTOM, Table, tier_name
from torch_estimator.jobs.yaml_reader import Unread, YamlReader

SECRETS = "TORCH_ESTIMATOR_SECRET_ARGUMENTS"
"""Environment variable with the values of secret arguments as JSON. Only the launcher gets it."""

STUDY_KEYS = ("studySpec", "maxTrialCount", "parallelTrialCount", "maxFailedTrialCount")
"""Keys of Vertex AI's configuration that say what a study is."""

# As gcloud's YAML calls the roles.
_YAML_ROLES = {"master": CHIEF, "worker": WORKER, "parameterServer": PARAMETER_SERVER, "evaluator": EVALUATOR}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)s")


@dataclass(slots=True, kw_only=True)
class Request:
    """What a command line or a configuration asks for; None where it says nothing.

    `types` has the machine type of a type of task, `gpus` its number of GPUs, and `useless` the names of what has no
    meaning here. `study` has what asks for a study of several trainings, which the room `tuning` reads.
    `refusals` has, for what is of a file, a function that raises an error with the place in the file.
    """

    module_name: str | None = None
    arguments: list[str] | None = None
    job_dir: str | None = None
    scale_tier: str | None = None
    worker_count: int | None = None
    parameter_server_count: int | None = None
    evaluator_count: int | None = None
    types: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, Callable[[str], object]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    max_running_secs: float | None = None
    useless: list[str] = field(default_factory=list)
    study: Unread | None = None

    def over(self, other: Request) -> Request:
        """Return this request with what it leaves open taken from another one."""
        merged: dict[str, Any] = {}
        for one in fields(self):
            mine, others = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, dict):
                merged[one.name] = {**others, **mine}
                for role in mine if one.name == "types" else ():
                    other.refusals.pop(role, None)
            elif one.name == "useless":
                merged[one.name] = [*mine, *others]
            else:
                merged[one.name] = others if mine is None else mine
                if mine is not None:
                    # The place in the file is not that of the value.
                    other.refusals.pop(one.name, None)
        return Request(**merged)


def spec_of(request: Request, table: Table, name: str, target: str) -> JobSpec:
    """Return the specification of a new job, without its package; refuse what contradicts itself."""
    if request.module_name is None:
        raise InvalidValueError("no program is given; name its module with --module-name, such as trainer.task.")
    counts = [request.worker_count, request.parameter_server_count, request.evaluator_count]
    given = [one for one in counts if one is not None]
    tier = tier_name(request.scale_tier or (CUSTOM if any(given) else "BASIC"))
    evaluator: bool | None
    if tier == CUSTOM:
        workers, servers = request.worker_count or 0, request.parameter_server_count or 0
        evaluator = None if request.evaluator_count is None else request.evaluator_count > 0
        machines: dict[str, str] = {}
    elif given:
        with _placed(request, "worker_count", "parameter_server_count", "evaluator_count", "scale_tier"):
            raise InvalidValueError(
                "numbers of workers, parameter servers and evaluators go with --scale-tier CUSTOM only, but the tier "
                f"is {tier}."
            )
    else:
        with _placed(request, "scale_tier"):
            found = table.tier(tier)
        workers, servers, evaluator = found.worker_count, found.parameter_server_count, found.evaluator
        machines = dict(found.machines)
    for one, count in (("worker", workers), ("parameter server", servers), ("evaluator", request.evaluator_count or 0)):
        if count < 0 or (one == "evaluator" and count > 1):
            most = "0 or 1" if one == "evaluator" else "0 or more"
            with _placed(request, f"{one.replace(' ', '_')}_count"):
                raise InvalidValueError(f"the number of {one}s must be {most}, but got {count}.")
    is_cluster = bool(workers or servers or evaluator)
    where = table.target(target)
    return JobSpec(
        name=name,
        created=time.time(),
        target=target,
        module_name=request.module_name,
        folder=os.getcwd(),
        arguments=list(request.arguments or ()),
        job_dir=request.job_dir,
        tier=tier,
        is_cluster=is_cluster,
        worker_count=workers,
        parameter_server_count=servers,
        evaluator=is_cluster if evaluator is None else evaluator,
        machines=_machines(request, table, machines),
        labels=request.labels,
        secret_arguments=list(table.secret_arguments),
        interpreter=where.interpreter,
        settings={"kind": where.kind, **where.settings},
        max_running_secs=request.max_running_secs or 0.0,
    )


def _machines(request: Request, table: Table, of_tier: Mapping[str, str]) -> dict[str, Machine]:
    names = {**of_tier, **request.types}
    machines = {}
    for role, name in names.items():
        with _placed(request, role):
            machines[role] = table.machine(name)
    for role, count in request.gpus.items():
        machines[role] = replace(machines.get(role, Machine()), gpus=count)
    return machines


@contextlib.contextmanager
def _placed(request: Request, *attributes: str) -> Iterator[None]:
    """Begin an InvalidValueError of the body with the place of the first attribute that is of a configuration."""
    try:
        yield
    except InvalidValueError as error:
        for attribute in attributes:
            if attribute in request.refusals:
                request.refusals[attribute](str(error).removesuffix("."))
        raise


def without_secrets(arguments: Sequence[str], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take the values of secret arguments out of arguments; return the arguments with holes, and the values.

    ``--api_token`` and ``--api-token`` are the same, as programs with flags of absl have both.

    >>> without_secrets(["--api_token", "x", "--steps", "5", "--key=y"], ["--api-token", "--key"])
    (['--api_token', '', '--steps', '5', '--key='], ['x', 'y'])
    """
    kept, values = [], []
    is_value = False
    for one in arguments:
        name, sign, value = one.partition("=")
        if is_value:
            values.append(one)
            kept.append("")
        elif sign and _is_secret(name, names):
            values.append(value)
            kept.append(f"{name}=")
        else:
            kept.append(one)
        is_value = not is_value and _is_secret(one, names)
    return kept, values


def _is_secret(argument: str, names: Sequence[str]) -> bool:
    return argument.replace("_", "-") in [name.replace("_", "-") for name in names]


def with_secrets(arguments: Sequence[str], names: Sequence[str], values: Sequence[str]) -> list[str]:
    """Put the values of secret arguments back.

    >>> with_secrets(["--token", "", "--steps", "5", "--key="], ["--token", "--key"], ["x", "y"])
    ['--token', 'x', '--steps', '5', '--key=y']
    """
    left = list(values)
    filled, is_value = [], False
    for one in arguments:
        if is_value or (one.endswith("=") and _is_secret(one[:-1], names)):
            if not left:
                raise InvalidValueError(
                    f"the values of {', '.join(names)} are secret and were not kept; give all arguments again after --."
                )
            filled.append(one + left.pop(0))
        else:
            filled.append(one)
        is_value = not is_value and _is_secret(one, names)
    return filled


def request_of_file(path: str) -> Request:
    """Return what a YAML asks for: gcloud's ``trainingInput`` and ``labels``, or Vertex AI's ``trialJobSpec``.

    What asks for a study is left unread in `Request.study`.
    """
    reader, root = YamlReader.open(path)
    request = Request()
    for key, node in reader.items(root, "the file") if root is not None else ():
        if key == "trainingInput":
            _read(reader, request, node, key, _TRAINING_INPUT)
        elif key == "trialJobSpec":
            _read(reader, request, node, key, _TRIAL_JOB_SPEC)
        elif key == "labels":
            request.labels = {str(name): str(value) for name, value in reader.value(node, dict, key).items()}
        elif key in STUDY_KEYS:
            _leave(reader, request, node, key)
        elif key not in ("jobId", "predictionInput", "displayName"):
            known = ", ".join(("trainingInput", "labels", "trialJobSpec", *STUDY_KEYS[:-1]))
            reader.refuse(node, f"unknown key {key!r}; there are {known} and {STUDY_KEYS[-1]}")
    return request


Take = Callable[[YamlReader, Request, Any, str], None]


def _read(reader: YamlReader, request: Request, node: Any, name: str, known: Mapping[str, Take | None]) -> None:
    for key, value in reader.items(node, name, known):
        take = known[key]
        if take is None:
            request.useless.append(key)
        else:
            take(reader, request, value, key)


def _take(attribute: str, kind: type[Any]) -> Take:
    def take(reader: YamlReader, request: Request, node: Any, key: str) -> None:
        setattr(request, attribute, reader.value(node, kind, key))
        request.refusals[attribute] = lambda problem: reader.refuse(node, f"{key}: {problem}")

    return take


def _take_type(role: str) -> Take:
    def take(reader: YamlReader, request: Request, node: Any, key: str) -> None:
        request.types[role] = reader.value(node, str, key)
        request.refusals[role] = lambda problem: reader.refuse(node, f"{key}: {problem}")

    return take


def _take_gpus(role: str) -> Take:
    def take(reader: YamlReader, request: Request, node: Any, key: str) -> None:
        request.gpus[role] = reader.value(node, int, key)

    return take


def _take_parts(known: Mapping[str, Take], *useless: str) -> Take:
    def take(reader: YamlReader, request: Request, node: Any, key: str) -> None:
        _read(reader, request, node, key, {**known, **dict.fromkeys(useless)})

    return take


def _take_config(role: str) -> Take:
    accelerators = _take_parts({"count": _take_gpus(role)}, "type")
    others = ("imageUri", "containerCommand", "containerArgs", "diskConfig", "tpuTfVersion")
    return _take_parts({"acceleratorConfig": accelerators}, *others)


def _take_arguments(reader: YamlReader, request: Request, node: Any, key: str) -> None:
    values = reader.value(node, list, key)
    # YAML reads `- --steps` as a text, and `- 5` as a number.
    request.arguments = [reader.value(each, str, key) if each.id != "scalar" else each.value for each in node.value]
    assert len(values) == len(request.arguments)


def _take_running_time(reader: YamlReader, request: Request, node: Any, key: str) -> None:
    text = reader.value(node, str, key)
    match = _DURATION.fullmatch(text)
    if match is None:
        reader.refuse(node, f"{key} must be a number of seconds such as 7200s, but got {text!r}")
    else:
        request.max_running_secs = float(match[1])


def _leave(reader: YamlReader, request: Request, node: Any, key: str) -> None:
    if request.study is None:
        request.study = Unread(reader, {})
    request.study.nodes[key] = node


_TRAINING_INPUT: dict[str, Take | None] = {
    "scaleTier": _take("scale_tier", str),
    **{f"{name}Type": _take_type(role) for name, role in _YAML_ROLES.items()},
    **{f"{name}Config": _take_config(role) for name, role in _YAML_ROLES.items()},
    "workerCount": _take("worker_count", int),
    "parameterServerCount": _take("parameter_server_count", int),
    "evaluatorCount": _take("evaluator_count", int),
    "args": _take_arguments,
    "jobDir": _take("job_dir", str),
    "pythonModule": _take("module_name", str),
    "scheduling": _take_parts({"maxRunningTime": _take_running_time}, "maxWaitTime", "priority"),
    "hyperparameters": _leave,
    **dict.fromkeys(
        (
            "packageUris",
            "region",
            "runtimeVersion",
            "pythonVersion",
            "useChiefInTfConfig",
            "encryptionConfig",
            "network",
        )
    ),
    **dict.fromkeys(("serviceAccount", "enableWebAccess")),
}


def _take_pools(reader: YamlReader, request: Request, node: Any, key: str) -> None:
    pools = reader.nodes(node, key)
    if len(pools) > len(_POOLS):
        reader.refuse(pools[len(_POOLS)], f"{key} has at most {len(_POOLS)} pools, for {', '.join(_POOLS)}")
    # Each pool names its program; the job's is that of the first pool.
    for (role, count), pool in reversed(list(zip(_POOLS.items(), pools, strict=False))):
        _read(
            reader,
            request,
            pool,
            key,
            {
                "replicaCount": count,
                "machineSpec": _take_parts({"acceleratorCount": _take_gpus(role)}, "machineType", "acceleratorType"),
                "pythonPackageSpec": _take_parts(
                    {"pythonModule": _take("module_name", str), "args": _take_arguments},
                    *("executorImageUri", "packageUris", "env"),
                ),
                "containerSpec": _take_parts({"args": _take_arguments}, "imageUri", "command", "env"),
                "diskSpec": None,
            },
        )


def _take_one(reader: YamlReader, request: Request, node: Any, key: str) -> None:
    if reader.value(node, int, key) != 1:
        reader.refuse(node, f"{key} of the first pool, which has the chief, must be 1")


# Vertex AI knows roles by the place of their pool.
_POOLS: dict[str, Take] = {
    CHIEF: _take_one,
    WORKER: _take("worker_count", int),
    PARAMETER_SERVER: _take("parameter_server_count", int),
    EVALUATOR: _take("evaluator_count", int),
}

_TRIAL_JOB_SPEC: dict[str, Take | None] = {
    "workerPoolSpecs": _take_pools,
    "baseOutputDirectory": _take_parts({"outputUriPrefix": _take("job_dir", str)}),
    "scheduling": _take_parts(
        {"timeout": _take_running_time}, "restartJobOnWorkerRestart", "disableRetries", "strategy", "maxWaitDuration"
    ),
    **dict.fromkeys(("serviceAccount", "network", "reservedIpRanges", "tensorboard", "persistentResourceId")),
    **dict.fromkeys(("enableWebAccess", "enableDashboardAccess", "experiment", "experimentRun", "labels")),
}
