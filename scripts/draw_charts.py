"""Charts and tables of the documentation, drawn from the last results of the benchmarks: ``scripts/charts``.

`benchmarks/protocol/results.py` says what a file in ``benchmarks/results`` holds. A new chart is an entry of `CHARTS`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.protocol.picture import picture
from benchmarks.protocol.results import FOLDER
from benchmarks.protocol.table import number

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
TABLES = ROOT / "docs" / "benchmark_tables.md"


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars on one scale: a row of a table is a bar.

    `title` says what the bars are, with the unit. `tables` are names of tables, each ``file/table``, whose rows are
    taken; rows without a number in `column` are left out. If `logarithmic`, each tick is ten times the one before; with
    `least_is_best`, the smallest number comes first. `names` are other names for rows, by their first cell.
    """

    title: str
    tables: Sequence[str]
    column: str
    logarithmic: bool = False
    least_is_best: bool = False
    names: dict[str, str] = field(default_factory=dict)


_OURS = {
    "ours, very first run": "torch-estimator, first run",
    "ours, after another model": "torch-estimator, after another model",
    "ours, a later run": "torch-estimator, later run",
    "ours, compile=no": "torch-estimator, compile=False",
}
_WHOLE, _AT_40, _AT_512 = "census_train/whole", "census_train/steady40", "census_train/steady512"

CHARTS: dict[str, Sequence[Panel]] = {
    "steps_per_second": (
        Panel("Steps per second, batches of 40", (_AT_40,), "steps/s", logarithmic=True),
        Panel("Steps per second, batches of 512", (_AT_512,), "steps/s", logarithmic=True),
    ),
    "whole_command": (
        Panel("Seconds of the whole command, 12,000 steps", (_WHOLE,), "seconds", least_is_best=True, names=_OURS),
    ),
    "first_step": (
        Panel("Seconds to the first step", (_WHOLE, _AT_40), "first step s", least_is_best=True, names=_OURS),
    ),
    "memory": (Panel("Peak memory in MB, batches of 40", (_AT_40,), "peak MB", least_is_best=True),),
    "clusters": (
        Panel("Chief and server, batches of 40: steps per second", ("parameter_servers/small",), "steps/s"),
        Panel("Chief and server, batches of 512: steps per second", ("parameter_servers/large",), "steps/s"),
        Panel("Two processes in step, batches of 512: steps per second", ("synchronous/in_step",), "steps/s"),
    ),
    "evaluation": tuple(
        Panel(f"{what}, batches of {batch}: rows per second", (f"census_eval/at{batch}",), column, logarithmic=True)
        for batch in (40, 512)
        for what, column in (("Evaluation", "evaluate"), ("Prediction", "predict"))
    ),
    "input": tuple(
        Panel(f"Rows per second, batches of {batch}", (f"input_pipeline/at{batch}",), "rows/s", logarithmic=True)
        for batch in (40, 512)
    ),
    "serving": (
        Panel("Requests per second, 16 connections", ("serving/servers",), "16: req/s", logarithmic=True),
        Panel(
            "Milliseconds of half the requests, 16 connections", ("serving/servers",), "16: p50 ms", least_is_best=True
        ),
    ),
}
"""By the picture's name. A chart is drawn once there are results of all of its tables."""

_WIDTH, _BARS, _NUMBERS = 700, 260, 76
_HEAD, _ROW, _BAR, _TICKS, _GAP = 30, 22, 14, 18, 18


