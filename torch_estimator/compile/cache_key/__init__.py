"""Cache key of a computation: a hash of everything in Python that the computation depends on.

A compiled step may be used in place of the step in Python only if Python would do the same again. So the key is
computed before anything is traced, from the objects themselves, and it covers:

- modules, optimizers, losses and heads, with all attributes, hooks and settings, and the classes and their code;
- functions, with their bytecode, defaults, closures, and the globals that the code names;
- tensors as shapes, strides, dtypes and shared memory, but not their numbers: those are inputs of the compiled step;
- code of installed packages by the version or the sources of the package, and by the settings that the code reads.

It does not cover line numbers, file names, comments, or attributes that a class names in ``not_in_fingerprint``.
Some objects, such as open files, differ from other objects of their type only by their identity. They make the key
meaningless in other processes (`CacheKey.portable`), but the key still shows changes within this process.

`environment_digest` covers the rest: the machine, the compiler, versions, flags of torch, and the user's source files.

The files, from the outside in: `walk` visits all objects and collects the text that is hashed; `python_objects`,
`functions` and `torch_objects` write the objects of each type; `code` reads bytecode; `libraries` separates installed
packages from the user's own code; `environment` has the rest of the key.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

# Import these two modules for a side effect only: they register the functions that write objects of each type.
from torch_estimator.compile.cache_key import functions, python_objects
from torch_estimator.compile.cache_key.environment import environment_digest, machine, torch_flags
from torch_estimator.compile.cache_key.torch_objects import global_hooks
from torch_estimator.compile.cache_key.walk import CacheKey, Walk

__all__ = ["CacheKey", "cache_key", "environment_digest", "machine", "torch_flags"]

_REGISTERED = (functions, python_objects)


def cache_key(*roots: Any, leave_out: Collection[str] = ()) -> CacheKey:
    """Return the cache key of some objects and of all objects that can be reached from them.

    Args:
        roots: Modules, optimizers, functions or any other objects. The items of a dict are roots with names, with which
            the paths of their tensors begin.
        leave_out: Settings in the groups of optimizers whose numbers do not count, because the compiled step reads them
            anew in every step. If such a setting is a tuple, only its first number is left out. With ``"state"`` the
            state of optimizers is left out, for computations that never read it.

    >>> cache_key({"scale": 1.0}) == cache_key({"scale": 1.0})
    True
    >>> cache_key({"scale": 1.0}) == cache_key({"scale": 2.0})
    False
    """
    walk = Walk(frozenset(leave_out))
    for place, root in enumerate(roots):
        walk.write("root")
        if type(root) is dict:
            for name, value in root.items():
                walk.write(repr(name))
                walk.visit_root(value, str(name))
        else:
            walk.visit_root(root, _root_name(root, place))
    for hook in global_hooks():
        walk.visit_root(hook, "a hook of all modules")
    return walk.finish()


def _root_name(root: Any, place: int) -> str:
    if isinstance(root, nn.Module):
        return "module"
    if isinstance(root, torch.optim.Optimizer):
        return "optimizer"
    return str(getattr(root, "__name__", f"root {place}"))
