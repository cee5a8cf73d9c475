"""A table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


class Table(str):
    """Lines of aligned columns as text, which also has the columns' names and the rows' cells, as they were given."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Lines of aligned columns, the first to the left, the others to the right.

    Numbers get three significant figures at least and separators between thousands; None becomes a dash.

    >>> print(table(["peer", "steps/s", "ratio"], [["ours", 7421.3, None], ["eager", 512.2, 14.49]]))
    peer   steps/s  ratio
    ours     7,421      -
    eager      512   14.5
    """
    cells = [list(map(str, header)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    made = Table(
        "\n".join(
            "  ".join(
                cell.ljust(width) if index == 0 else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        )
    )
    made.columns, made.rows = tuple(map(str, header)), tuple(map(tuple, rows))
    return made


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    return number(value)


def number(value: float) -> str:
    """Three significant figures, or all digits before the point.

    >>> [number(value) for value in (1234567.8, 87.654, 9.3, 0.12345, 0.00012)]
    ['1,234,568', '87.7', '9.30', '0.123', '0.00012']
    """
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}"
