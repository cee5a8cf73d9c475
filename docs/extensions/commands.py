"""The directive ``command``: options of a command, from its argparse parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from torch_estimator.cli.main import make_parser
from torch_estimator.parameter_server.__main__ import make_parser as make_server_parser


class CommandDirective(SphinxDirective):
    """Describe a command by its argparse parser, so that page and ``--help`` cannot differ.

    ```{command} estimator local train
    ```
    """

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the description, a table of the options, and the text after them."""
        self.env.note_reread()  # The parsers may change without the page.
        return self.parse_text_to_nodes("\n".join(_describe(_parser_of(self.arguments[0]))))


def _parser_of(command: str) -> argparse.ArgumentParser:
    parsers = {parser.prog: parser for parser in (make_parser(), make_server_parser())}
    start = next(prog for prog in parsers if command.startswith(prog))
    parser = parsers[start]
    for word in command.removeprefix(start).split():
        (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
        parser = commands.choices[word]
    return parser


def _describe(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield lines of markdown."""
    yield from (_marked(parser.description), "", "| option | meaning |", "|---|---|")
    for action in parser._actions:
        if action.dest != "help":
            meaning = _marked((action.help or "") % vars(action))
            note = " (required)" if action.option_strings and action.required else ""
            yield f"| {_spelling(action)} | {meaning}{note} |"
    yield ""
    for group in parser._mutually_exclusive_groups:
        names = ", ".join(f"`{(action.option_strings or [action.metavar])[0]}`" for action in group._group_actions)
        yield from (f"Give {'one' if group.required else 'at most one'} of {names}.", "")
    yield _marked(parser.epilog)


def _marked(text: str | None) -> str:
    """Return a help text with options and variables marked as code."""
    return re.sub(r"--[a-z][a-z-]+|\$?TORCH_ESTIMATOR_\w+", r"`\g<0>`", text or "")


def _spelling(action: argparse.Action) -> str:
    choices = action.choices and f"{{{','.join(map(str, action.choices))}}}"
    value = action.metavar or choices or action.dest.upper()
    values = {0: "", "+": f" {value} …"}.get(action.nargs, f" {value}")
    return ", ".join(f"`{name}{values}`" for name in action.option_strings) or f"`{values.strip()}`"


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("command", CommandDirective)
