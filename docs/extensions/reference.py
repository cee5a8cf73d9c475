"""The reference's looks: signatures and names as users write them, and links between docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import public_names
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.util.inspect import stringify_signature


def setup(app: Sphinx) -> None:
    """Connect to what autodoc does."""
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _name_others)
    app.connect("object-description-transform", _shorten)
    app.connect("missing-reference", _find)


# Names of types that autodoc does not spell out, since their modules import them for mypy only.
_TYPES = (
    (r"TypeAliasForwardRef\('([^']*)'\)", r"\1"),
    (r"\bInputFn\b", "Callable[..., Any]"),
    (r"\bLabels\b", "np.ndarray | pa.Array"),
    (r"\bModuleOptimizer\b", "str | Optimizer | LRScheduler | OptimizerFactory"),
    (r"\bWarmStart\b", "str | PathLike[str] | WarmStartSettings"),
)


def _signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None] | None:
    """Show the settings of a dataclass whose ``__new__`` hides them, and what a class returns if used as a function."""
    if signature is not None:
        for pattern, spelled_out in _TYPES:
            signature = re.sub(pattern, spelled_out, signature)
    if what == "function" and inspect.isclass(value):
        return signature, value.__name__
    if signature and dataclasses.is_dataclass(value) and "__new__" in vars(value):
        parameters = [one for one in inspect.signature(value.__init__).parameters.values() if one.name[0] != "_"]
        shown = [_without_sentinel(one) for one in parameters if one.name != "self"]
        return stringify_signature(inspect.Signature(shown), unqualified_typehints=True), returned
    return signature, returned


class _Default:
    """Default that depends on other settings, which the description of the parameter explains."""

    def __repr__(self) -> str:
        return "..."


def _without_sentinel(parameter: inspect.Parameter) -> inspect.Parameter:
    kind = type(parameter.default).__name__
    if not kind.startswith("_") or parameter.default is parameter.empty:
        return parameter
    return parameter.replace(default=_Default(), annotation=str(parameter.annotation).replace(f"{kind} | ", ""))


def _name_others(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Add the object's other public names below the first line of its docstring."""
    others = public_names.other_names(name)
    if others:
        end = lines.index("") if "" in lines else len(lines)
        lines[end:end] = ["", f"Also named {', '.join(f'``{other}``' for other in others)}."]


def _shorten(app: Sphinx, domain: str, kind: str, content: addnodes.desc_content) -> None:
    """Show names as users write them: te.data.Dataset."""
    for prefix in content.parent.findall(addnodes.desc_addname):
        if prefix.astext().startswith(f"{public_names.ROOT}."):
            name = public_names.short(prefix.astext())
            prefix.clear()
            prefix += addnodes.desc_sig_name(name, name)


def _find(app: Sphinx, env: Any, node: addnodes.pending_xref, content: nodes.Node) -> nodes.Node | None:
    """Resolve a name without its module, as docstrings have them, if only one object has that name.

    Names of parameters are in backquotes, too, and are no links: only classes, ``Class.method`` and names in te are.
    """
    target = node.get("reftarget", "").removeprefix("te.")
    domain = env.domains.python_domain
    found = [one for one in domain.objects if one.endswith(f".{target}") and one.startswith(public_names.ROOT)]
    if not target[:1].isupper() and "." not in target:
        found = [one for one in found if one == f"{public_names.ROOT}.{target}"]
    if node.get("refdomain") != "py" or len(found) != 1:
        return None
    entry = domain.objects[found[0]]
    page = app.builder.get_relative_uri(node["refdoc"], entry.docname)
    return nodes.reference("", "", content, internal=True, refuri=f"{page}#{entry.node_id}")
