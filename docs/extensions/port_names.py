"""The directive ``port-names``: the tables of `estimator port`."""

from __future__ import annotations

from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from torch_estimator.port.table import ADVICE, BY_GENERATION, METHODS, RENAMED, Renamed


class PortNamesDirective(SphinxDirective):
    """Show a table of `torch_estimator.port.table`, so that page and command cannot differ.

    ```{port-names} renamed
    ```
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        self.env.note_reread()
        tables = {"renamed": _renamed, "advice": _advice, "methods": _methods}
        return self.parse_text_to_nodes("\n".join(tables[self.arguments[0]]()))


def _renamed() -> Iterator[str]:
    yield from ("| `tf.` | here | to know |", "|---|---|---|")
    for name, rule in RENAMED.items():
        target = rule.target.replace(BY_GENERATION, "te")
        both = f"`{target}`, `{target.replace('te.', 'te.v2.', 1)}`" if BY_GENERATION in rule.target else f"`{target}`"
        yield f"| `{name}` | {both} | {_escaped('; '.join(_to_know(rule)))} |"


def _to_know(rule: Renamed) -> Iterator[str]:
    if rule.note:
        yield rule.note
    yield from (f"{name} is removed: {reason}" for name, reason in rule.removed.items() if reason)
    yield from (f"with {name} it is left: {reason}" for name, reason in rule.by_hand.items())


def _advice() -> Iterator[str]:
    yield from ("| `tf.` | what to write instead |", "|---|---|")
    yield from (f"| `{name}` | {_escaped(text)} |" for name, text in ADVICE.items())


def _methods() -> Iterator[str]:
    yield from ("| method | what to write instead |", "|---|---|")
    yield from (f"| `.{name}` | {_escaped(text)} |" for name, text in METHODS.items())


def _escaped(text: str) -> str:
    """Return a sentence as markdown that shows it as it is."""
    return "".join(f"\\{letter}" if letter in "|*_[]{}<>`" else letter for letter in text)


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("port-names", PortNamesDirective)
