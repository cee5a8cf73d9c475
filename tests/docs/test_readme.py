"""The documents are true: the README's program runs, and commands, scripts and files that are named are there."""

import importlib.util
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.census.trainer import task
from tests.docs.pages import ROOT, Block, blocks, run_blocks

README = ROOT / "README.md"
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("examples/*/README.md"))),
)
PAGES = (
    *DOCUMENTS,
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md")) if "_build" not in path.parts),
)
# Named where the lines before install them, or are themselves the way to do so.
INSTALLED_BY_HAND = {"build", "pip"}
# What a reader of the README types, who has installed the package into an environment of her own.
ON_THE_PATH = {"estimator", "pip", "python", "rm", "torchrun"}

OWN_PROGRAMS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]


def commands(document: str) -> Iterator[list[str]]:
    """The words of every shell command in a document: in blocks line by line, in the text between backquotes."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for block in blocks(ROOT / document):
        if block.language in ("bash", "sh"):
            for line in block.code.replace("\\\n", " ").splitlines():
                yield shlex.split(line, comments=True)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", prose):
        # Bare names of tools, such as `estimator show`, are names there; python and pip are meant to be typed.
        if re.match(r"([A-Z_]+=\S+ )?(scripts/|\.venv/|(python|pip)[0-9.]*( |$))", code):
            yield shlex.split(code)


COMMANDS = sorted({(document, *words) for document in DOCUMENTS for words in commands(document)})


def programs(page: Path) -> list[Block]:
    return [block for block in blocks(page) if "np.random" in block.code]


def test_the_program_of_the_readme_runs_alone_and_as_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = programs(README)
    assert "Save it as `ride.py`" in " ".join(README.read_text(encoding="utf-8").split())
    saved = replace(program, options={"caption": "ride.py"})
    run_blocks(README, [saved if block == program else block for block in blocks(README)])


def test_the_site_begins_with_the_program_of_the_readme() -> None:
    assert [block.code for block in programs(ROOT / "docs" / "index.md")] == [programs(README)[0].code]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_can_be_run_without_activating_anything(command: tuple[str, ...]) -> None:
    document, *words = command
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    program, *arguments = words
    if program.startswith(("scripts/", "examples/")):
        assert os.access(ROOT / program, os.X_OK)
        return
    if document == "README.md":
        assert program in ON_THE_PATH
        return
    assert program.startswith(".venv/bin/")
    name = Path(program).name
    if name != "python":
        assert name in OWN_PROGRAMS or (Path(sys.executable).parent / name).exists()
    elif arguments:
        assert arguments[0] == "-m"
        module = arguments[1]
        assert module in INSTALLED_BY_HAND or importlib.util.find_spec(module)
        if module == "examples.census.trainer.task":
            task.parse(arguments[2:])


def test_the_documents_have_commands() -> None:
    for document in DOCUMENTS:
        assert any(command[0] == document for command in COMMANDS)


@pytest.mark.parametrize("document", PAGES)
def test_every_script_and_file_that_is_named_is_there(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for script in set(re.findall(r"(?<![\w/.])scripts/[a-z-]+", text)):
        assert os.access(ROOT / script, os.X_OK), script
    for test in set(re.findall(r"scripts/test (tests/[\w/.]*\w)", text)):
        assert (ROOT / test).exists(), test
    for benchmark in set(re.findall(r"scripts/bench ([a-z_]+)", text)):
        assert (ROOT / "benchmarks" / f"{benchmark}.py").exists(), benchmark
    # The site's build checks the links between its pages.
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if document in DOCUMENTS else ():
        assert "://" in link or (ROOT / document).parent.joinpath(link).exists(), link


def test_every_benchmark_can_be_found_in_their_readme() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for benchmark in (ROOT / "benchmarks").glob("[!_]*.py"):
        assert f"`scripts/bench {benchmark.stem}`" in text
