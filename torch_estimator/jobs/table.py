"""Scale tiers, machine types and targets: the built-in ones, and those of a file ``estimator.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import Machine
from torch_estimator.runs.state_file import from_json

T = TypeVar("T")

TABLE_FILE = "estimator.toml"
"""Name of the file, in the directory in which a job is submitted."""

_PREFIX = "SCALE_TIER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Numbers of roles, and the machine types of those that need a certain one, by the type of task."""

    worker_count: int = 0
    parameter_server_count: int = 0
    evaluator: bool = False
    machines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A place to run, of one of the kinds in `torch_estimator.jobs.kinds`, with the kind's own settings."""

    kind: str
    interpreter: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


_TIERS = {
    "BASIC": Tier(),
    "STANDARD_1": Tier(worker_count=4, parameter_server_count=3, evaluator=True),
    "PREMIUM_1": Tier(worker_count=19, parameter_server_count=11, evaluator=True),
    "BASIC_GPU": Tier(machines={"chief": "gpu"}),
}
_MACHINES = {"gpu": Machine(gpus=1)}

CUSTOM = "CUSTOM"
_TPU = "BASIC_TPU"


@dataclass(frozen=True, slots=True)
class Table:
    """What the file says, after the built-in entries."""

    tiers: Mapping[str, Tier]
    machines: Mapping[str, Machine]
    targets: Mapping[str, TargetTable]
    secret_arguments: tuple[str, ...] = ()

    @classmethod
    def read(cls, kinds: Mapping[str, Any], path: str = TABLE_FILE) -> Table:
        """Return the table; without a file, only the built-in entries and a target for each of the `kinds`."""
        content: dict[str, Any] = {}
        if files.exists(path):
            try:
                content = tomllib.loads(files.read_text(path))
            except tomllib.TOMLDecodeError as error:
                raise InvalidValueError(f"{path} is not TOML: {error}.") from error
        for section in content.keys() - {"tiers", "machines", "targets", "secret_arguments"}:
            raise InvalidValueError(
                f"{path} has an unknown section {section!r}; there are tiers, machines, targets and secret_arguments."
            )
        tiers = {tier_name(name): one for name, one in _entries(path, content, "tiers", Tier).items()}
        targets = {kind: TargetTable(kind=kind, interpreter=one.INTERPRETER) for kind, one in kinds.items()}
        for name, given in _section(path, content, "targets").items():
            known = {"kind", "interpreter"} & given.keys()
            settings = {key: value for key, value in given.items() if key not in known}
            found = _entry(path, f"targets.{name}", TargetTable, {key: given[key] for key in known}, settings)
            kind = found.kind
            if kind not in kinds:
                raise InvalidValueError(
                    f"{path}: 'kind' of targets.{name} must be one of {', '.join(kinds)}, but got {kind!r}."
                )
            for key in settings.keys() - set(kinds[kind].SETTINGS):
                raise InvalidValueError(
                    f"{path}: targets.{name} has an unknown key {key!r}; a target of kind {kind} has "
                    f"{', '.join(('kind', 'interpreter', *kinds[kind].SETTINGS))}."
                )
            targets[name] = found if found.interpreter else replace(found, interpreter=kinds[kind].INTERPRETER)
        secret = content.get("secret_arguments", [])
        if not isinstance(secret, list) or not all(isinstance(one, str) and one.startswith("--") for one in secret):
            raise InvalidValueError(
                f"{path}: secret_arguments must be a list of names such as --token, but got {secret!r}."
            )
        machines = {**_MACHINES, **_entries(path, content, "machines", Machine)}
        for name, machine in machines.items():
            _check_machine(machine, f"{path}: machines.{name}")
        return cls({**_TIERS, **tiers}, machines, targets, tuple(secret))

    def tier(self, name: str) -> Tier:
        """Return a tier; ``basic`` and ``SCALE_TIER_BASIC`` name BASIC, too."""
        if tier_name(name) == _TPU and _TPU not in self.tiers:
            raise InvalidValueError(f"scale tier {_TPU} asks for TPUs, which no target has; choose BASIC_GPU, say.")
        return _named(self.tiers, tier_name(name), "scale tier", CUSTOM)

    def machine(self, name: str) -> Machine:
        """Return a machine type."""
        return _named(self.machines, name, "machine type")

    def target(self, name: str) -> TargetTable:
        """Return a target."""
        return _named(self.targets, name, "target")


def tier_name(name: str) -> str:
    """Return the name of a tier as the table has it.

    >>> tier_name("SCALE_TIER_STANDARD_1"), tier_name("basic-gpu"), tier_name("SCALE_TIER_UNSPECIFIED")
    ('STANDARD_1', 'BASIC_GPU', 'BASIC')
    """
    own = name.upper().replace("-", "_").removeprefix(_PREFIX)
    return "BASIC" if own == "UNSPECIFIED" else own


def _named(entries: Mapping[str, T], name: str, what: str, *others: str) -> T:
    if name not in entries:
        known = ", ".join([*entries, *others])
        raise InvalidValueError(f"there is no {what} {name!r}; there are {known} ({TABLE_FILE} can define others).")
    return entries[name]


def _check_machine(machine: Machine, where: str) -> None:
    for key, number in (("cpus", machine.cpus), ("gpus", machine.gpus)):
        if number < 0:
            raise InvalidValueError(f"{where}: {key!r} must be 0 or more, but got {number}.")
    try:
        # This reads the text.
        _ = machine.memory_bytes
    except InvalidValueError as error:
        raise InvalidValueError(f"{where}: {error}") from error


def _section(path: str, content: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    section = content.get(name, {})
    if not isinstance(section, dict) or not all(isinstance(one, dict) for one in section.values()):
        raise InvalidValueError(f"{path}: {name} must hold tables, such as [{name}.NAME].")
    return section


def _entries(path: str, content: Mapping[str, Any], section: str, kind: type[Any]) -> dict[str, Any]:
    given = _section(path, content, section)
    return {name: _entry(path, f"{section}.{name}", kind, one) for name, one in given.items()}


def _entry(path: str, where: str, kind: type[Any], given: dict[str, Any], settings: Any = None) -> Any:
    for key in given.keys() - kind.__dataclass_fields__.keys():
        raise InvalidValueError(
            f"{path}: {where} has an unknown key {key!r}; there are {', '.join(kind.__dataclass_fields__)}."
        )
    try:
        return from_json(kind, given if settings is None else {**given, "settings": settings}, "it")
    except ValueError as error:
        raise InvalidValueError(f"{path}: {where}: {error}.") from error
