"""The reference: every public name is on one page, and its docstring describes its arguments and has an example."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import doctest
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from docs.extensions.public_names import other_names, public_names, short
from tests.docs.pages import ROOT
from torch_estimator.feature_column.column import Column

NAMES = public_names()

# What docs/reference/index.md tells readers to import.
IMPORTED = {"fc", "np", "te", "torch"}

# Classes that users derive from. The examples of the classes define the methods, so that these need none of their own;
# nor does a method that the example of its class calls, such as a module's ``forward``.
TO_DERIVE_FROM = {
    "torch_estimator.CheckpointSaverListener",
    "torch_estimator.ContinuousEvalListener",
    "torch_estimator.Exporter",
    "torch_estimator.Hook",
    "torch_estimator.data.Reader",
    "torch_estimator.data.Source",
    "torch_estimator.data.Transform",
    "torch_estimator.heads.ClassificationHead",
    "torch_estimator.heads.Graph",
    "torch_estimator.heads.Head",
    "torch_estimator.metrics.Metrics",
    "torch_estimator.optim.Optimizer",
}

# Methods without an underscore that the package itself calls.
NOT_FOR_USERS = {
    "torch_estimator.Estimator": {"export"},  # another name of export_saved_model
    "torch_estimator.EvalSpec": {"all_exporters"},
    "torch_estimator.MultiHead": {"joined", "loss_reduction", "split"},
    "torch_estimator.RunConfig": {"task"},
    "torch_estimator.VocabInfo": {"new_words", "old_words"},
    "torch_estimator.WarmStartSettings": {"expressions"},
    "torch_estimator.data.Dataset": {"divided", "runs_user_code"},
    "torch_estimator.data.DatasetIterator": {"next_in_block", "next_together"},
    "torch_estimator.distribute.Strategy": {"check", "dismiss", "evaluates", "join", "share_evaluation"},
    "torch_estimator.feature_column.FeatureTransform": {
        "hashed_with",
        "recording",
        "restore_seen_strings",
        "seen_strings",
        "tensors_of_ids",
        "tensors_of_numbers",
    },
    "torch_estimator.feature_column.LinearModel": {"dense", "dense_weights", "table"},
    "torch_estimator.feature_column.Table": {"extra_repr"},
    "torch_estimator.optim.Optimizer": {"add_param_group"},
    "torch_estimator.metrics.MetricFunction": {"own"},
    "torch_estimator.metrics.MetricFunctions": {"arguments"},
}

_DIRECTIVE = re.compile(
    r"^\.\. (?P<kind>autoclass|autofunction|autoexception|py:data):: (?P<name>[\w.]+)(?P<signature>\(\))?\n"
    r"(?P<options>(?: +:.*\n)*)",
    re.MULTILINE,
)
_MEMBERS = re.compile(r":members: (.*)")
_MODULE = re.compile(r":module: (.*)")
_SECTION = r"^{section}:\n(?P<entries>(?: .*\n?|\n)*)"


@dataclass(frozen=True)
class Entry:
    """A public name on a page: its object, and those of its members that are on the page as well.

    If a page shows a class with empty parentheses, users do not call the class.
    """

    page: str
    kind: str
    name: str
    is_called: bool
    members: tuple[str, ...]

    @property
    def value(self) -> Any:
        return NAMES[self.name]


def entries() -> list[Entry]:
    found = []
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for match in _DIRECTIVE.finditer(page.read_text(encoding="utf-8")):
            members, module = _MEMBERS.search(match["options"]), _MODULE.search(match["options"])
            found.append(
                Entry(
                    page.name,
                    match["kind"],
                    f"{module[1]}.{match['name']}" if module else match["name"],
                    not match["signature"],
                    tuple(members[1].split(", ")) if members else (),
                )
            )
    return found


ENTRIES = entries()


def public_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties that a class defines itself or overrides, with their names."""
    for name, value in vars(kind).items():
        plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield name, plain


def is_described_elsewhere(kind: type, name: str) -> bool:
    """Return whether a public class among the bases describes the method, or a protocol that the class implements.

    The methods of feature columns are called by the package; a column's page says what it gives to a model.
    """
    if issubclass(kind, Column):
        return True
    on_pages = {entry.value: {*entry.members, *NOT_FOR_USERS.get(entry.name, ())} for entry in ENTRIES}
    bases = [base for base in kind.__mro__[1:] if base in NAMES.values()]
    protocols = [one for one in NAMES.values() if getattr(one, "_is_protocol", False) and one is not kind]
    return any(name in on_pages.get(base, ()) for base in (*bases, *protocols)) or any(
        name in vars(base) for base in kind.__mro__[1:] if base not in NAMES.values() and base.__module__[:5] != "torch"
    )


