"""Sharding of a model: find the modules whose parameters are gathered together; reject what cannot be sharded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.table import Table

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group
    from torch_estimator.train.model import Model

_NAME = "FullyShardedStrategy"


def shard(model: Model, group: Group, kinds: Sequence[type] | None, *, from_chief: bool) -> None:
    """Shard a model, which is in host memory, in place: replace each parameter by the rows that this process holds.

    `kinds` are the types of modules that are gathered one at a time; see ``units`` of `FullyShardedStrategy`. If there
    is no checkpoint, `from_chief` copies the chief's values to all processes first.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _check_parts(model.module)
    units = _units(model.module, kinds)
    _check_shared(model.module, units)
    if from_chief:
        group.broadcast(model.variables().values())
    mesh = init_device_mesh(model.device.type, (group.size,))
    # Shard inner modules before outer modules, as torch requires. Reshard also the outermost module after its forward
    # pass: by default torch keeps its parameters whole, but code between two steps expects sharded parameters.
    for unit in [*reversed(units), model.module]:
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)


def check_optimizers(model: Model, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise an error if an optimizer was made before the module was sharded, since it holds unsharded parameters."""
    known = set(model.module.parameters())
    for optimizer in optimizers:
        if any(one not in known for group in optimizer.param_groups for one in group["params"]):
            raise InvalidTypeError(
                f"With {_NAME} the optimizer is made on parameters that are spread already, but "
                f"{type(optimizer).__name__} was made before; give optimizer a name or a function of named parameters."
            )


def _units(module: nn.Module, kinds: Sequence[type] | None) -> list[nn.Module]:
    """Return the units: the modules whose parameters are gathered together, one module at a time."""
    if kinds is None:
        return [unit for unit in dict.fromkeys(_blocks(module)) if any(True for _ in unit.parameters())]
    units = [one for one in module.modules() if one is not module and isinstance(one, tuple(kinds))]
    for kind in kinds:
        if not any(isinstance(one, kind) for one in module.modules()):
            raise InvalidValueError(
                f"units of {_NAME} names {kind.__name__}, but {type(module).__name__} has no module of that type."
            )
    for unit in units:
        if type(unit).forward is nn.Module.forward:
            raise InvalidTypeError(
                f"units of {_NAME} names {type(unit).__name__}, which is never called; name the type of its members."
            )
    return units


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of each `nn.ModuleList` and `nn.Sequential`, except members inside another yielded module."""
    for child in module.children():
        if isinstance(module, nn.ModuleList | nn.Sequential) and not isinstance(child, nn.ModuleList | nn.Sequential):
            yield child
        else:
            yield from _blocks(child)


def _check_parts(module: nn.Module) -> None:
    """Raise an error for parts that cannot be sharded: feature tables, sparse gradients, scalars, integers."""
    for path, part in module.named_modules():
        if isinstance(part, Table):
            raise InvalidTypeError(
                f"{_NAME} does not spread the tables of feature columns, such as {part.pieces[0].name!r}; use "
                "MultiWorkerMirroredStrategy, or a cluster with parameter servers, which hold them by rows."
            )
        if getattr(part, "sparse", False) and isinstance(part, nn.Embedding | nn.EmbeddingBag):
            raise InvalidTypeError(f"{_NAME} cannot add up sparse gradients; make {path!r} with sparse=False.")
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise InvalidValueError(
                f"{_NAME} divides parameters into new ones, but {name!r} has a hook for its gradient, which would be "
                "lost; remove the hook, or use MultiWorkerMirroredStrategy."
            )
        if not parameter.dim():
            raise InvalidValueError(f"{_NAME} cannot divide {name!r}, which is one number; give it the shape [1].")
        if not parameter.is_floating_point():
            raise InvalidTypeError(
                f"{_NAME} spreads floating-point parameters, but {name!r} is {parameter.dtype}; make it a buffer."
            )


def _check_shared(module: nn.Module, units: Sequence[nn.Module]) -> None:
    """Raise an error if two units share a parameter: each unit would shard it, and make two parameters of one."""
    paths = {one: path for path, one in module.named_modules()}
    owners: dict[nn.Parameter, nn.Module] = {}
    for unit in [module, *units]:
        within = set(unit.modules())
        inner = {part for other in units if other is not unit and other in within for part in other.modules()}
        for parameter in (one for part in within - inner for one in part.parameters(recurse=False)):
            owner = owners.setdefault(parameter, unit)
            if owner is not unit:
                raise InvalidValueError(
                    f"{paths[owner] or 'the rest'!r} and {paths[unit] or 'the rest'!r} of {type(module).__name__} "
                    f"share a parameter, but {_NAME} gathers each by itself; choose units of which one holds both."
                )
