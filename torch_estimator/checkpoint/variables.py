"""Parameters, buffers and optimizer state of a model, by their names in checkpoints.

A slot is a state tensor that an optimizer has for a parameter, such as its momentum.
The tensors are the model's own memory (detached), so writing to them changes the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from torch_estimator.checkpoint.format import storable
from torch_estimator.checkpoint.saved_tensors import saved_shape
from torch_estimator.checkpoint.sharded_tensors import copy_saved, is_sharded
from torch_estimator.errors import InvalidTypeError
from torch_estimator.feature_column.table import Table, tables_of
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.companions import AVERAGE, companions_of, is_of_companion


def named_variables(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module, detached, by their names in checkpoints.

    An embedding table appears as one variable per feature column, so that a checkpoint does not depend on which
    columns share a table, nor on their order. A tensor that several modules share appears once, under its first name.
    The parts of a name are joined by the module's ``variable_separator`` ("/" in premade models), by default ".", as in
    torch.
    """
    # Buffers that torch leaves out of a state dict are included, because training may change them too.
    return _named(module, {**module.state_dict(keep_vars=True), **_non_persistent(module)})


def non_persistent_names(module: nn.Module) -> set[str]:
    """Return the names in checkpoints of a module's buffers that were registered with ``persistent=False``.

    A module may create or resize such buffers while it runs. If a checkpoint has no buffer of that name and shape, the
    module keeps its current one.
    """
    return set(_named(module, _non_persistent(module)))


def named_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a module, without buffers, by their names in checkpoints (see `named_variables`)."""
    return _named(module, dict(module.named_parameters()))


def trained_variables(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return the parameters that the optimizers update, by their names in checkpoints (see `named_variables`)."""
    held = {one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}
    parameters = module.named_parameters()
    return _named(module, {name: one for name, one in parameters if one in held and one.requires_grad})


def _non_persistent(module: nn.Module) -> dict[str, Tensor]:
    kept = module.state_dict(keep_vars=True)
    buffers = dict(module.named_buffers())
    return {name: one for name, one in buffers.items() if name not in kept and storable(one) and not _is_expanded(one)}


def _is_expanded(tensor: Tensor) -> bool:
    """Return whether several elements of a tensor share one memory location. Torch cannot write to such tensors."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _named(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    separator = getattr(module, "variable_separator", ".")
    tables: dict[Tensor, Table] = {table.weight: table for table in tables_of(module)}
    variables: dict[str, Tensor] = {}
    known: set[int] = set()
    for key, tensor in tensors.items():
        # A parameter that several modules share is saved only once, under its first name.
        if id(tensor) in known:
            continue
        known.add(id(tensor))
        if not isinstance(tensor, Tensor):
            raise InvalidTypeError(
                f"The module keeps {key!r} as {type(tensor).__name__}, which a checkpoint cannot hold; use tensors."
            )
        if tensor in tables:
            variables.update(_pieces(tables[tensor], tensor.detach()))
        else:
            variables[key.replace(".", separator)] = tensor.detach()
    return variables


def named_slots(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return the state tensors of optimizers by names such as ``dnn/logits/bias/Adagrad``: variable, then state."""
    slots: dict[str, Tensor] = {}
    names = _parameter_names(module)
    for optimizer in optimizers:
        slot_names = optimizer.slot_names if isinstance(optimizer, Optimizer) else {}
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    suffix = slot_names.get(key, key)
                    for name, view in _named_views(names[parameter], parameter.shape, value):
                        slots[f"{name}/{suffix}"] = view
    return slots


