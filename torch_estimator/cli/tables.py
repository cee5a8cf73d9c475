"""Tables and sizes as commands print them."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as text, with two spaces between columns.

    >>> print(aligned([["NAME", "DEFAULT"], ["census", "3"]]))
    NAME    DEFAULT
    census  3
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def size_of(count: int) -> str:
    """Return a number of bytes as text.

    >>> size_of(4_179_142), size_of(900)
    ('4.2 MB', '0.9 kB')
    """
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
