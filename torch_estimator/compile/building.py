"""From a traced step to machine code; only ever run in a process of its own, see `Compilation`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torch.fx import GraphModule

from torch_estimator import files
from torch_estimator.compile.leaves import as_json, layouts
from torch_estimator.compile.tracing import WRAPS, CannotBeCompiled

STEP_LIBRARY = "step.so"
LOOP_LIBRARY = "run_steps.so"
DESCRIPTION = "step.json"
FORMAT = 1

_LOOP_SOURCE = Path(__file__).with_name("run_steps.c")
# These add up in whatever order several threads come by.
_ADDS_UP = ("index_put", "index_add", "scatter_add", "scatter_reduce", "embedding_dense_backward")


def build(
    graph: GraphModule, inputs: Sequence[Tensor], folder: Path, *, work: Path, machine: Path | None, threads: int
) -> None:
    """Compiles a graph into the libraries that `StepProgram` loads, and describes its inputs.

    Args:
        graph: From `trace`.
        inputs: That it was traced with.
        folder: Where to leave the libraries.
        work: Where to put what is in between; inductor takes no path with spaces.
        machine: The file that keeps what the compiler can do on this machine, read and written; None to find out anew.
        threads: For how many.

    Raises:
        CannotBeCompiled: Inductor or the C++ compiler failed.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(work)
    import torch._inductor as inductor
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler

    # What the processor says of itself is enough for the instruction sets that every compiler knows, which would take
    # 15 seconds to try. The others are tried once a machine.
    config.cpp.vec_isa_ok = True
    with contextlib.suppress(Exception):
        _find_instruction_sets(machine)
    adds_up = any(name in str(node.target) for node in graph.graph.nodes for name in _ADDS_UP)
    options = {
        # Dropout draws what it draws eagerly.
        "fallback_random": True,
        "cpp.threads": 1 if adds_up else threads,
        "compile_threads": 1,
        "aot_inductor.precompile_headers": False,
    }
    try:
        compiler = get_cpp_compiler()
        with config.patch("cpp_cache_precompile_headers", False), _wrapping(bool(graph.meta.get(WRAPS))):
            library = Path(str(inductor.aot_compile(graph, tuple(inputs), options=options)))
        _build_loop(compiler, folder / LOOP_LIBRARY)
    except Exception as error:
        raise CannotBeCompiled(_reason(error)) from error
    if foreign := _foreign_operators(library):
        raise CannotBeCompiled(f"PyTorch has no compiled form of {', '.join(foreign)}")
    shutil.move(library, folder / STEP_LIBRARY)
    description = {"format": FORMAT, "inputs": as_json(layouts(list(inputs)))}
    (folder / DESCRIPTION).write_text(json.dumps(description))


def _find_instruction_sets(machine: Path | None) -> None:
    """Have inductor find the instruction sets of this machine, by what a file keeps of earlier trials.

    Inductor would keep the libraries that it tries with and load them again. The answers are enough, and need no
    check before they are used.
    """
    from torch._inductor.cpu_vec_isa import VecISA, valid_vec_isa_list

    known = _known(machine)
    tried = dict(known)
    check_build = VecISA.check_build

    def remembered(isa: VecISA, code: str) -> bool:
        name = hashlib.sha256(f"{isa.build_arch_flags()}\n{code}".encode()).hexdigest()
        if name not in tried:
            tried[name] = check_build(isa, code)
        return tried[name]

    with mock.patch.object(VecISA, "check_build", remembered):
        valid_vec_isa_list()
    if machine is not None and tried != known:
        files.write_atomic(machine, json.dumps(tried).encode())


def _known(machine: Path | None) -> dict[str, bool]:
    if machine is None:
        return {}
    with contextlib.suppress(OSError, ValueError, RecursionError):
        known = json.loads(machine.read_text())
        if isinstance(known, dict) and all(isinstance(one, bool) for one in known.values()):
            return known
    return {}


@contextlib.contextmanager
def _wrapping(wraps: bool) -> Iterator[None]:
    """Has integers go on from the smallest where they pass the largest, as in Python's operators of torch."""
    from torch._inductor import cpp_builder

    flags = cpp_builder._get_ffast_math_flags
    if not wraps:
        yield
        return
    with mock.patch.object(cpp_builder, "_get_ffast_math_flags", lambda: [*flags(), "fwrapv"]):
        yield


def _build_loop(compiler: str, target: Path) -> None:
    libraries = Path(torch.__file__).parent / "lib"
    command = [compiler, "-x", "c", "-O2", "-fPIC", "-shared", str(_LOOP_SOURCE), "-o", str(target)]
    command += [f"-L{libraries}", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


def _foreign_operators(library: Path) -> list[str]:
    """Operators that a library would call through Python's dispatcher, which the loop in C does not have."""
    described = library.with_name(library.name.removesuffix(".so") + ".json")
    if not described.is_file():
        return []
    nodes = json.loads(described.read_text()).get("nodes", [])
    return sorted({str(node.get("node", {}).get("target", "an operator")) for node in nodes})


def _reason(error: Exception) -> str:
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
