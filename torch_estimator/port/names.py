"""Which names of a program are TensorFlow's: imports, ``tf.`` chains, and variables that stand for a part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import libcst as cst
from libcst import metadata

from torch_estimator.port.table import ONLY_1, ONLY_2

_ROOT = "tensorflow"


@dataclass(frozen=True, slots=True)
class TensorFlowName:
    """A name of TensorFlow that a program uses, without ``tf.``, ``compat.v1.`` and ``compat.v2.``.

    `compat` says whether it is the name in ``tf.compat.v1``. `root` is the variable or import with which the program's
    spelling begins, and `variable` what such a variable stands for, such as ``feature_column``; None for an import.
    """

    name: str
    compat: bool
    root: str
    variable: str | None = None


class Names:
    """The names of one file, by LibCST's metadata."""

    def __init__(self, wrapper: metadata.MetadataWrapper) -> None:
        self._qualified = wrapper.resolve(metadata.QualifiedNameProvider)
        self._parents = wrapper.resolve(metadata.ParentNodeProvider)
        self._positions = wrapper.resolve(metadata.PositionProvider)
        self._aliases: dict[str, TensorFlowName] = {}
        assigned = _Assignments()
        wrapper.module.visit(assigned)
        self._find_aliases(assigned.found)
        self.bound = assigned.bound
        self._imported = assigned.imported

    def _find_aliases(self, found: list[tuple[cst.Name, cst.BaseExpression]]) -> None:
        """Record variables such as ``fc = tf.feature_column``, unless another line assigns something else to them."""
        counts = Counter(local for target, _ in found for local in self._locals(target))
        for target, value in found:
            name = self.of(value)
            for local in self._locals(target) if name is not None else ():
                if name is not None and counts[local] == 1:
                    self._aliases[local] = name

    def _locals(self, node: cst.CSTNode) -> list[str]:
        return [one.name for one in self.qualified(node) if one.source is metadata.QualifiedNameSource.LOCAL]

    def qualified(self, node: cst.CSTNode) -> set[metadata.QualifiedName]:
        """Return LibCST's qualified names of a node."""
        found = self._qualified.get(node, set())
        return set(found() if callable(found) else found)

    def of(self, node: cst.BaseExpression) -> TensorFlowName | None:
        """Return the name of TensorFlow that an expression such as ``tf.estimator.Estimator`` stands for, or None."""
        root = _root(node)
        if root is None:
            return None
        for one in sorted(self.qualified(node), key=lambda one: one.name):
            if one.source is metadata.QualifiedNameSource.IMPORT:
                name = without_root(one.name)
                if name is not None:
                    return TensorFlowName(name[0], name[1], root.value)
            elif one.source is metadata.QualifiedNameSource.LOCAL:
                alias = self._alias(one.name)
                if alias is not None:
                    return replace(alias, root=root.value)
        return None

    def _alias(self, local: str) -> TensorFlowName | None:
        """Resolve a local name, or an attribute of it, to the TensorFlow name it was assigned from."""
        parts = local.split(".")
        for length in range(len(parts), 0, -1):
            alias = self._aliases.get(".".join(parts[:length]))
            if alias is not None:
                return replace(alias, name=".".join([alias.name, *parts[length:]]), variable=alias.name)
        return None

    def is_of_another_package(self, node: cst.CSTNode) -> bool:
        """Return whether a name comes from an import of something else than TensorFlow."""
        sources = [one for one in self.qualified(node) if one.source is metadata.QualifiedNameSource.IMPORT]
        return bool(sources) and all(without_root(one.name) is None for one in sources)

    @property
    def use_tensorflow(self) -> bool:
        """Whether the file imports TensorFlow."""
        return any(without_root(one) is not None for one in self._imported.values())

    def imports(self, name: str) -> bool:
        """Return whether the file itself imports a module, under its own name and outside of functions."""
        return self._imported.get(name) == name

    def is_imported_from_compat(self, root: str) -> bool:
        """Return whether `root` is TensorFlow 1.x's interface already, as in ``import tensorflow.compat.v1 as tf``."""
        return self._imported.get(root, "").startswith(f"{_ROOT}.compat.v1")

    def is_whole(self, node: cst.CSTNode) -> bool:
        """Return whether a chain of names is not a part of a longer one, a keyword, an import or something assigned."""
        parent = self._parents.get(node)
        if isinstance(parent, cst.Arg):
            return parent.keyword is not node
        if isinstance(parent, cst.Param | cst.FunctionDef | cst.ClassDef):
            return parent.name is not node
        if isinstance(parent, cst.AssignTarget):
            return isinstance(node, cst.Attribute)
        return not isinstance(parent, cst.Attribute | cst.ImportAlias | cst.AsName | cst.ImportFrom)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the parent of a node in the tree."""
        return self._parents.get(node)

    def line(self, node: cst.CSTNode) -> int:
        """Return the line on which a node begins."""
        return int(self._positions[node].start.line)


class _Assignments(cst.CSTVisitor):
    """All assignments to single names, and the names that the file defines other than by imports."""

    def __init__(self) -> None:
        self.found: list[tuple[cst.Name, cst.BaseExpression]] = []
        self.bound: set[str] = set()
        self.imported: dict[str, str] = {}
        self._depth = 0

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            local = alias.evaluated_alias or alias.evaluated_name.split(".")[0]
            self._imports(local, alias.evaluated_name if alias.asname is not None else local)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        if node.module is None or isinstance(node.names, cst.ImportStar):
            return
        module = cst.Module([]).code_for_node(node.module)
        for alias in node.names:
            self._imports(alias.evaluated_alias or alias.evaluated_name, f"{module}.{alias.evaluated_name}")

    def _imports(self, local: str, full: str) -> None:
        if not self._depth or full.startswith(_ROOT):
            self.imported[local] = full

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            if isinstance(target.target, cst.Name):
                self.found.append((target.target, node.value))

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        if isinstance(node.target, cst.Name):
            self.bound.add(node.target.value)

    def visit_Param(self, node: cst.Param) -> None:
        self.bound.add(node.name.value)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.bound.add(node.name.value)
        self._depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._depth -= 1


def _root(node: cst.BaseExpression) -> cst.Name | None:
    """Return the first name of a chain of attributes, or None for any other expression."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else None


def without_root(name: str) -> tuple[str, bool] | None:
    """Return a full name without ``tensorflow`` and ``compat.v1``, and whether it had that; None for other packages."""
    root, _, rest = name.partition(".")
    if root != _ROOT:
        return None
    compat = rest == "compat.v1" or rest.startswith("compat.v1.")
    for prefix in ("compat.v1", "compat.v2"):
        if rest == prefix or rest.startswith(f"{prefix}."):
            rest = rest.removeprefix(prefix).removeprefix(".")
    return rest, compat


def generations(names: Iterable[TensorFlowName]) -> Iterator[tuple[int, str]]:
    """Yield which TensorFlow has each of the names, 1 or 2, and the name as TensorFlow spells it."""
    for one in names:
        if one.compat:
            # A program for TF 1.x needs no compat.v1, though TF 1.15 has it.
            yield 2, f"tf.compat.v1.{one.name}"
        elif is_below(one.name, ONLY_1):
            yield 1, f"tf.{one.name}"
        elif is_below(one.name, ONLY_2):
            yield 2, f"tf.{one.name}"


def is_below(name: str, parts: tuple[str, ...]) -> bool:
    """Return whether a dotted name is one of `parts`, or an attribute of one."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)
