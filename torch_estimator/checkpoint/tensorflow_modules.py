"""Weights of a TensorFlow checkpoint in a torch module: which variable is which, and in which order its axes are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torch_estimator import files
from torch_estimator.checkpoint.tensorflow import read_tensorflow, tensorflow_prefix, variable_name
from torch_estimator.checkpoint.variables import named_variables, non_persistent_names, variable_owners
from torch_estimator.errors import CheckpointError, InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.dense_features import VARIABLE_SCOPE as INPUT_LAYER
from torch_estimator.feature_column.weighted_sum import VARIABLE_SCOPE as LINEAR_MODEL

Convert = Callable[[Tensor], Tensor]
"""Function from a tensor as TensorFlow has it to one as the module has it."""

Mapped = str | tuple[str, Convert] | None
"""Value of a mapping: a name in the module, a name and a function, or None for a tensor that is left out."""

_MOST_NAMES = 5

# The last part of a variable's name in TensorFlow -> in torch.
_LEAVES = {
    "kernel": "weight",
    "weights": "weight",
    "embeddings": "weight",
    "embedding_weights": "weight",
    "biases": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
# Names of variables of feature columns in a `model_fn` of TensorFlow -> here.
_COLUMNS = (
    (
        re.compile(r"(?:.*/)?(?:input_layer|dense_features)(?:_\d+)?/(.+/embedding_weights)"),
        ("dense_features", INPUT_LAYER),
    ),
    (re.compile(r"(?:.*/)?linear_model(?:_\d+)?/(.+/(?:embedding_)?weights)"), ("linear_model", LINEAR_MODEL)),
)
# TensorFlow's kernels end with inputs and outputs (of transposed convolutions: outputs and inputs), torch's begin with
# outputs and inputs (inputs and outputs).
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedVariable:
    """A variable of TensorFlow and the one of the module that gets its value.

    Attributes:
        source: Name in TensorFlow.
        target: Name in the module.
        shape: Shape in TensorFlow.
        change: ``""``, ``"transposed"``, or ``"converted"`` by a function of the mapping.
    """

    source: str
    target: str
    shape: list[int]
    change: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What `import_tf_checkpoint` copied, and what it left out. Printed, it is a table.

    Attributes:
        step: The global step of the checkpoint, 0 without one.
        matched: Variables that were copied.
        only_in_checkpoint: Names of variables that the module does not have. State of optimizers is not among them.
        only_in_module: Names of variables that the checkpoint does not have.
    """

    step: int
    matched: list[MatchedVariable]
    only_in_checkpoint: list[str]
    only_in_module: list[str]

    def __str__(self) -> str:
        rows = [["IN TENSORFLOW", "IN THE MODULE", "SHAPE", ""]]
        rows += [[one.source, one.target, "x".join(map(str, one.shape)), one.change] for one in self.matched]
        rows += [[name, "-", "", "only in the checkpoint"] for name in self.only_in_checkpoint]
        rows += [["-", name, "", "only in the module"] for name in self.only_in_module]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def import_tf_checkpoint(
    path: files.PathLike,
    module: nn.Module,
    mapping: Mapping[str, Mapped] | None = None,
    *,
    allow_unmatched: bool = False,
) -> ImportReport:
    r"""Copy the weights of a TensorFlow checkpoint into a module, and return a report. TensorFlow is not needed.

    Kernels of `torch.nn.Linear` and of convolutions are transposed, because torch has their axes in another order.
    Everything is checked first, so an error leaves the module unchanged. The state of optimizers is not read.

    Args:
        path: The checkpoint: its path without the suffixes of its files, or a directory, which stands for its newest
            one. It may be of ``tf.compat.v1.train.Saver``, of an Estimator, or of ``tf.train.Checkpoint``.
        module: The module.
        mapping: Regular expression -> name in the module. An expression has to match the whole name of a variable, or
            of its layer, which is the name up to the last ``/``. The name may contain ``\1`` and so on for groups.
            For a layer, ``kernel``, ``gamma``, ``moving_mean`` and the like become ``weight`` and ``running_mean``.
            A tuple of a name and a function converts the tensor with that function; None leaves a variable out. The
            first expression that matches counts. Variables that none matches keep their names.
        allow_unmatched: Whether variables that only the checkpoint or only the module has are left as they are.

    Returns:
        Object with the attributes ``step``, ``matched``, ``only_in_checkpoint`` and ``only_in_module``; printed, it is
        a table.

    Raises:
        CheckpointError: The checkpoint cannot be read, shapes differ, or there are variables without a counterpart.
        InvalidValueError: The mapping names a variable that the module does not have, or has a wrong expression.
        InvalidTypeError: A value of the mapping is of another type.

    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 5))
    >>> path = "tests/checkpoint/tensorflow_checkpoints/own_v1"
    >>> print(te.import_tf_checkpoint(path, net, {"dense_1": "0", ".*": None}))
    IN TENSORFLOW   IN THE MODULE  SHAPE
    dense_1/bias    0.bias         5
    dense_1/kernel  0.weight       5x5    transposed
    """
    checkpoint = read_tensorflow(tensorflow_prefix(path))
    variables, owners = named_variables(module), variable_owners(module)
    names = _Names(module, variables, mapping or {})
    tensors, matched, only_in_checkpoint = {}, [], []
    for found in checkpoint.found:
        if found.kind != "weight" or found.target is None:
            continue
        name = variable_name(found.name)
        target, convert = names.target(name, found.target)
        if target is None:
            if not names.leaves_out(name):
                only_in_checkpoint.append(name)
            continue
        if target in tensors:
            raise InvalidValueError(
                f"mapping gives {target!r} of the module the values of two variables of {checkpoint.checkpoint.path}, "
                f"one of them {name!r}; make its expressions match one of them."
            )
        tensor = checkpoint.checkpoint.variables[found.target]
        tensors[target], change = _converted(tensor, owners.get(target), convert)
        matched.append(MatchedVariable(source=name, target=target, shape=found.shape, change=change))
    only_in_module = [name for name in variables if name not in tensors and name not in _needless(module, owners)]
    report = ImportReport(
        step=checkpoint.checkpoint.step,
        matched=matched,
        only_in_checkpoint=only_in_checkpoint,
        only_in_module=only_in_module,
    )
    _check(checkpoint.checkpoint.path, report, tensors, variables, allow_unmatched=allow_unmatched)
    with torch.no_grad():
        for name, tensor in tensors.items():
            variables[name].copy_(tensor)
    return report


