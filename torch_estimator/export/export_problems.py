"""Why torch could not express a function in ONNX: the operator or line, and the module it stands in."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

_UNTRANSLATED = re.compile(r"translating node %(\w+) .*?target=torch\.ops\.([\w.]+?)\]")


def describe_problem(error: BaseException, root: nn.Module, trace: Callable[[], Any]) -> str:
    """Returns what went wrong, without a full stop.

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
            return f"the operator {operator}{_in(place)} has no ONNX form"
    cause = chain[-1]
    frame = _innermost(cause, {id(module): path for path, module in root.named_modules() if path})
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    said = f"{type(cause).__name__}: {lines[0].rstrip('.')}" if lines else type(cause).__name__
    if frame is None:
        return said
    module, path, line = frame
    return f"`{line}`{_in((path, type(module).__name__))} fails with {said}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _in(place: tuple[str, str] | None) -> str:
    if place is None:
        return ""
    path = place[0].removeprefix("module").removeprefix(".")
    return f" in its module {path} ({place[1]})" if path else f" in its own forward ({place[1]})"


def _innermost(error: BaseException, paths: dict[int, str]) -> tuple[nn.Module, str, str] | None:
    """The deepest of the modules that were running, its path, and the line it was at."""
    found = None
    step = error.__traceback__
    while step is not None:
        module = step.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in paths and step.tb_frame.f_code.co_name != "_call_impl":
            line = linecache.getline(step.tb_frame.f_code.co_filename, step.tb_lineno).strip()
            if "_call_impl" not in line:
                found = (module, paths[id(module)], line)
        step = step.tb_next
    return found


def _traced(trace: Callable[[], Any], name: str, target: str) -> tuple[str, tuple[str, str] | None]:
    """The operator as the module calls it, and the module; decomposing may have given it another name."""
    base = target.split(".")[1] if "." in target else target
    try:
        nodes = [node for node in trace().graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    except Exception:
        # What is known of the operator without is worth saying.
        nodes = []
    named = [node for node in nodes if node.name == name] or [node for node in nodes if base in str(node.target)]
    if not named:
        return target.removesuffix(".default"), None
    stack = list(named[0].meta.get("nn_module_stack", {}).values())
    place = (stack[-1][0], str(stack[-1][1]).rpartition(".")[2]) if stack else None
    return str(named[0].target).removesuffix(".default"), place
