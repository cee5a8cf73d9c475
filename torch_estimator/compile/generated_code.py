"""Compilation of the C++ code that Inductor generates for a step.

Inductor can compile this code itself. It is compiled here because that takes a fifth of the time:

- Most of the code that calls the kernels is the same for every step: classes for constants, devices and pools of
  models, and checks of the inputs' layouts that are off. Here ``step_model.h`` stands in place of all that.
- The headers, which take half of the time that is left, are shorter in C++17 than in C++20. From the second step of a
  machine on they are precompiled (`PrecompiledHeaders`).
- Nothing is compiled for debuggers: no line tables, no frame pointers. A step is as fast with -O2 as with -O3.
- One call of the compiler makes the whole library, together with the loop of ``run_steps.h``.

If the generated code has constants or loops, or does not look as expected, for instance in a later version of PyTorch,
it is compiled as it is, which only takes longer.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch_estimator.compile.precompiled_headers import PrecompiledHeaders

_STEP_MODEL = Path(__file__).with_name("step_model.h")
_LOOP = Path(__file__).with_name("run_steps.h")
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

_OWN_CONSTRUCTOR = "AOTInductorModel::AOTInductorModel() : kernels_(new AOTInductorModelKernels()) {}\n"


class GeneratedCode(NamedTuple):
    """Files that Inductor generates for a step if asked to write C++ code only.

    Attributes:
        source: The C++ code.
        flags: What to call the compiler with to make a shared library, as JSON.
        objects: Object files, such as that of the constants.
    """

    source: Path
    flags: Path
    objects: list[Path]

    @classmethod
    def among(cls, paths: Sequence[object]) -> GeneratedCode:
        """Return the generated code from the list of files that `torch._inductor.aot_compile` returns."""
        files = [Path(path) for path in paths if isinstance(path, str)]

        def only(ending: str) -> Path:
            (found,) = (file for file in files if file.name.endswith(ending))
            return found

        objects = [file for file in files if file.suffix == ".o"]
        return cls(only(".cpp"), only("_linker_flags.json"), objects)

    def dispatched_operators(self) -> list[str]:
        """Return the operators that the code calls through PyTorch's dispatcher. ``run_steps.h`` cannot call these."""
        if _DISPATCHED not in self.source.read_text():
            return []
        described = self.source.with_suffix(".json")
        nodes = json.loads(described.read_text())["nodes"] if described.is_file() else [{}]
        return sorted({str(node.get("node", {}).get("target", "an operator")) for node in nodes})

    def compile(self, library: Path, headers: PrecompiledHeaders, flags: Sequence[str] = ()) -> None:
        """Compile the code into a shared library.

        If there are no precompiled headers yet, a process is started that makes them for later steps.
        """
        code = self.source.read_text()
        compiling, linking = _options(self.flags)
        if (shortened := shorten(code)) is not None:
            options = [*compiling, "-std=c++17"]
            precompiled = headers.arguments(options)
            # The compiler may refuse precompiled headers. It may also refuse shortened code, if a later PyTorch needs
            # what step_model.h or this C++ standard lacks.
            if precompiled and self._compile(shortened, library, [*options, *precompiled, *flags], linking):
                return
            if self._compile(shortened, library, [*options, *flags], linking):
                if not precompiled:
                    headers.make(options)
                return
        self._compile(code, library, [*compiling, *flags], linking, check=True)

    def _compile(
        self, code: str, library: Path, options: Sequence[str], linking: Sequence[str], *, check: bool = False
    ) -> bool:
        """Compile code with a compiler and its options. Return whether that has worked; if `check`, raise an error."""
        whole = self.source.with_suffix(".step.cpp")
        whole.write_text(f'{code}\n#include "{_LOOP}"\n')
        command = [*options, str(whole), *map(str, self.objects), *linking, "-o", str(library)]
        done = subprocess.run(command, check=check, capture_output=True, text=True, timeout=_MAX_SECS)
        return done.returncode == 0


def shorten(code: str) -> str | None:
    """Return the code with ``step_model.h`` in place of PyTorch's classes.

    Return None if the code has constants, loops or variable sizes, or does not look as expected.
    """
    _, _, own = code.partition(_END_OF_INTERFACE)
    declarations, constructor, functions = own.partition(_CONSTRUCTOR)
    _, start, step_and_kernels = functions.rpartition(_RUN)
    step, end, _ = step_and_kernels.partition(_END_OF_RUN)
    if not (constructor and start and end) or _UNSUPPORTED.search(_COMMENT.sub("", step)):
        return None
    return f'#include "{_STEP_MODEL}"\n{declarations}{_OWN_CONSTRUCTOR}{start}{step_and_kernels}'


def _options(flags: Path) -> tuple[list[str], list[str]]:
    """Return the compiler with its options, and the options of the linker, from a file of flags that Inductor wrote."""
    given: dict[str, Any] = json.loads(flags.read_text())
    # The linker would take 0.2 seconds to read the symbols of libtorch_cpu.so. Loading libtorch.so loads it as well.
    given["libraries"] = [name for name in given["libraries"] if name != "torch_cpu"]
    given["cflags"] = [name for name in given["cflags"] if name != "shared"]

    def arguments(prefixes: dict[str, str]) -> Iterator[str]:
        for name, prefix in prefixes.items():
            for value in given[name]:
                # A directory is one argument, even with spaces. Other values may have several words.
                words = [value] if name.endswith("_dirs") else shlex.split(value)
                if words:
                    yield from (f"{prefix}{words[0]}", *words[1:])

    compiling = arguments({"definitions": "-D", "cflags": "-", "include_dirs": "-I", "passthrough_args": ""})
    linking = arguments({"ldflags": "-", "libraries": "-l", "libraries_dirs": "-L"})
    # Without the last flag, one of Inductor's object files makes the library ask for an executable stack. Newer systems
    # (glibc 2.41) do not load such a library.
    of_linker = "-Wl,--no-as-needed,-z,noexecstack"
    return (
        [given["compiler"], *compiling, "-O2", "-w", "-g0", "-fomit-frame-pointer"],
        ["-shared", of_linker, *linking],
    )
