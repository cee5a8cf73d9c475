"""Compilation of the C++ code that Inductor generates for a step.

Inductor can compile this code itself. It is compiled here because that takes half of the time:

- Most of the file that calls the kernels is the same for every step: classes for constants, devices and pools of
  models, and checks of the inputs' layouts that are off. Here ``step_model.h`` stands in place of all that.
- The kernels are compiled at the same time as the code that calls them, and not after it.
- Nothing is compiled for debuggers: no line tables, no frame pointers.

If the generated code has constants or loops, or does not look as expected, for instance in a later version of PyTorch,
it is compiled as it is, which only takes longer.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_STEP_MODEL = Path(__file__).with_name("step_model.h")
_MAX_SECS = 600

# Texts in the generated code. The code consists of PyTorch's C interface, declarations (of kernels, for instance),
# functions of the class `AOTInductorModel`, the last of which takes the step, and the kernels.
_END_OF_INTERFACE = '\n} // extern "C"\n'
_CONSTRUCTOR = "AOTInductorModel::AOTInductorModel("
_RUN = "void AOTInductorModel::run_impl("
_END_OF_RUN = "} // AOTInductorModel::run_impl\n"
# What ``step_model.h`` cannot do: constants; and, because it keeps one tensor for each place in the code from step to
# step, loops and variable sizes.
_UNSUPPORTED = re.compile(r"\b(constants_|while|for|do|goto|[su]\d+)\b")
_DISPATCHED = "aoti_torch_proxy_executor_"
_COMMENT = re.compile("//.*")
_KERNELS = re.compile(r"^#include [<\"]\S*cpp_prefix\S*\.h[>\"]$", re.MULTILINE)

_OWN_CONSTRUCTOR = "AOTInductorModel::AOTInductorModel() : kernels_(new AOTInductorModelKernels()) {}\n"
# The declarations end inside of the namespace that the functions are in.
_END_OF_NAMESPACE = "} // namespace torch::aot_inductor\n"


class GeneratedCode(NamedTuple):
    """Files that Inductor generates for a step if asked to write C++ code only.

    Attributes:
        source: The C++ code.
        compiler_flags: What to call the compiler with, as JSON.
        linker_flags: What to call the linker with, as JSON.
        objects: Object files, such as that of the constants.
    """

    source: Path
    compiler_flags: Path
    linker_flags: Path
    objects: list[Path]

    @classmethod
    def among(cls, paths: Sequence[object]) -> GeneratedCode:
        """Return the generated code from the list of files that `torch._inductor.aot_compile` returns."""
        files = [Path(path) for path in paths if isinstance(path, str)]

        def only(ending: str) -> Path:
            (found,) = (file for file in files if file.name.endswith(ending))
            return found

        objects = [file for file in files if file.suffix == ".o"]
        return cls(only(".cpp"), only("_compile_flags.json"), only("_linker_flags.json"), objects)

    def dispatched_operators(self) -> list[str]:
        """Return the operators that the code calls through PyTorch's dispatcher. ``run_steps.c`` cannot call these."""
        if _DISPATCHED not in self.source.read_text():
            return []
        described = self.source.with_suffix(".json")
        nodes = json.loads(described.read_text())["nodes"] if described.is_file() else [{}]
        return sorted({str(node.get("node", {}).get("target", "an operator")) for node in nodes})

    def compile(self, library: Path, flags: Sequence[str] = ()) -> None:
        """Compile the code into a shared library.

        Args:
            library: Path of the library to make.
            flags: Additional flags of the C++ compiler.

        Raises:
            subprocess.CalledProcessError: The compiler or the linker has failed.
        """
        calls, kernels = split(self.source.read_text())
        shortened = shorten(calls)
        command = [*_command(self.compiler_flags), *flags, "-w", "-g0", "-fomit-frame-pointer"]
        # The code that calls the kernels is as fast with -O1, and compiles sooner.
        quick, calls_file = [*command, "-O1"], self.source.with_suffix(".calls.cpp")
        of_kernels = [_Compiler(command, self.source.with_suffix(".kernels.cpp"), kernels)] if kernels else []
        of_calls = _Compiler(quick, calls_file, shortened or calls)
        try:
            if shortened is not None and not of_calls.has_succeeded():
                of_calls = _Compiler(quick, calls_file, calls)
            objects = [compiler.wait() for compiler in (of_calls, *of_kernels)]
        finally:
            for compiler in (of_calls, *of_kernels):
                compiler.stop()
        link = [*_command(self.linker_flags, inputs=[*objects, *self.objects]), "-o", str(library)]
        subprocess.run(link, check=True, capture_output=True, text=True, timeout=_MAX_SECS)


