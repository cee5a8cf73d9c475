"""Layout of ported code: lines that stood below the first argument of a call stay below it."""

from __future__ import annotations

import difflib
import io
import tokenize
from dataclasses import dataclass, field

_NO_CODE = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)

Bracket = tuple[int, int]
"""Line of an opening bracket, from 1, and the number of brackets around it."""


@dataclass(slots=True)
class _Layout:
    """Where the code inside of brackets begins.

    `columns` holds the column of the first code after a bracket, if that is on the bracket's line. The lines `below`
    begin at this column of the innermost bracket around them.
    """

    columns: dict[Bracket, int] = field(default_factory=dict)
    below: dict[int, Bracket] = field(default_factory=dict)


def _layout(code: str) -> _Layout:
    layout, open_brackets, last_line = _Layout(), list[Bracket](), 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        (line, column), is_first = token.start, token.start[0] != last_line
        if open_brackets and is_first and layout.columns.get(open_brackets[-1]) == column:
            layout.below[line] = open_brackets[-1]
        if token.type not in _NO_CODE:
            if open_brackets and open_brackets[-1][0] == line:
                layout.columns.setdefault(open_brackets[-1], column)
            if token.string in ("(", "[", "{"):
                open_brackets.append((line, len(open_brackets)))
            elif token.string in (")", "]", "}") and open_brackets:
                open_brackets.pop()
        last_line = token.end[0]
    return layout


def realigned(before: str, after: str) -> str:
    """Return ported code in which lines below a call's first argument follow it to its new column.

    The lines of `after` have the indentation that they had in the code before.
    """
    lines = io.StringIO(after).readlines()
    matcher = difflib.SequenceMatcher(None, io.StringIO(before).readlines(), lines.copy(), autojunk=False)
    new_lines = {
        start + offset + 1: new_start + offset + 1
        for _, start, end, new_start, new_end in matcher.get_opcodes()
        if end - start == new_end - new_start
        for offset in range(end - start)
    }
    old, new = _layout(before), _layout(after)
    moved: dict[int, int] = {}
    for line, (opening, depth) in old.below.items():
        column = new.columns.get((new_lines.get(opening, 0), depth))
        if line in new_lines and column is not None:
            place = new_lines[line]
            moved[place] = column + moved.get(new_lines[opening], 0) - old.columns[opening, depth]
            text = lines[place - 1].lstrip(" ")
            indent = len(lines[place - 1]) - len(text)
            lines[place - 1] = " " * max(0, indent + moved[place]) + text
    return "".join(lines)