class _Names:
    """Names of TensorFlow's variables in a module, by the user's mapping or by the rules of premade models."""

    def __init__(self, module: nn.Module, variables: Mapping[str, Tensor], mapping: Mapping[str, Mapped]) -> None:
        self._separator = getattr(module, "variable_separator", ".")
        self._variables = variables
        self._mapping = [(_compiled(key), *_parsed(key, value)) for key, value in mapping.items()]

    def target(self, name: str, premade: str) -> tuple[str | None, Convert | None]:
        """Return the name in the module, or None, and the user's function.

        `name` is the name in TensorFlow, `premade` that in the premade models here.
        """
        for expression, template, convert in self._mapping:
            if (match := self._match(expression, name)) is None:
                continue
            if template is None:
                return None, None
            given = match.expand(template).replace("/", self._separator)
            if match.end() < len(name):
                given = f"{given}{self._separator}{name.rpartition('/')[2]}"
            return self._given(given, name), convert
        for candidate in (premade, *_of_columns(name)):
            if candidate in self._variables:
                return candidate, None
        return next(self._present(name.replace("/", self._separator)), None), None

    def leaves_out(self, name: str) -> bool:
        """Return whether the user's mapping says to leave a variable of TensorFlow out."""
        first = next((template for one, template, _ in self._mapping if self._match(one, name)), "")
        return first is None

    def _match(self, expression: re.Pattern[str], name: str) -> re.Match[str] | None:
        return expression.fullmatch(name) or expression.fullmatch(name, 0, max(name.rfind("/"), 0))

    def _given(self, given: str, name: str) -> str:
        """Return the variable of the module that a name of the user's mapping stands for."""
        for found in self._present(given):
            return found
        close = difflib.get_close_matches(given, self._variables, 1)
        raise InvalidValueError(
            f"mapping gives {name!r} the name {given!r}, which the module does not have; it has "
            f"{_listed([repr(one) for one in dict.fromkeys([*close, *self._variables])])}."
        )

    def _present(self, name: str) -> Iterator[str]:
        """Yield the names that the module has for a name whose last part may be TensorFlow's, the best one first."""
        layer, separator, leaf = name.rpartition(self._separator)
        candidates = (name, f"{layer}{separator}{_LEAVES.get(leaf, leaf)}")
        yield from (one for one in candidates if one in self._variables)


