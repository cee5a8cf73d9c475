"""Tables of one benchmark: printed as they come, and kept in ``benchmarks/results/<name>.json`` with ``--save``.

`scripts/charts` draws the charts of the documentation from these files. A file holds an object by the table's name:

- ``title``, ``columns``, ``rows``: the table. The first column names the row; the others hold numbers, texts or null.
- ``date``, ``commit``, ``machine``, ``versions``, ``command``: when, of what, where and how the table was measured.
- ``note``, written by hand: what a reader has to know beside the numbers. It is kept when the table is measured anew.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from benchmarks.protocol.machine import cpu, date_of_today, machine_line, versions_of
from benchmarks.protocol.side import ROOT
from benchmarks.protocol.table import Table

FOLDER = ROOT / "benchmarks" / "results"

_tables: dict[str, dict[str, Any]] = {}
"""Tables that this process has shown, by name. A process runs one benchmark."""

_versions: dict[str, str] = {}


def show(name: str, title: str, table: Table) -> None:
    """Print a table under its title, and keep it for `save`, which replaces the table of this name in the file."""
    print(f"\n{title}\n\n{table}", flush=True)
    keep(name, title, table)


def keep(name: str, title: str, table: Table) -> None:
    """Keep a table for `save` without printing it."""
    _tables[name] = {
        "title": title,
        "columns": list(table.columns),
        "rows": [list(map(_cell, row)) for row in table.rows],
    }


def show_machine(versions: Mapping[str, str] | None = None) -> None:
    """Print where and when the tables were measured, and the versions of the libraries, by name."""
    _versions.update(versions_of(versions))
    print(f"\n{machine_line(versions)}\n")


def save(name: str, command: str) -> None:
    """Write the tables that this process has shown into the file of a benchmark; keep that file's other tables."""
    file = FOLDER / f"{name}.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    measured = {
        "date": date_of_today(),
        "commit": _commit(),
        "machine": cpu(),
        "versions": dict(_versions or versions_of()),
        "command": command,
    }
    for key, table in _tables.items():
        note = {"note": before[key]["note"]} if "note" in before.get(key, {}) else {}
        before[key] = {**table, **measured, **note}
    FOLDER.mkdir(exist_ok=True)
    file.write_text(as_text(before))


def as_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the content of a file, with one line for each row of a table."""
    return "{\n" + ",\n".join(_part(name, table) for name, table in tables.items()) + "\n}\n"


def _part(name: str, table: Mapping[str, Any]) -> str:
    lines = []
    for key, value in table.items():
        rows = ",\n".join(f"      {_dumped(row)}" for row in value) if key == "rows" else ""
        lines.append(f"    {_dumped(key)}: " + (f"[\n{rows}\n    ]" if rows else _dumped(value)))
    return f"  {_dumped(name)}: {{\n" + ",\n".join(lines) + "\n  }"


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cell(value: object) -> object:
    if isinstance(value, float):
        # Five significant figures are more than any measurement here is worth.
        return float(f"{value:.5g}")
    return value if value is None or isinstance(value, int) else str(value)


def _commit() -> str:
    """Return the commit that was measured, with ``-dirty`` behind it if files were changed; empty without git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