def results(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Return the tables of all benchmarks by ``file/table``."""
    files = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
    return {f"{name}/{key}": table for name, tables in files.items() for key, table in tables.items()}


def drawings(tables: dict[str, dict[str, Any]]) -> dict[Path, str]:
    """Return the content of each file to write: the charts that have results, and the page with all tables."""
    charts = {
        PICTURES / f"{name}.svg": chart(panels, tables)
        for name, panels in CHARTS.items()
        if all(table in tables for panel in panels for table in panel.tables)
    }
    return {**charts, TABLES: page(tables)}


def chart(panels: Sequence[Panel], tables: dict[str, dict[str, Any]]) -> str:
    """Return an SVG file with the panels below each other."""
    parts: list[str] = []
    described: list[str] = []
    top = 0
    for panel in panels:
        bars = _bars(panel, tables)
        lines, height = _drawn(panel, bars, top)
        parts += lines
        described.append(f"{panel.title}: " + ", ".join(f"{name} {number(value)}" for name, value in bars))
        top += height + _GAP
    return picture(parts, _WIDTH, top - _GAP, ". ".join(described) + ".", font_px=13)


def _bars(panel: Panel, tables: dict[str, dict[str, Any]]) -> list[tuple[str, float]]:
    bars: dict[str, float] = {}
    for name in panel.tables:
        place = tables[name]["columns"].index(panel.column)
        for row in tables[name]["rows"]:
            if row[place] is not None:
                bars.setdefault(panel.names.get(row[0], row[0]), row[place])
    return sorted(bars.items(), key=lambda bar: bar[1] if panel.least_is_best else -bar[1])


def _drawn(panel: Panel, bars: Sequence[tuple[str, float]], top: int) -> tuple[list[str], int]:
    """Return the lines of a panel that begins at the height ``top``, and how high it is."""
    across = _Scale([value for _, value in bars], logarithmic=panel.logarithmic)
    bottom = top + _HEAD + _ROW * len(bars)
    lines = [_text(panel.title, 0, top + 15, "title")]
    if panel.logarithmic:
        lines.append(_text("logarithmic scale", _WIDTH, top + 15, "quiet", "end"))
    for at, name in across.ticks():
        lines.append(f'<line class="grid" x1="{at}" y1="{top + _HEAD - 4}" x2="{at}" y2="{bottom}"/>')
        lines.append(_text(name, at, bottom + 14, "quiet", "middle"))
    for place, (name, value) in enumerate(bars):
        y = top + _HEAD + _ROW * place
        ours = " ours" if name.startswith(("torch-estimator", "ours")) else ""
        end = across(value)
        lines.append(_text(name, _BARS - 8, y + 12, "", "end"))
        lines.append(f'<rect class="bar{ours}" x="{_BARS}" y="{y}" width="{end - _BARS:.1f}" height="{_BAR}" rx="2"/>')
        lines.append(_text(number(value), end + 6, y + 12, ""))
    return lines, bottom - top + (_TICKS if panel.logarithmic else 0)


class _Scale:
    """From numbers to places: linear from 0, or logarithmic from the power of ten below the smallest number."""

    def __init__(self, values: Sequence[float], *, logarithmic: bool) -> None:
        self._logarithmic = logarithmic
        self._low = math.floor(math.log10(min(values) / 1.5)) if logarithmic else 0.0
        self._high = math.log10(max(values)) if logarithmic else float(max(values))

    def __call__(self, value: float) -> float:
        place = math.log10(value) if self._logarithmic else value
        share = (place - self._low) / (self._high - self._low)
        return round(_BARS + share * (_WIDTH - _NUMBERS - _BARS), 1)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield where each power of ten is, and its name; nothing on a linear scale, whose bars have numbers."""
        if self._logarithmic:
            for power in range(int(self._low), math.floor(self._high) + 1):
                yield self(10.0**power), f"{10**power:,}"


def _text(text: str, x: float, y: float, kind: str, anchor: str = "start") -> str:
    place = f'x="{x:g}" y="{y}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(text)}</text>' if kind else f"<text {place}>{escape(text)}</text>"


def page(tables: dict[str, dict[str, Any]]) -> str:
    """Return the page with the tables of all benchmarks, in Markdown."""
    parts = ["% Written by scripts/charts from benchmarks/results/*.json.", "# All benchmark tables"]
    parts.append(
        "The last results of each benchmark, with the command, the date and the machine. [Benchmarks](benchmarks.md) "
        "has the charts. The commit is the one that was measured; before 24 November 2026, the one that recorded the "
        "table."
    )
    benchmark = ""
    for name, table in tables.items():
        if name.split("/")[0] != benchmark:
            benchmark = name.split("/")[0]
            parts.append(f"## {benchmark}")
        parts += [f"### {table['title']}", _table(table["columns"], table["rows"])]
        if "note" in table:
            parts.append(table["note"])
        versions = ", ".join(f"{library} {version}" for library, version in table["versions"].items())
        measured = f"{table['date']}, commit {table['commit']}; {table['machine']}; {versions}."
        parts.append(f"`{table['command']}`; {measured}")
    return "\n\n".join(parts) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [columns, ["---", *(["---:"] * (len(columns) - 1))], *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,}" if isinstance(value, int) else number(value)


def main() -> int:
    """Write the files, and print the names of those that have changed."""
    PICTURES.mkdir(exist_ok=True)
    for file, content in drawings(results()).items():
        if not file.exists() or file.read_text(encoding="utf-8") != content:
            file.write_text(content, encoding="utf-8")
            print(file.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
