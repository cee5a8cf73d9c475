"""Compilation of a traced step to machine code: AOTInductor generates C++ code, which `generated_code` compiles.

This code runs in the process of a `Compilation` only. It changes settings of this process without restoring them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from torch_estimator.compile.batch_layout import layouts_as_json, tensor_layouts
from torch_estimator.compile.generated_code import GeneratedCode
from torch_estimator.compile.precompiled_headers import PrecompiledHeaders
from torch_estimator.compile.trace_checks import CannotBeCompiled, reason_of
from torch_estimator.compile.tracing import WRAPS

# Names of the files in the folder of a compiled step.
STEP_LIBRARY = "step.so"
DESCRIPTION = "step.json"
FORMAT = 2
"""Version of `DESCRIPTION`."""

# Inductor compiles these operators to atomic additions, so steps that contain them are compiled for one thread.
# With several threads, the order of the additions and thus the rounding would differ from run to run.
_ATOMIC_ADDITIONS = ("index_put", "index_add", "scatter_add", "scatter_reduce", "embedding_dense_backward")


def build(
    graph: GraphModule,
    inputs: Sequence[Tensor],
    folder: Path,
    *,
    work: Path,
    threads: int,
    headers: PrecompiledHeaders,
) -> None:
    """Compile a graph of `trace` into the library that `CompiledStep` loads, and describe its inputs in a file.

    Raise CannotBeCompiled if Inductor or the C++ compiler fails, or the path of `work`, for intermediate files, has
    spaces, with which Inductor does not work. `threads` is the number of threads that the step runs with.
    """
    if len(str(work).split()) != 1:
        raise CannotBeCompiled(f"{str(work)!r} has a space (set TMPDIR to another directory)")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(work)
    # If there is jinja2, Inductor makes templates of kernels when it is imported. No step uses these kernels.
    sys.modules["jinja2"] = None  # type: ignore[assignment]
    import torch._inductor as inductor
    from torch._inductor import config

    # Inductor compiles a test program for each instruction set of the processor, which takes 15 seconds in all. With
    # this setting, it relies on the processor's list. The rest of the tests is for extensions, for bfloat16, for
    # instance; without them Inductor leaves out compiler flags that -march=native stands for already.
    config.cpp.vec_isa_ok = True
    with contextlib.suppress(ImportError):
        from torch._inductor.cpu_vec_isa import VecISA

        VecISA.check_build = lambda *_: False  # type: ignore[method-assign]
    _expand_indices()
    _leave_permutations()
    _keep_order_of_changes()
    _fill_numbers(graph)
    has_atomic_additions = any(name in str(node.target) for node in graph.graph.nodes for name in _ATOMIC_ADDITIONS)
    options = {
        # With this setting, dropout draws the same random numbers as in Python.
        "fallback_random": True,
        # With this setting, what is multiplied by zero stays NaN or infinite if it was.
        "joint_graph_constant_folding": False,
        # With this setting, a number becomes bfloat16 or float16 wherever it does in Python.
        "emulate_precision_casts": True,
        "cpp.threads": 1 if has_atomic_additions else threads,
        "compile_threads": 1,
        # Place the buffers of a step in one piece of memory. Allocating each of them takes longer than most kernels.
        "memory_planning": True,
        # Generate C++ code, but do not compile it.
        "aot_inductor.package": True,
        "aot_inductor.package_cpp_only": True,
        "aot_inductor.precompile_headers": False,
    }
    # In C++ the overflow of a signed integer is undefined, and compilers use that to remove checks. With this flag,
    # integers wrap around, as torch's operators do.
    flags = ["-fwrapv"] if graph.meta.get(WRAPS) else []
    try:
        with config.patch("cpp_cache_precompile_headers", False):
            generated: Any = inductor.aot_compile(graph, tuple(inputs), options=options)
        code = GeneratedCode.among(generated)
        if operators := code.dispatched_operators():
            raise CannotBeCompiled(f"PyTorch has no compiled form of {', '.join(operators)}")
        code.compile(folder / STEP_LIBRARY, headers, flags)
    except CannotBeCompiled:
        raise
    except Exception as error:
        raise CannotBeCompiled(_reason(error)) from error
    description = {"format": FORMAT, "inputs": layouts_as_json(tensor_layouts(list(inputs)))}
    (folder / DESCRIPTION).write_text(json.dumps(description))


def _expand_indices() -> None:
    """Let Inductor expand the indices of a loop instead of simplifying them, which takes ten times as long.

    It does so to find out by how much an index grows from one turn to the next; if by one, numbers are read together.
    Both forms have the same value. If the expanded one does not show that it is one, the loop is only slower.
    """
    with contextlib.suppress(ImportError):
        import sympy  # type: ignore[import-untyped]
        from torch._inductor import sizevars

        # Other modules, which also generate code from what is simplified, keep the original.
        other = ModuleType(sympy.__name__)
        vars(other).update(vars(sympy), simplify=sympy.expand)
        sizevars.sympy = other  # type: ignore[attr-defined]


def _leave_permutations() -> None:
    """Switch off Inductor's faster form of ``x[torch.randperm(n)]``, which raises an error in PyTorch 2.13."""
    with contextlib.suppress(ImportError):
        from torch._inductor.fx_passes import misc_patterns

        misc_patterns._misc_patterns_init = lambda *_: None  # type: ignore[assignment]