def split(code: str) -> tuple[str, str]:
    """Return the code that calls the kernels, and the kernels. The latter are empty if there are none."""
    end = code.rfind(_END_OF_RUN)
    kernels = _KERNELS.search(code, end) if end >= 0 else None
    return (code, "") if kernels is None else (code[: kernels.start()], code[kernels.start() :])


def shorten(calls: str) -> str | None:
    """Return the code that calls the kernels with ``step_model.h`` in place of PyTorch's classes.

    Returns:
        None if the code has constants, loops or variable sizes, or does not look as expected.
    """
    _, _, own = calls.partition(_END_OF_INTERFACE)
    declarations, constructor, functions = own.partition(_CONSTRUCTOR)
    _, start, rest = functions.rpartition(_RUN)
    body, end, _ = rest.partition(_END_OF_RUN)
    if not (constructor and start and end) or _UNSUPPORTED.search(_COMMENT.sub("", body)):
        return None
    return f'#include "{_STEP_MODEL}"\n{declarations}{_OWN_CONSTRUCTOR}{start}{body}{end}{_END_OF_NAMESPACE}'


class _Compiler:
    """C++ compiler that runs in a process of its own. The constructor starts it.

    Args:
        command: The compiler and its flags.
        source: Where to write the code.
        code: The code to compile.
    """

    def __init__(self, command: Sequence[str], source: Path, code: str) -> None:
        source.write_text(code)
        self._object = source.with_suffix(".o")
        self._log = source.with_suffix(".log")
        self._command = [*command, "-c", str(source), "-o", str(self._object)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)

    def has_succeeded(self) -> bool:
        """Wait for the compiler to end, and return whether it has made an object file."""
        return self._process.wait(_MAX_SECS) == 0

    def wait(self) -> Path:
        """Wait for the compiler to end, and return the object file; raise `subprocess.CalledProcessError` otherwise."""
        if not self.has_succeeded():
            message = self._log.read_text(errors="replace")
            raise subprocess.CalledProcessError(self._process.returncode, self._command, stderr=message)
        return self._object

    def stop(self) -> None:
        """Kill the compiler if it still runs."""
        self._process.kill()
        self._process.wait()


def _command(flags: Path, *, inputs: Sequence[Path] = ()) -> list[str]:
    """Return a command line of the compiler or the linker, from a file of flags that Inductor has written.

    Args:
        flags: The file.
        inputs: Files to link, which have to come before the libraries.
    """
    given: dict[str, Any] = json.loads(flags.read_text())
    arguments = [given["compiler"], *map(str, inputs)]
    for name, prefix in (
        ("definitions", "-D"),
        ("cflags", "-"),
        ("include_dirs", "-I"),
        ("passthrough_args", ""),
        ("ldflags", "-"),
        ("libraries", "-l"),
        ("libraries_dirs", "-L"),
    ):
        for value in given[name]:
            # A directory is one argument, even with spaces. Other values may have several words.
            words = [value] if name.endswith("_dirs") else shlex.split(value)
            if words:
                arguments += [f"{prefix}{words[0]}", *words[1:]]
    return arguments