def averaged_variables(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return the moving averages of parameters by the names of the parameters in checkpoints; none by default."""
    slots, suffix = named_slots(module, companions_of(optimizers)), f"/{AVERAGE}"
    return {name.removesuffix(suffix): one for name, one in slots.items() if name.endswith(suffix)}


def restore_slots(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], saved: Mapping[str, Tensor]) -> None:
    """Copy saved state tensors into the optimizers, by their names in checkpoints.

    Optimizers of `torch.optim` have no state before their first step, so their state is created here. State of
    companions that was not saved keeps its values, as the saved training had none: sums of gradients, for instance.
    """
    ours = [optimizer for optimizer in optimizers if isinstance(optimizer, Optimizer)]
    for name, view in named_slots(module, ours).items():
        if name in saved or not is_of_companion(name):
            copy_saved(view, saved, name)
    names = _parameter_names(module)
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            _load_state(optimizer, names, saved)


def variable_owners(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return, by name in checkpoints, the submodule that holds a parameter or a buffer, and its attribute's name.

    Embedding tables are left out, since one weight of theirs is several variables.
    """
    separator = getattr(module, "variable_separator", ".")
    return {
        ".".join(filter(None, [path, name])).replace(".", separator): (one, name)
        for path, one in module.named_modules()
        if not isinstance(one, Table)
        for name in [*one._parameters, *one._buffers]
    }


def slot_owners(module: nn.Module, parameter: nn.Parameter) -> list[tuple[str, Tensor]]:
    """Return the names in checkpoints that state of the shape of a parameter has, each with its part of the parameter.

    The weight of an embedding table has several names, one for each feature column.
    """
    name = _parameter_names(module)[parameter]
    return list(_named_views(name, parameter.shape, parameter.detach()))


def _load_state(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, _Name], saved: Mapping[str, Tensor]) -> None:
    layout = optimizer.state_dict()["param_groups"]
    state = {
        index: _saved_state(names[parameter], parameter, saved)
        for group, numbered in zip(optimizer.param_groups, layout, strict=True)
        for parameter, index in zip(group["params"], numbered["params"], strict=True)
    }
    # `load_state_dict` moves each tensor to the device on which this optimizer keeps its state.
    optimizer.load_state_dict({"state": {k: v for k, v in state.items() if v}, "param_groups": layout})


def _saved_state(name: _Name, parameter: nn.Parameter, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{_first_name(name)}/"
    keys = [key[len(prefix) :] for key in saved if key.startswith(prefix)]
    return {key: _whole(name, parameter, key, saved) for key in keys if "/" not in key and not is_of_companion(key)}


# The name of a parameter in checkpoints. The weight of an embedding table has several names, one for each feature
# column, so its `Table` is used instead.
_Name = str | Table


def _parameter_names(module: nn.Module) -> dict[Tensor, _Name]:
    separator = getattr(module, "variable_separator", ".")
    tables = {table.weight: table for table in tables_of(module)}
    return {
        parameter: tables.get(parameter, name.replace(".", separator)) for name, parameter in module.named_parameters()
    }


def _pieces(table: Table, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    for piece in table.pieces:
        yield piece.name, tensor[piece.offset : piece.offset + piece.rows]


def _named_views(name: _Name, shape: torch.Size, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    if isinstance(name, str):
        yield name, value
    elif value.shape == shape:
        yield from _pieces(name, value)
    else:
        yield _first_name(name), value


def _first_name(name: _Name) -> str:
    return name if isinstance(name, str) else name.pieces[0].name


def _whole(name: _Name, parameter: nn.Parameter, key: str, saved: Mapping[str, Tensor]) -> Tensor:
    """Return the saved state tensor `key` of a parameter. For an embedding table, join the tensors of its columns."""
    saved_name = f"{_first_name(name)}/{key}"
    if is_sharded(parameter) and saved_shape(saved, saved_name) == list(parameter.shape):
        own_rows = torch.zeros_like(parameter.detach())
        copy_saved(own_rows, saved, saved_name)
        return own_rows
    first = saved[saved_name]
    if isinstance(name, str) or first.shape != next(_pieces(name, parameter))[1].shape:
        return first.clone()
    whole = torch.zeros_like(parameter.detach())
    for piece_name, view in _pieces(name, whole):
        view.copy_(saved[f"{piece_name}/{key}"])
    return whole