def _keep_order_of_changes() -> None:
    """Let Inductor run a kernel that changes a buffer before the kernels that read the result.

    A buffer gets a new name when a kernel changes it, and Inductor orders kernels by these names. To merge two kernels,
    Inductor may give one of them other loops. Then it lists what this kernel reads again, by the old names (PyTorch
    2.13). So the sums of ``scatter_add`` could be read too early, as zeros. This function puts the new names into the
    list.
    """
    from torch._inductor.scheduler import SchedulerNode

    recompute = SchedulerNode.recompute_size_and_body

    def recompute_and_rename(node: SchedulerNode, *arguments: Any, **named: Any) -> None:
        recompute(node, *arguments, **named)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    SchedulerNode.recompute_size_and_body = recompute_and_rename  # type: ignore[method-assign, assignment]


def _fill_numbers(graph: GraphModule) -> None:
    """Replace ``torch.tensor(number)`` in a graph by ``torch.full``, so that Inductor sees its type.

    Inductor makes a constant of a tensor without dimensions, and its rules of operators do not take the type of such a
    constant into account (PyTorch 2.13). So ``x // torch.tensor(4)`` of integers would be rounded toward zero.
    """
    for node in graph.graph.nodes:
        value = getattr(graph, node.target) if node.op == "get_attr" else None
        if isinstance(value, Tensor) and value.dim() == 0 and not value.is_complex():
            for user in list(node.users):
                user.target, user.kwargs = torch.ops.aten.full.default, {"dtype": value.dtype, "device": value.device}
                user.args = ([], value.item())
    graph.recompile()


def _reason(error: Exception) -> str:
    """Return why compiling failed, in words that fit after "because"."""
    # Inductor puts its own error around most others.
    error = getattr(error, "inner_exception", error)
    text = str(error.stderr if isinstance(error, subprocess.CalledProcessError) else error)
    # A C++ compiler first says through which files it has come to the error.
    _, is_of_compiler, text_of_compiler = text.partition(" error: ")
    text = text_of_compiler if is_of_compiler else text
    if "DynamicOutputShape" in type(error).__name__ or "DynamicOutputShape" in text:
        return (
            "the shape of a tensor depends on numbers, as with a boolean mask in brackets; torch.where keeps the shape"
        )
    if isinstance(error, FileNotFoundError) or "InvalidCxxCompiler" in f"{type(error).__name__} {text}":
        named = os.environ.get("CXX")
        cure = f"CXX names {named!r}" if named else "install g++, or name another in CXX"
        return f"there is no C++ compiler ({cure})"
    if "aliased inputs" in text:
        return "two of its tensors share memory, as a parameter and a view of it do"
    return reason_of(error, text)
