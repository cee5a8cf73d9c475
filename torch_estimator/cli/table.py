"""Predictions as a table of text, the way gcloud prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Any]) -> str:
    """Returns rows as lines: columns by name, sorted, under upper-case headings; values as Python prints them.

    Rows that are no objects make one column without a heading.

    >>> print(table([{"logits": [0.5], "classes": ["a"]}]))
    CLASSES  LOGITS
    ['a']    [0.5]
    """
    if not all(isinstance(row, Mapping) for row in rows):
        return "\n".join(str(row) for row in rows)
    names = sorted({name for row in rows for name in row})
    lines = [[name.upper() for name in names]]
    lines += [[str(row.get(name, "")) for name in names] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
