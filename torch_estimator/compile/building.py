"""Compilation of a traced step to machine code: AOTInductor generates C++ code, which `generated_code` compiles.

This code runs in the process of a `Compilation` only. It changes settings of this process without restoring them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from torch_estimator import files
from torch_estimator.compile.batch_layout import layouts_as_json, tensor_layouts
from torch_estimator.compile.generated_code import GeneratedCode
from torch_estimator.compile.trace_checks import CannotBeCompiled, replaced
from torch_estimator.compile.tracing import WRAPS

# Names of the files in the folder of a compiled step.
STEP_LIBRARY = "step.so"
LOOP_LIBRARY = "run_steps.so"
DESCRIPTION = "step.json"
FORMAT = 1
"""Version of `DESCRIPTION`."""

_LOOP_SOURCE = Path(__file__).with_name("run_steps.c")

# Inductor compiles these operators to atomic additions, so steps that contain them are compiled for one thread.
# With several threads, the order of the additions and thus the rounding would differ from run to run.
_ATOMIC_ADDITIONS = ("index_put", "index_add", "scatter_add", "scatter_reduce", "embedding_dense_backward")


def build(
    graph: GraphModule,
    inputs: Sequence[Tensor],
    folder: Path,
    *,
    work: Path,
    machine_file: Path | None,
    threads: int,
) -> None:
    """Compile a graph into the libraries that `CompiledStep` loads, and write a file that describes the inputs.

    Args:
        graph: A graph of `trace`.
        inputs: The tensors that it was traced with.
        folder: Where to put the libraries.
        work: Directory for intermediate files. Inductor does not work in a path with spaces, which ``folder`` may have.
        machine_file: File that keeps what the compiler can do on this machine; None finds it out anew.
        threads: Number of threads that the step runs with.

    Raises:
        CannotBeCompiled: Inductor or the C++ compiler has failed.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(work)
    import torch._inductor as inductor
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler

    # Inductor compiles a test program for each instruction set of the processor, which takes 15 seconds in all.
    # With this setting, Inductor skips most of these programs.
    # The function below keeps the results of the remaining programs in a file.
    config.cpp.vec_isa_ok = True
    with contextlib.suppress(Exception):
        _find_instruction_sets(machine_file)
    has_atomic_additions = any(name in str(node.target) for node in graph.graph.nodes for name in _ATOMIC_ADDITIONS)
    options = {
        # With this setting, dropout draws the same random numbers as in Python.
        "fallback_random": True,
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
        compiler = get_cpp_compiler()
        with config.patch("cpp_cache_precompile_headers", False):
            generated: Any = inductor.aot_compile(graph, tuple(inputs), options=options)
        code = GeneratedCode.among(generated)
        if operators := code.dispatched_operators():
            raise CannotBeCompiled(f"PyTorch has no compiled form of {', '.join(operators)}")
        code.compile(folder / STEP_LIBRARY, flags)
        _build_loop(compiler, folder / LOOP_LIBRARY)
    except CannotBeCompiled:
        raise
    except Exception as error:
        raise CannotBeCompiled(_reason(error)) from error
    description = {"format": FORMAT, "inputs": layouts_as_json(tensor_layouts(list(inputs)))}
    (folder / DESCRIPTION).write_text(json.dumps(description))


def _find_instruction_sets(machine_file: Path | None) -> None:
    """Make Inductor test which instruction sets it can use, except those with results of earlier runs in a file.

    Inductor also has a cache, but its cache keeps the compiled test programs and loads them again, so they would have
    to be protected as compiled steps are. The file only contains whether each test succeeded.
    """
    from torch._inductor.cpu_vec_isa import VecISA, valid_vec_isa_list

    known = _read_answers(machine_file)
    answers = dict(known)
    check_build = VecISA.check_build

    def remembered(isa: VecISA, code: str) -> bool:
        name = hashlib.sha256(f"{isa.build_arch_flags()}\n{code}".encode()).hexdigest()
        if name not in answers:
            answers[name] = check_build(isa, code)
        return answers[name]

    with replaced(VecISA, "check_build", remembered):
        valid_vec_isa_list()
    if machine_file is not None and answers != known:
        files.write_atomic(machine_file, json.dumps(answers).encode())


def _read_answers(machine_file: Path | None) -> dict[str, bool]:
    """Return the results of Inductor's test programs in a file; an empty dict if the file is absent or damaged."""
    if machine_file is None:
        return {}
    with contextlib.suppress(OSError, ValueError, RecursionError):
        answers = json.loads(machine_file.read_text())
        if isinstance(answers, dict) and all(isinstance(one, bool) for one in answers.values()):
            return answers
    return {}


def _build_loop(compiler: str, target: Path) -> None:
    """Compile ``run_steps.c``, the loop in C that calls the step many times without Python in between."""
    libraries = Path(torch.__file__).parent / "lib"
    command = [compiler, "-x", "c", "-O2", "-fPIC", "-shared", str(_LOOP_SOURCE), "-o", str(target)]
    command += [f"-L{libraries}", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


def _reason(error: Exception) -> str:
    """Return why compiling failed, in words that fit after "because"."""
    if isinstance(error, subprocess.CalledProcessError):
        text = str(error.stderr)
    elif isinstance(error, FileNotFoundError):
        return f"there is no C++ compiler ({error})"
    else:
        text = str(error)
    if "DynamicOutputShape" in type(error).__name__ or "DynamicOutputShape" in text:
        return (
            "the shape of a tensor depends on numbers, as with a boolean mask in brackets; torch.where keeps the shape"
        )
    if "InvalidCxxCompiler" in f"{type(error).__name__} {text}":
        return "there is no C++ compiler (install g++, or name another in CXX)"
    if "aliased inputs" in text:
        return "two of its tensors share memory, as a parameter and a view of it do"
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}"
