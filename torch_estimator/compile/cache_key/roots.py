"""From what a computation is given to its fingerprint."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

# Imported for the kinds of objects that they know, too.
from torch_estimator.compile.cache_key import classes, containers, functions, objects
from torch_estimator.compile.cache_key.torch_objects import global_hooks
from torch_estimator.compile.cache_key.walk import Fingerprint, Walk

_KINDS = (classes, containers, functions, objects)


def fingerprint(*roots: Any, leave_out: Collection[str] = ()) -> Fingerprint:
    """Returns the fingerprint of everything that can be reached from ``roots``.

    Objects count with their class and all that they hold, functions with their code, what they close over and the
    globals that they name; tensors as what they are, not with their numbers.

    Args:
        roots: Modules, optimizers, functions or anything else. The items of a dict are roots by name, which their
            paths begin with.
        leave_out: Keys of optimizers' groups whose numbers do not count, because the step is given them anew. Of a
            tuple under such a key only the first number does not. With ``"state"`` the state of optimizers does not,
            which a step that updates nothing never sees.
    """
    walk = Walk(frozenset(leave_out))
    for place, root in enumerate(roots):
        walk.write("root")
        if type(root) is dict:
            for name, value in root.items():
                walk.write(repr(name))
                walk.root(value, str(name))
        else:
            walk.root(root, _label(root, place))
    for hook in global_hooks():
        walk.root(hook, "a hook of all modules")
    return walk.finish()


def _label(root: Any, place: int) -> str:
    if isinstance(root, nn.Module):
        return "module"
    if isinstance(root, torch.optim.Optimizer):
        return "optimizer"
    return str(getattr(root, "__name__", f"root {place}"))
