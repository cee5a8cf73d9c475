"""Warm start: copy weights from another job's checkpoint into a model."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torch_estimator.checkpoint.checkpoint import Checkpoint
from torch_estimator.checkpoint.saved_tensors import SavedTensors, saved_shape
from torch_estimator.checkpoint.tensorflow import IMPORTED
from torch_estimator.checkpoint.tensorflow_modules import as_in_torch
from torch_estimator.checkpoint.variables import (
    named_parameters,
    named_variables,
    non_persistent_names,
    variable_owners,
)
from torch_estimator.errors import CheckpointError, InvalidValueError
from torch_estimator.feature_column.table import Table, tables_of
from torch_estimator.warm_start import VocabInfo, WarmStartSettings

logger = logging.getLogger("torch_estimator")

_MOST_NAMES = 5


def warm_start(module: nn.Module, checkpoint: Checkpoint, settings: WarmStartSettings) -> list[str]:
    """Copy weights of ``checkpoint`` into ``module`` and return the names of the variables that were set.

    Everything is checked first, so an error leaves the module unchanged.
    """
    variables = _chosen(module, settings)
    renamed = settings.var_name_to_prev_var_name
    _check_present(variables, renamed, checkpoint)
    on_servers = _tables_on_servers(module)
    _check_shapes(
        {name: one for name, one in variables.items() if name in on_servers},
        {name: saved_shape(checkpoint.variables, renamed.get(name, name)) for name in variables if name in on_servers},
        checkpoint,
    )
    weights = {}
    owners = variable_owners(module) if IMPORTED in checkpoint.state else {}
    for name, variable in variables.items():
        if name in on_servers:
            if name in settings.var_name_to_vocab_info or not isinstance(checkpoint.variables, SavedTensors):
                raise InvalidValueError(
                    f"warm_start_from cannot take over {name!r} by words, or from TensorFlow, because parameter "
                    "servers read this large table themselves; warm-start it in one process first, and from that here."
                )
            continue
        previous = as_in_torch(checkpoint.variables[renamed.get(name, name)], owners.get(name))
        info = settings.var_name_to_vocab_info.get(name)
        weights[name] = previous if info is None else _remap_rows(name, variable, previous, info)
    _check_shapes(
        {name: variables[name] for name in weights}, {name: one.shape for name, one in weights.items()}, checkpoint
    )
    with torch.no_grad():
        for name, weight in weights.items():
            variables[name].copy_(weight)
    for name in variables.keys() & on_servers.keys():
        assert isinstance(checkpoint.variables, SavedTensors)
        on_servers[name].read_from[name] = checkpoint.variables.files_of(renamed.get(name, name))
    return list(variables)


def _tables_on_servers(module: nn.Module) -> dict[str, Table]:
    """Return the tables that are on parameter servers, by the names of their variables."""
    tables = [one for one in tables_of(module) if one.weight.is_meta]
    return {piece.name: table for table in tables for piece in table.pieces}


def _chosen(module: nn.Module, settings: WarmStartSettings) -> dict[str, Tensor]:
    variables = named_variables(module)
    explicit = {**settings.var_name_to_vocab_info, **settings.var_name_to_prev_var_name}
    for name in explicit:
        if name not in variables:
            raise InvalidValueError(
                f"warm_start_from names the variable {name!r}, which the model does not have; it has "
                f"{_closest(name, list(variables))}."
            )
    candidates = named_parameters(module) if isinstance(settings.vars_to_warm_start, str) else variables
    stored = variables.keys() - non_persistent_names(module)
    matching = {one: {name for name in stored if re.match(one, name)} for one in settings.expressions}
    matched = set().union(*matching.values())
    chosen = {name: one for name, one in variables.items() if name in matched & candidates.keys() or name in explicit}
    wrong = [one for one, names in matching.items() if not names & candidates.keys()]
    if wrong or not chosen:
        raise InvalidValueError(
            f"vars_to_warm_start {wrong[0] if wrong else None!r} matches none of the model's variables, which are "
            f"{_closest(str(settings.vars_to_warm_start), list(candidates))}."
        )
    if skipped := [repr(name) for name in variables if name in matched - chosen.keys()]:
        logger.warning(
            "The warm start does not set %s; a list in vars_to_warm_start takes over buffers, too.", _listed(skipped)
        )
    return chosen


def _check_present(variables: Mapping[str, Tensor], renamed: Mapping[str, str], checkpoint: Checkpoint) -> None:
    missing = [
        repr(name) if name not in renamed else f"{name!r} (as {renamed[name]!r})"
        for name in variables
        if renamed.get(name, name) not in checkpoint.variables
    ]
    if missing:
        plural = "" if len(missing) == 1 else "s"
        raise CheckpointError(
            f"checkpoint {checkpoint.path} cannot warm-start the model: {len(missing)} variable{plural} only in the "
            f"model: {_listed(missing)}; say with vars_to_warm_start of WarmStartSettings which to take "
            "over, or with var_name_to_prev_var_name what they are called there."
        )


def _check_shapes(variables: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], checkpoint: Checkpoint) -> None:
    differing = [
        f"{name!r} ({list(shapes[name])} in the checkpoint, {list(variable.shape)} in the model)"
        for name, variable in variables.items()
        if list(shapes[name]) != list(variable.shape)
    ]
    if differing:
        plural = "" if len(differing) == 1 else "s"
        raise CheckpointError(
            f"checkpoint {checkpoint.path} cannot warm-start the model: {len(differing)} variable{plural} of another "
            f"shape: {_listed(differing)}; give a VocabInfo where a vocabulary changed, or leave them out with "
            "vars_to_warm_start of WarmStartSettings."
        )


def _remap_rows(name: str, initial: Tensor, previous: Tensor, info: VocabInfo) -> Tensor:
    """Return a copy of ``initial`` in which each word of the old vocabulary has its row from ``previous``.

    "Rows" are slices along ``info.axis``. If a word occurs several times in the old vocabulary, its first row counts.
    """
    new_words, old_words = info.new_words(), info.old_words()
    _check_sizes(name, initial, previous, info, len(new_words), len(old_words))
    weights = initial.clone()
    if info.backup_initializer is not None:
        with torch.no_grad():
            info.backup_initializer(weights)
    old_rows = {word: row for row, word in reversed(list(enumerate(old_words)))}
    oov = info.num_oov_buckets
    pairs = [(row, old_rows[word]) for row, word in enumerate(new_words) if word in old_rows]
    pairs += [(len(new_words) + bucket, previous.shape[info.axis] - oov + bucket) for bucket in range(oov)]
    if pairs:
        target, source = torch.tensor(pairs).unbind(1)
        rows = previous.index_select(info.axis, source).to(weights)
        weights.index_copy_(info.axis, target.to(weights.device), rows)
    return weights


def _check_sizes(name: str, initial: Tensor, previous: Tensor, info: VocabInfo, new: int, old: int) -> None:
    other = 1 - info.axis
    fits = initial.dim() == previous.dim() > info.axis
    if not fits or (initial.dim() == 2 and initial.shape[other] != previous.shape[other]):
        raise CheckpointError(
            f"{name!r} has shape {list(initial.shape)} in the model and {list(previous.shape)} in the checkpoint, but "
            f"a VocabInfo with axis={info.axis} lets only that axis differ."
        )
    oov = info.num_oov_buckets
    if initial.shape[info.axis] != new + oov:
        raise InvalidValueError(
            f"{name!r} has {initial.shape[info.axis]} entries along axis {info.axis} in the model, but its VocabInfo "
            f"says {new} words of new_vocab and num_oov_buckets={oov}."
        )
    if previous.shape[info.axis] < old + oov:
        raise InvalidValueError(
            f"{name!r} has {previous.shape[info.axis]} entries along axis {info.axis} in the checkpoint, but its "
            f"VocabInfo says {old} words of old_vocab and num_oov_buckets={oov}."
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def _closest(wanted: str, names: list[str]) -> str:
    close = difflib.get_close_matches(wanted, names, _MOST_NAMES)
    return _listed([repr(name) for name in dict.fromkeys([*close, *names])])
