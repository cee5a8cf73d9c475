"""The page about the command line has every command; its directive takes the options from the parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from tests.docs.pages import ROOT
from torch_estimator.cli.main import make_parser


def leaves(parser: argparse.ArgumentParser) -> Iterator[str]:
    commands = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not commands:
        yield parser.prog
    for one in commands:
        for child in one.choices.values():
            yield from leaves(child)


def test_every_command_is_on_the_page() -> None:
    page = (ROOT / "docs" / "reference" / "command_line.md").read_text(encoding="utf-8")
    named = re.findall(r"^```\{command\} (.+)$", page, flags=re.MULTILINE)
    assert set(leaves(make_parser())) <= set(named)
    assert all(f"\n### {command}\n" in page for command in named)