def documented() -> list[tuple[str, Any, bool, bool]]:
    """Return name, object, whether users call it, and whether an example is due, of everything that is on the pages."""
    found: list[tuple[str, Any, bool, bool]] = []
    for entry in ENTRIES:
        if entry.kind == "py:data":
            continue
        found.append((short(entry.name), entry.value, entry.is_called, True))
        for member in entry.members:
            value = inspect.getattr_static(entry.value, member)
            plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            is_method = inspect.isfunction(plain)
            is_shown = entry.name in TO_DERIVE_FROM or member == "forward" or f".{member}(" in entry.value.__doc__
            found.append((f"{short(entry.name)}.{member}", plain, is_method, is_method and not is_shown))
    return found


DOCUMENTED = documented()


def parameters(value: Any) -> list[str]:
    """Return the names of the parameters that users give."""
    function = value.__init__ if dataclasses.is_dataclass(value) else value
    names = inspect.signature(function).parameters
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def described(docstring: str, section: str) -> set[str]:
    """Return the names that a section of a docstring describes."""
    match = re.search(_SECTION.format(section=section), docstring, re.MULTILINE)
    return set(re.findall(r"^ {4}\*{0,2}(\w+)(?: \(.*\))?:", match["entries"], re.MULTILINE)) if match else set()


def undefined_names(example: str) -> set[str]:
    """Return the names that an example uses, but neither defines nor imports."""
    tree = ast.parse(example)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                made.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                made |= {(one.asname or one.name).partition(".")[0] for one in aliases}
    return used - made - IMPORTED - set(vars(builtins))


def of_all(check: Callable[[str, Any, bool, bool], list[str]]) -> list[str]:
    return [problem for one in DOCUMENTED for problem in check(*one)]


def test_every_public_name_is_on_one_page() -> None:
    on_pages = Counter(name for entry in ENTRIES for name in (short(entry.name), *other_names(entry.name)))
    assert sorted(on_pages) == sorted(map(short, NAMES))
    assert [name for name, count in on_pages.items() if count > 1] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    missing = [page for page in {entry.page for entry in ENTRIES} if f"]({page})" not in index]
    assert missing == []


def test_every_public_method_is_on_the_page_of_its_class() -> None:
    missing = [
        f"{short(entry.name)}.{name}"
        for entry in ENTRIES
        if inspect.isclass(entry.value)
        for name, _ in public_members(entry.value)
        if name not in (*entry.members, *NOT_FOR_USERS.get(entry.name, ()))
        and not is_described_elsewhere(entry.value, name)
    ]
    assert missing == []


def test_every_docstring_describes_all_arguments() -> None:
    def check(name: str, value: Any, is_called: bool, _: bool) -> list[str]:
        docstring = inspect.cleandoc(value.__doc__ or "")
        if not docstring:
            return [f"{name} has no docstring"]
        known = described(docstring, "Args") | described(docstring, "Attributes")
        missing = [one for one in parameters(value) if one not in known] if is_called else []
        return [f"{name} does not describe {', '.join(missing)}"] if missing else []

    assert of_all(check) == []


def test_every_docstring_has_an_example() -> None:
    def check(name: str, value: Any, _: bool, needs_example: bool) -> list[str]:
        return [name] if needs_example and ">>>" not in (value.__doc__ or "") else []

    assert of_all(check) == []


@pytest.mark.parametrize(
    ("example", "names"),
    [("te.Hook()", set()), ("print(Hook)", {"Hook"}), ("x = 1\nx", set()), ("lambda a: a", set())],
)
def test_undefined_names_are_found(example: str, names: set[str]) -> None:
    assert undefined_names(example) == names


def test_examples_use_only_what_they_define_and_the_imports_of_the_index() -> None:
    index = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    assert all(re.search(rf"^(import|from) .*\b{name}$", index, re.MULTILINE) for name in IMPORTED)

    def check(name: str, value: Any, *_: bool) -> list[str]:
        examples = doctest.DocTestParser().get_examples(value.__doc__ or "")
        undefined = undefined_names("".join(one.source for one in examples))
        return [f"{name} uses {', '.join(sorted(undefined))}"] if undefined else []

    assert of_all(check) == []


def test_a_page_links_to_the_docstrings_that_it_shows_only_where_the_site_is_built() -> None:
    pages = [page for page in (ROOT / "docs" / "reference").glob("*.md") if "{eval-rst}" in page.read_text("utf-8")]
    assert pages
    for page in pages:
        source = re.search(r"Unbuilt, read the docstrings of\n\[.*\]\((.*)\)", page.read_text("utf-8"))
        assert source, page
        assert (page.parent / source[1]).is_file()
