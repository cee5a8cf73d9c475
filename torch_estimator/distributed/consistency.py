"""Check, before the first step, that all processes run the same program with the same settings.

If the processes ran different programs, training would compute nonsense without any error: gradients are added up
number by number, whichever parameters they belong to. So each process describes its training as JSON: the versions of
torch and of this package, the variables with their shapes, the optimizers with their settings, the schedules, the first
and the last step, the number of processes, and digests of the source files that define the program. First the processes
exchange one digest of the whole description. Only if these digests differ, they exchange the descriptions, and each
process ends with an error that names the first difference:

    worker 0 and chief 0 must run the same program, but differ in the optimizers: lr of Adagrad of dnn.logits.kernel and
    1 more is 0.01 on worker 0, and 0.1 on chief 0; start them with the same code and the same arguments.

The source files are those of the ``model_fn``, of the classes of the module and the head, of the loss and the optimizer
function, and of ``__main__``. torch is compared by version, and this package by version and a
digest of its sources. Two kinds of differences are not found:
in what the program reads from files or the environment, and in code that these functions call in other files.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torch_estimator import files
from torch_estimator.distributed.errors import PeerLost
from torch_estimator.errors import ClusterError
from torch_estimator.optim.clipping import clippings_of
from torch_estimator.optim.companions import Companion, with_companions
from torch_estimator.run_config import RunConfig
from torch_estimator.train.model import Model
from torch_estimator.train.optimizers import Schedules
from torch_estimator.versions import version_and_sources

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

Description = dict[str, dict[str, Any]]
"""Settings by section (such as "the optimizers") and name, with values that JSON can represent."""

Trainers = tuple[Sequence[torch.optim.Optimizer], Schedules]

CLUSTER = "how many there are"
"""Name of the section that describes the cluster; all other sections describe the program."""

_VERSIONS = "the versions"
_OPTIMIZERS = "the optimizers"

# Send at most this many settings of a section. One digest replaces the rest, to limit the size of the message.
_MAX_SETTINGS = 4096
_DIGEST_DIGITS = 12
# Leave out settings that say how torch computes an update, not what it computes: torch may choose them by the device.
_NOT_SETTINGS = frozenset({"params", "param_names", "foreach", "fused", "capturable"})
# Do not compare source files of these libraries: this package and torch are compared by version, and a difference in
# the standard library is a difference in Python itself.
_COMPARED_LIBRARIES = sys.stdlib_module_names | {"torch", "torch_estimator"}
_TOKEN_FILE = "cluster.token"


# The functions below describe a training.


def describe_training(model: Model, trainers: Trainers | None, model_fn: object = None) -> Description:
    """Return the properties that must be identical in all processes that train a model together.

    `trainers` are the optimizers and schedules before a checkpoint is restored, since restoring changes their settings;
    None if they are not made yet.
    """
    spec = model.spec
    return _bounded(
        {
            _VERSIONS: {"torch": torch.__version__, "torch-estimator": version_and_sources()},
            "the variables": {name: [list(one.shape), str(one.dtype)] for name, one in model.variables().items()},
            _OPTIMIZERS: {} if trainers is None else _settings_of_trainers(model.module, *trainers),
            "the source files": _source_digests([model_fn, model.module, spec.head, spec.loss, spec.optimizer]),
        }
    )


def describe_optimizers(module: nn.Module, trainers: Trainers) -> Description:
    """Return the settings of the optimizers and schedules that must be identical in all processes."""
    return _bounded({_OPTIMIZERS: _settings_of_trainers(module, *trainers)})


def _settings_of_trainers(
    module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], schedules: Schedules
) -> dict[str, Any]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    found: dict[str, Any] = {}
    for optimizer in with_companions(optimizers):
        kind = type(optimizer).__qualname__
        for group in optimizer.param_groups:
            trained = [names.get(id(one), "?") for one in group["params"]]
            of = f"{kind} of {_first_and_count(trained)}"
            if not isinstance(optimizer, Companion):
                found[f"the optimizer of {_first_and_count(trained)}"] = kind
            found[f"what is trained by {of}"] = trained
            settings = {name: value for name, value in sorted(group.items()) if name not in _NOT_SETTINGS}
            found |= {f"{name} of {of}": value for name, value in _plain_items(settings)}
        # The entries below describe the whole optimizer, not one of its parameter groups.
        all_trained = [names.get(id(one), "?") for group in optimizer.param_groups for one in group["params"]]
        of = f"{kind} of {_first_and_count(all_trained)}"
        # Read the learning rate from the optimizer, because Keras optimizers have none in their parameter groups.
        found |= {
            f"{name} of {of}": value
            for name, value in _plain_items({"learning_rate": getattr(optimizer, "learning_rate", None)})
        }
        for number, clipping in enumerate(clippings_of([optimizer])):
            clips = f"gradient clipping {number}"
            found[f"{clips} of {of}"] = type(clipping).__qualname__
            found |= {f"{clips}.{name} of {of}": value for name, value in _plain_items(vars(clipping))}
    for number, schedule in enumerate(schedules):
        found[f"schedule {number}"] = type(schedule).__qualname__
        # Compare the attributes of library classes only. A user's class is compared by its source file, since the
        # attributes of its objects may rightly differ between processes.
        if _library_of(type(schedule)) in _COMPARED_LIBRARIES:
            found |= {f"schedule {number}.{name}": value for name, value in _plain_items(vars(schedule))}
    return found


def _source_digests(parts: Iterable[object]) -> dict[str, str]:
    """Return SHA-256 digests, by module, of the source files that define `parts` and of the main program."""
    modules = {"__main__"}
    for part in parts:
        modules |= {one.__module__ for one in _definitions_of(part) if _library_of(one) not in _COMPARED_LIBRARIES}
    digests = {}
    for name in sorted(modules):
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        # Skip programs typed into an interpreter, which have no file, and compiled modules, which differ by machine.
        if file.endswith(".py") and Path(file).is_file():
            digests[name] = sha256(Path(file).read_bytes()).hexdigest()[:_DIGEST_DIGITS]
    return digests


def _definitions_of(value: object) -> Iterator[type | FunctionType]:
    """Yield the functions and classes that define an object; for an `nn.Module` also those of its submodules."""
    if isinstance(value, functools.partial):
        yield from _definitions_of(value.func)
    elif isinstance(value, MethodType):
        yield from _definitions_of(value.__self__)
    elif isinstance(value, FunctionType):
        yield value
    elif isinstance(value, nn.Module):
        for kind in {type(part) for part in value.modules()}:
            yield from kind.__mro__
    else:
        yield from (value if isinstance(value, type) else type(value)).__mro__


def _library_of(definition: type | FunctionType) -> str:
    return definition.__module__.partition(".")[0]


def _first_and_count(names: Sequence[str]) -> str:
    """Return a short form of a list of names, such as ``layer.weight and 3 more``."""
    if not names:
        return "nothing"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _plain_items(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of settings that JSON can represent: numbers, strings, and lists of these."""
    for name, value in settings.items():
        if (plain := _plain(value)) is not None:
            yield name, plain


