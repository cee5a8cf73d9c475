"""Why torch could not express a function in ONNX: the operator or line, and the module it stands in."""

from __future__ import annotations

import contextlib
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

_DATA_DEPENDENT = "data-dependent"
_UNTRANSLATED = re.compile(r"translating node %(\w+) .*?target=torch\.ops\.([\w.]+?)\]")


def describe_problem(error: BaseException, root: nn.Module, trace: Callable[[], Any]) -> str:
    """Returns what went wrong and what to do, without a full stop.

    Args:
        error: What torch's exporter raised, with its causes.
        root: What was exported; modules are named by their path below it.
        trace: Exports `root` to a graph of torch's operators, which may fail.
    """
    chain = list(_causes(error))
    for one in chain:
        match = _UNTRANSLATED.search(str(one))
        if match is not None:
            operator, place = _traced(trace, *match.groups())
            return f"the operator {operator}{_in(place)} has no ONNX form; use other operators there"
    cause = chain[-1]
    frame = _innermost(cause, {id(module): path for path, module in root.named_modules() if path})
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    # torch often says in the first line that something fails, and in the second what.
    said = f"{type(cause).__name__}: {' '.join(lines[:2]).rstrip('.')}" if lines else type(cause).__name__
    if _DATA_DEPENDENT in said:
        said += "; write it with torch operations whose flow does not depend on the values"
    if frame is None:
        return said
    module, path, line = frame
    return f"`{line}`{_in((path, type(module).__name__))} fails with {said}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def in_module(scopes: Sequence[str]) -> str:
    """Says in which of the user's modules something is, given the paths of all that were running."""
    path = _below_root(scopes[-1]) if scopes else ""
    return f" in its module {path}" if path else ""


def _below_root(path: str) -> str:
    return path.removeprefix("module").removeprefix(".")


def _in(place: tuple[str, str] | None) -> str:
    if place is None:
        return ""
    path = _below_root(place[0])
    return f" in its module {path} ({place[1]})" if path else f" in its own forward ({place[1]})"


def _innermost(error: BaseException, paths: dict[int, str]) -> tuple[nn.Module, str, str] | None:
    """The deepest of the modules that were running, its path, and the line it was at."""
    found = None
    step = error.__traceback__
    while step is not None:
        module = step.tb_frame.f_locals.get("self")
        code = step.tb_frame.f_code
        if isinstance(module, nn.Module) and code.co_name in ("forward", "call"):
            # Layers of Keras are no parts of another module, but have names of their own.
            path = paths.get(id(module), getattr(module, "name", None))
            if isinstance(path, str):
                found = (module, path, linecache.getline(code.co_filename, step.tb_lineno).strip())
        step = step.tb_next
    return found


def _traced(trace: Callable[[], Any], name: str, target: str) -> tuple[str, tuple[str, str] | None]:
    """The operator as the module calls it, and the module; decomposing may have given it another name."""
    base = target.split(".")[1] if "." in target else target
    nodes: list[Any] = []
    # What is known of the operator without is worth saying, too.
    with contextlib.suppress(Exception):
        program = trace()
        nodes += program.graph.nodes
        nodes += program.run_decompositions().graph.nodes
    nodes = [node for node in nodes if isinstance(node.target, torch._ops.OpOverload)]
    named = [node for node in nodes if node.name == name] or [node for node in nodes if base in str(node.target)]
    if not named:
        return target.removesuffix(".default"), None
    stack = list(named[0].meta.get("nn_module_stack", {}).values())
    place = (stack[-1][0], str(stack[-1][1]).rpartition(".")[2]) if stack else None
    return str(named[0].target).removesuffix(".default"), place
