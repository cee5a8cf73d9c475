"""Command ``estimator port``: rewrite a program for tf.estimator, and list what is left to its author."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch_estimator import files
from torch_estimator.errors import InvalidValueError, printable

if TYPE_CHECKING:
    from torch_estimator.port.program import PortedFile

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Rewrites imports, names, arguments and feature columns of a program for tf.estimator, in place. Lists with line numbers
what it leaves as it is, and what to write instead: names of TensorFlow without a counterpart, input functions, and each
model_fn. Give all files of the program at once: their names decide between the defaults of TF 1.x and TF 2.x."""


def add_to(commands: Commands) -> None:
    """Add the command ``port`` and its arguments to the parser."""
    parser = commands.add_parser("port", help="rewrite a program for tf.estimator", description=_ABOUT)
    parser.add_argument("files", nargs="+", metavar="FILE", help="Python files, or directories with such files")
    parser.add_argument("--check", action="store_true", help="change no file; print the list only")
    parser.add_argument("--diff", action="store_true", help="change no file; print the changes and the list")
    parser.add_argument(
        "--tf",
        type=int,
        choices=[1, 2],
        help="the TensorFlow whose defaults premade models get (default: what the names in the program say)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Port the files, and print what is left to do."""
    if importlib.util.find_spec("libcst") is None:
        raise InvalidValueError('estimator port needs LibCST: pip install "torch-estimator[port]".')
    from torch_estimator.port.program import port, report

    sources = {path: _read(path) for path in _python_files(options.files)}
    ported, generation = port(sources, options.tf)
    if options.diff:
        for file in ported:
            print(printable("".join(_diff(file))), end="")
    writes = not (options.check or options.diff)
    for file in ported if writes else ():
        if file.after != file.before:
            _write(file.path, file.after)
    # Name lines of the files as they are now.
    shown = [file.after_lines() for file in ported] if writes else ported
    print(printable("\n".join(report(shown, generation))))


def _python_files(given: Sequence[str]) -> list[str]:
    """Return the files, and those in the directories, without those of hidden directories."""
    found: dict[str, None] = {}
    for path in given:
        if os.path.isdir(path):
            inside = sorted(one for one in Path(path).rglob("*.py") if not _is_hidden(one.relative_to(path)))
            if not inside:
                raise InvalidValueError(f"The directory {path} holds no Python files.")
            found |= dict.fromkeys(map(str, inside))
        elif not os.path.isfile(path):
            raise InvalidValueError(f"There is no file {path}.")
        elif path.endswith(".ipynb"):
            raise InvalidValueError(
                f"{path} is a notebook; make a program of it first: jupyter nbconvert --to script {path}."
            )
        else:
            found[path] = None
    return list(found)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _read(path: str) -> str:
    try:
        return files.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{path} is not a text in UTF-8 ({error.reason} at byte {error.start}).") from error
    except OSError as error:
        raise InvalidValueError(f"{path} cannot be read: {files.reason(error)}.") from error


def _write(path: str, code: str) -> None:
    """Replace the content of a file, also of one that a link leads to; its permissions stay."""
    try:
        target = os.path.realpath(path)
        mode = os.stat(target).st_mode
        files.write_atomic(target, code.encode())
        os.chmod(target, mode)
    except OSError as error:
        raise InvalidValueError(f"{path} cannot be written: {files.reason(error)}.") from error


def _diff(file: PortedFile) -> Iterator[str]:
    before, after = file.before.splitlines(keepends=True), file.after.splitlines(keepends=True)
    for line in difflib.unified_diff(before, after, file.path, file.path):
        yield line if line.endswith("\n") else f"{line}\n"
