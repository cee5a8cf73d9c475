"""Pages as programs: the code of one page runs from top to bottom, as a reader would type it."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# ```python, ```bash, ```{code-block} python, ```output; a fence of more backquotes ends with as many.
_BLOCK = re.compile(
    r"^(?P<fence>`{3,})(?:\{code-block\} *)?(?P<language>[\w-]+)\n(?P<options>(?::[\w-]+:[^\n]*\n)*)\n?"
    r"(?P<code>.*?)^(?P=fence)\s*$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of code: its language, its options (``caption``, ``class``), its text and its first line's number."""

    language: str
    options: dict[str, str]
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Return the blocks of code of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        options = dict(re.findall(r"^:([\w-]+): *(.*)$", match["options"], flags=re.MULTILINE))
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(match["language"], options, match["code"], line))
    return found


def side(diffs: Iterable[Block], sign: str) -> str:
    """Return the program before (``-``) or after (``+``) the changes of diffs, in which empty lines are unchanged."""
    lines = [line for block in diffs for line in block.code.splitlines()]
    return "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("", " ", sign))


def run_page(page: Path) -> None:
    """Run a page's code in the current directory, as `run_blocks` does."""
    run_blocks(page, blocks(page))


def run_blocks(page: Path, code: Iterable[Block]) -> None:
    """Run blocks of code of a page in the current directory.

    - ``python``: runs in one namespace for the whole page.
    - any block with a ``:caption:`` is written to a file of that name instead. A ``diff`` with a caption begins the
      changes of a program, and the page's next diffs continue them: their lines before are written to
      ``before/<caption>``, and those after to the file of that name.
    - ``bash``: runs in a shell that has this environment's commands; a failed command fails the page.
    - ``output``: must be what the block before it printed; ``...`` stands for anything.
    - every other language, such as ``text``, ``sh`` or ``tensorflow``, is there to be read only.
    """
    module = types.ModuleType("__main__")
    printed = program_name = ""
    diffs: list[Block] = []
    for block in code:
        where = f"{page.relative_to(ROOT)}, line {block.line}"
        if block.language == "diff":
            program_name = block.options.get("caption", program_name)
            diffs.append(block)
            if program_name:
                Path("before").mkdir(exist_ok=True)
                Path("before", program_name).write_text(side(diffs, "-"), encoding="utf-8")
                Path(program_name).write_text(side(diffs, "+"), encoding="utf-8")
        elif "caption" in block.options and block.language not in ("sh", "text", "tensorflow"):
            Path(block.options["caption"]).parent.mkdir(parents=True, exist_ok=True)
            Path(block.options["caption"]).write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            # The empty lines give errors the page's own line numbers.
            program = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(program, module.__dict__)
            printed = stdout.getvalue()
        elif block.language == "bash":
            printed = _shell(block.code, where)
        elif block.language == "output":
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert doctest.OutputChecker().check_output(block.code, printed, flags), f"{where}: printed was\n{printed}"


def _shell(code: str, where: str) -> str:
    commands = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    # The pages show log lines without their times.
    environment.setdefault("TORCH_ESTIMATOR_LOG_FORMAT", "plain")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, f"{where}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