def _plain(value: Any) -> Any:
    """Convert a number, a string, or a list of these to a value that JSON can represent; return None for others."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return None if any(item is None for item in items) else items
    if isinstance(value, float) and not math.isfinite(value):
        # Compare infinity and NaN as strings: JSON has neither, and NaN is not equal to itself.
        return str(value)
    return value if isinstance(value, bool | int | float | str) else None


def _bounded(description: Description) -> Description:
    """Return a description in which the last settings of a long section are replaced by one digest."""
    found = {}
    for section, settings in description.items():
        items = list(settings.items())
        found[section] = dict(items[:_MAX_SETTINGS])
        if items[_MAX_SETTINGS:]:
            found[section][f"what follows the first {_MAX_SETTINGS}"] = digest_of(dict(items[_MAX_SETTINGS:]))
    return found


# The functions below compare descriptions.


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value that JSON can represent. The order of keys does not matter.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def difference(name: str, own: Mapping[str, Any], other_name: str, other: Mapping[str, Any]) -> str:
    """Return a sentence about the first difference between two descriptions, or an empty string if there is none.

    A section that only one description has is not compared. The descriptions are as `json.loads` returns them.

    >>> difference("worker 0", {"the optimizers": {"lr": 0.1}}, "chief 0", {"the optimizers": {"lr": 0.2}})
    'worker 0 and chief 0 must run the same program, but differ in the optimizers: lr is 0.1 on worker 0, and 0.2 on chief 0; start them with the same code and the same arguments.'
    """  # noqa: E501
    # Compare the versions first: with another version, other sections differ, too.
    for section in sorted(other, key=lambda section: section != _VERSIONS):
        if section not in own or own[section] == other[section]:
            continue
        setting, mine, theirs = "it", *(... if one[section] is None else one[section] for one in (own, other))
        if isinstance(mine, dict) and isinstance(theirs, dict):
            # A setting that is None differs from one that the other version of this package does not have.
            setting = next(key for key in (*theirs, *mine) if mine.get(key, ...) != theirs.get(key, ...))
            mine, theirs = mine.get(setting, ...), theirs.get(setting, ...)
        same, advice = "run the same program", "start them with the same code and the same arguments"
        if section == _VERSIONS:
            advice = "install the same version everywhere"
        if section == CLUSTER:
            same, advice = "be of the same cluster", "start them with the same TF_CONFIG, but for its task"
        return (
            f"{name} and {other_name} must {same}, but differ in {section}: {setting} is {_shown(mine)} on {name}, and "
            f"{_shown(theirs)} on {other_name}; {advice}."
        )
    return ""


def check_same(group: Group, description: Mapping[str, Any]) -> None:
    """Compare the descriptions of all processes; raise `ClusterError` in every process if one differs from the chief's.

    If the process that differs has just joined a training under way, it gets a `ClusterError` itself, and all others
    get `PeerLost` and wait for another replacement.
    """
    digests = group.all_gather_texts(digest_of(description))
    if len({digests[rank] for rank in group.present}) == 1:
        return
    texts = group.all_gather_texts(json.dumps(description))
    descriptions = {rank: json.loads(texts[rank]) for rank in group.present}
    for rank, other in descriptions.items():
        if problem := difference(group.name(rank), other, group.name(0), descriptions[0]):
            newcomers = [one for one in (0, rank) if not group.statuses[one]] if group.is_training_under_way else []
            if newcomers and group.rank not in newcomers:
                raise PeerLost(problem)
            raise ClusterError(problem)


def check_same_training(
    group: Group,
    *,
    description: Description,
    model_dir: str | None,
    config: RunConfig,
    strategy_settings: Mapping[str, Any],
    begins_with: str | None = None,
    last_step: int | None = None,
) -> None:
    """Compare the trainings of all processes; raise in every process, as `check_same`, if one differs from the chief's.

    `model_dir` is where the chief saves checkpoints; None if all processes were forked from the chief. JSON can
    represent `strategy_settings`. `begins_with` (the checkpoint to start from) and `last_step` are None if they are
    unknown, or if training is under way.
    """
    if model_dir is not None:
        _check_same_model_dir(group, model_dir)
    start = {
        "the checkpoint to start from": begins_with,
        "the last step": last_step,
        "the settings": {
            "compile": config.compile,
            "mixed_precision": config.mixed_precision,
            **strategy_settings,
        },
    }
    check_same(group, {**start, **description})


def _check_same_model_dir(group: Group, model_dir: str) -> None:
    """Raise if a process does not see the files in the chief's model directory.

    The directory may have another path in each process, so paths are not compared. Instead, the chief writes a random
    token into a file of the directory, and every other process has to read the same token.
    """
    path, token = files.join(model_dir, _TOKEN_FILE), ""
    if group.rank == 0:
        token = uuid.uuid4().hex
        files.makedirs(model_dir)
        files.write_atomic(path, token.encode())
    token = group.all_gather_texts(token)[0]
    for rank, problem in enumerate(group.all_gather_texts(_problem_with(path, token, model_dir))):
        if problem:
            raise ClusterError(f"{group.name(rank)} does not see the chief's model_dir: {problem}")
    if group.rank == 0:
        files.remove_tree(path)


def _problem_with(path: str, token: str, model_dir: str) -> str:
    """Return why this process cannot read the chief's token in the file `path`; an empty string if it can."""
    try:
        if files.read_text(path) == token:
            return ""
        return f"another one's files are in its {model_dir}; give all of them the same one."
    except OSError as error:
        return (
            f"in its {model_dir} there is no file that the chief has just written ({files.reason(error)}); give all "
            "of them one that they share."
        )


def _shown(value: Any) -> str:
    return "absent" if value is ... else json.dumps(value)
