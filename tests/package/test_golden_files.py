"""Every file of reference numbers is read by a test."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SHARED

TESTS = Path(__file__).parents[1]


def test_every_reference_file_is_read_by_a_test() -> None:
    folder = Path(os.environ.get("TE_GOLDEN_DIR") or SHARED / "golden")
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} of reference numbers; set TE_GOLDEN_DIR to where it is")
    read = {name for path in TESTS.rglob("test_*.py") for name in golden_names(path.read_text())}
    assert {path.stem for path in folder.glob("*.json")} == read


def golden_names(source: str) -> set[str]:
    """The names that the tests in a source pass to ``golden``: as they stand, or through parametrize.

    A test that passes anything else is an error, since nobody could tell what it reads.
    """
    return {
        name.removesuffix(".json")
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for name in _names_in(node)
    }


def _names_in(test: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(test):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "golden"):
            continue
        (argument,) = node.args
        if isinstance(argument, ast.Constant):
            yield argument.value
        else:
            assert isinstance(argument, ast.Name), f"{test.name} passes {ast.unparse(argument)} to golden"
            yield from _parametrized(test, argument.id)


def _parametrized(test: ast.FunctionDef, name: str) -> list[str]:
    """The values of a test's parameter, which must be written out in its decorator."""
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize":
            named, values = decorator.args
            names = [named.value] if isinstance(named, ast.Constant) else [ast.literal_eval(n) for n in _items(named)]
            if name in names:
                place = names.index(name)
                cases = _items(values)
                return [ast.literal_eval(case if len(names) == 1 else _items(case)[place]) for case in cases]
    raise AssertionError(f"{test.name} passes {name} to golden, but is not parametrized with it")


def _items(node: ast.expr) -> list[ast.expr]:
    assert isinstance(node, ast.Tuple | ast.List), f"{ast.unparse(node)} is not written out"
    return node.elts


def test_only_what_a_test_passes_to_golden_counts() -> None:
    source = """
NAME = "linear"
def helper(golden):
    golden("helper")
def test_a(golden):
    golden("hash")["dnn"] == "wide"
@pytest.mark.parametrize(("name", "more"), [("one", 1), ("two.json", {})])
def test_b(name, more, golden):
    golden(name)
@pytest.mark.parametrize("name", ["three"])
def test_c(name, golden):
    return f(golden(name))
"""
    assert golden_names(source) == {"hash", "one", "two", "three"}


@pytest.mark.parametrize("argument", ["NAME", "'a' + 'b'", "name"])
def test_a_name_that_cannot_be_told_is_an_error(argument: str) -> None:
    with pytest.raises(AssertionError, match=r"^test_a passes .* to golden"):
        golden_names(f"def test_a(golden):\n    golden({argument})")