def _compiled(expression: object) -> re.Pattern[str]:
    if not isinstance(expression, str):
        raise InvalidTypeError(f"mapping must have regular expressions as keys, but got {expression!r}.")
    try:
        return re.compile(expression)
    except re.error as error:
        raise InvalidValueError(
            f"mapping has the key {expression!r}, which is no regular expression: {error}."
        ) from error


def _parsed(key: str, value: Any) -> tuple[str | None, Convert | None]:
    if value is None or isinstance(value, str):
        return value, None
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and callable(value[1]):
        return value
    raise InvalidTypeError(
        f"mapping of {key!r} must be a name, a tuple of a name and a function of a tensor, or None, but got {value!r}."
    )


def _of_columns(name: str) -> Iterator[str]:
    for expression, scopes in _COLUMNS:
        if match := expression.fullmatch(name):
            yield from (f"{scope}/{match[1]}" for scope in scopes)


def _converted(tensor: Tensor, owner: tuple[nn.Module, str] | None, convert: Convert | None) -> tuple[Tensor, str]:
    """Return a tensor as its module has it, and what has changed."""
    if convert is not None:
        return convert(tensor), "converted"
    of_torch = as_in_torch(tensor, owner)
    return of_torch, "" if of_torch is tensor else "transposed"


def as_in_torch(tensor: Tensor, owner: tuple[nn.Module, str] | None) -> Tensor:
    """Return the kernel of a layer with its axes in torch's order, any other tensor as it is.

    `owner` is the module that holds its variable, and the name there; None for columns' parts of tables.
    """
    if owner is None or owner[1] != "weight" or tensor.dim() < 2:
        return tensor
    if isinstance(owner[0], nn.Linear) and tensor.dim() == 2:
        return tensor.T
    if isinstance(owner[0], _CONVOLUTIONS) and tensor.dim() == owner[0].weight.dim():
        return tensor.permute(-1, -2, *range(tensor.dim() - 2))
    return tensor


def _needless(module: nn.Module, owners: Mapping[str, tuple[nn.Module, str]]) -> set[str]:
    """Return names of buffers that TensorFlow does not have and that do not change a module's outputs."""
    counts = {
        name
        for name, (one, attribute) in owners.items()
        if attribute == "num_batches_tracked" and getattr(one, "momentum", None) is not None
    }
    return non_persistent_names(module) | counts


def _check(
    path: str,
    report: ImportReport,
    tensors: Mapping[str, Tensor],
    variables: Mapping[str, Tensor],
    *,
    allow_unmatched: bool,
) -> None:
    shapes = [
        f"{one.target!r} ({list(tensors[one.target].shape)} from {one.source!r}, "
        f"{list(variables[one.target].shape)} in the module)"
        for one in report.matched
        if tensors[one.target].shape != variables[one.target].shape
    ]
    if shapes:
        raise CheckpointError(
            f"{path} does not fit the module: of another shape are {_listed(shapes)}; give a tuple of the name and a "
            "function that converts the tensor in mapping."
        )
    if not report.matched:
        raise CheckpointError(
            f"{path} has no variable of the module: it has {_listed(list(map(repr, report.only_in_checkpoint)))}, and "
            f"the module {_listed(list(map(repr, report.only_in_module)))}; give a mapping of their names."
        )
    differences = [
        f"only in the {where}: {_listed(list(map(repr, names)))}"
        for where, names in (("checkpoint", report.only_in_checkpoint), ("module", report.only_in_module))
        if names
    ]
    if differences and not allow_unmatched:
        raise CheckpointError(
            f"{path} does not fit the module: {'; '.join(differences)}; name them in mapping, or give "
            "allow_unmatched=True to leave them as they are."
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"
