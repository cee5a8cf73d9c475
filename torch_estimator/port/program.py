"""Porting of the files of one program: which TensorFlow it is written for, new code, and what is left to the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import libcst as cst
from libcst import metadata

from torch_estimator.errors import InvalidValueError
from torch_estimator.port.layout import realigned
from torch_estimator.port.names import Names, TensorFlowName, generations
from torch_estimator.port.rewrite import Finding, Reader, Writer, imports_tensorflow

_IMPORTS = {"logging": "import logging", "torch": "import torch"}


@dataclass(frozen=True, slots=True)
class Generation:
    """The TensorFlow, 1 or 2, that a program is written for, which decides about defaults, and the reason."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class PortedFile:
    """A file after porting.

    `findings` are by line of the code before. `rewritten` is the number of names that were rewritten. `uses_generation`
    says whether the generation decided about a name.
    """

    path: str
    before: str
    after: str
    findings: tuple[Finding, ...]
    rewritten: int
    uses_generation: bool

    def after_lines(self) -> PortedFile:
        """Return the findings with line numbers of the ported code."""
        lines = _new_lines(self.before, self.after)
        return replace(self, findings=tuple(replace(one, line=lines[one.line]) for one in self.findings))


def port(sources: Mapping[str, str], generation: int | None = None) -> tuple[list[PortedFile], Generation]:
    """Port the files of a program, given by path; return them in their order, and the generation that sets defaults.

    `generation` is 1 or 2 for the defaults of TF 1.x or 2.x; None to decide by the names that the program uses.
    """
    path = ""
    try:
        wrappers, names = {}, {}
        for path, code in sources.items():
            wrappers[path] = _parsed(path, code)
            names[path] = Names(wrappers[path])
        decided = Generation(generation, "as --tf says") if generation is not None else _generation(wrappers, names)
        files = []
        for path, wrapper in wrappers.items():
            files.append(_port_file(path, sources[path], wrapper, names[path], decided))
        return files, decided
    except RecursionError:
        raise InvalidValueError(
            f"{path}: an expression is nested too deeply to be read; split it, such as a sum of thousands of terms."
        ) from None


def _parsed(path: str, code: str) -> metadata.MetadataWrapper:
    try:
        return metadata.MetadataWrapper(cst.parse_module(code))
    except cst.ParserSyntaxError as error:
        raise InvalidValueError(
            f"{path}:{error.raw_line}: the file is not in the syntax of Python 3; if it is written for Python 2, "
            "convert it first, such as with 2to3 of Python 3.11."
        ) from error


def _generation(wrappers: Mapping[str, metadata.MetadataWrapper], names: Mapping[str, Names]) -> Generation:
    """Return the TensorFlow that a program is written for: 1 if it uses a name that only TF 1.x has."""
    found: dict[int, str] = {}
    for path, wrapper in wrappers.items():
        collector = _Collector(names[path])
        wrapper.module.visit(collector)
        for number, spelling in generations(collector.found):
            found.setdefault(number, f"{path} uses {spelling}")
    if not found:
        return Generation(
            2, "no name in the program tells, so these are those of the last TensorFlow with tf.estimator"
        )
    number = min(found)
    return Generation(number, found[number])


class _Collector(cst.CSTVisitor):
    """The names of TensorFlow that a file uses."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.found: list[TensorFlowName] = []
        self._names = names

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return self._collect(node)

    def visit_Name(self, node: cst.Name) -> bool:
        return self._collect(node)

    def _collect(self, node: cst.Attribute | cst.Name) -> bool:
        name = self._names.of(node) if self._names.is_whole(node) else None
        if name is not None and not self._names.is_imported_from_compat(name.root):
            self.found.append(name)
        return name is None


def _port_file(
    path: str, code: str, wrapper: metadata.MetadataWrapper, names: Names, generation: Generation
) -> PortedFile:
    reader = Reader(names, "te" if generation.number == 1 else "te.v2")
    wrapper.module.visit(reader)
    edits = reader.edits
    te = "torch_estimator" if "te" in names.bound else "te"
    imports = [_IMPORTS[one] for one in ("logging", "torch") if one in edits.imports and not names.imports(one)]
    if "te" in edits.imports:
        imports.append("import torch_estimator" + (" as te" if te == "te" else ""))
    lines = _TensorFlowImports()
    wrapper.module.visit(lines)
    after = realigned(code, wrapper.module.visit(Writer(edits, te, imports, everywhere=not lines.at_top)).code)
    findings = tuple(sorted(set(edits.findings)))
    return PortedFile(path, code, after, findings, len(edits.replaced), edits.uses_generation)


class _TensorFlowImports(cst.CSTVisitor):
    """Whether TensorFlow is imported outside of functions."""

    def __init__(self) -> None:
        super().__init__()
        self.at_top = False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        self.at_top |= imports_tensorflow(node)


def _new_lines(before: str, after: str) -> dict[int, int]:
    """Map each line number before porting to the one after, both from 1; a deleted line maps to where it was."""
    old, new = before.splitlines(), after.splitlines()
    lines: dict[int, int] = {}
    for _, start, end, new_start, new_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for offset in range(end - start):
            lines[start + offset + 1] = min(new_start + offset, max(new_start, new_end - 1)) + 1
    return lines


def report(files: Sequence[PortedFile], generation: Generation) -> Iterator[str]:
    """Yield the lines that tell the user what was rewritten and what is left."""
    for file in files:
        for is_note, heading in ((False, "to do"), (True, "rewritten, but look")):
            grouped: dict[tuple[str, str], list[int]] = {}
            for one in file.findings:
                if one.is_note == is_note:
                    grouped.setdefault((one.name, one.text), []).append(one.line)
            if grouped:
                yield f"{file.path}: {heading}"
                for (name, text), lines in grouped.items():
                    yield f"  {', '.join(map(str, dict.fromkeys(lines)))}: {name}: {text}."
    todo = sum(not one.is_note for file in files for one in file.findings)
    rewritten = sum(file.rewritten for file in files)
    yield (
        f"{rewritten} {_plural(rewritten, 'name')} in {len(files)} {_plural(len(files), 'file')} "
        f"{'has' if rewritten == 1 else 'have'} a counterpart; {todo} {_plural(todo, 'place')} "
        f"{'is' if todo == 1 else 'are'} left to you."
    )
    if any(file.uses_generation for file in files):
        other = 3 - generation.number
        yield (
            f"Premade models have the defaults of TF {generation.number}.x: {generation.reason}. "
            f"--tf {other} takes those of TF {other}.x."
        )


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
