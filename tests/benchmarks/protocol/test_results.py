"""Tables of a benchmark are kept with where they come from, and the charts in the repository are drawn from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks.protocol import results, show, show_machine, table
from scripts import draw_charts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(results, "_tables", {})
    monkeypatch.setattr(results, "_versions", {})
    return tmp_path / "results"


def test_a_table_is_printed_and_kept_with_its_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show("small", "Small batches", table(["", "steps/s"], [["ours", 7421.349], ["peer", None]]))
    show_machine({"JAX": "0.10"})
    results.save("speed", "scripts/bench speed")

    kept = json.loads((folder / "speed.json").read_text())["small"]
    assert "Small batches\n\n      steps/s\nours    7,421\npeer        -\n" in capsys.readouterr().out
    assert kept["columns"] == ["", "steps/s"] and kept["rows"] == [["ours", 7421.3], ["peer", None]]
    assert kept["title"] == "Small batches" and kept["command"] == "scripts/bench speed"
    assert kept["versions"].keys() == {"Python", "torch", "JAX"} and "cores" in kept["machine"]
    assert kept["commit"] and kept["date"]


def test_a_second_run_replaces_its_own_tables_only_and_keeps_notes(folder: Path) -> None:
    show("small", "Small", table(["", "steps/s"], [["ours", 1.0]]))
    show("large", "Large", table(["", "steps/s"], [["ours", 2.0]]))
    results.save("speed", "first")
    before = json.loads((folder / "speed.json").read_text())
    before["small"]["note"] = "Beside a compiler."
    (folder / "speed.json").write_text(results.as_text(before))
    results._tables.clear()

    show("small", "Small", table(["", "steps/s"], [["ours", 3.0]]))
    results.save("speed", "second")

    after = json.loads((folder / "speed.json").read_text())
    assert after["large"] == before["large"]
    assert (after["small"]["rows"], after["small"]["command"]) == ([["ours", 3.0]], "second")
    assert after["small"]["note"] == "Beside a compiler."


def test_a_quick_run_is_not_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main("encryption", ["--quick", "--save"]) == 2

    assert "leave out --save or --quick" in capsys.readouterr().err
    assert not folder.exists()


def test_the_documentation_has_the_charts_and_tables_that_the_results_give() -> None:
    outdated = [
        file.name
        for file, content in draw_charts.drawings(draw_charts.results()).items()
        if not file.exists() or file.read_text(encoding="utf-8") != content
    ]

    assert not outdated, "run scripts/charts"


def test_every_file_of_results_is_written_as_saving_writes_it() -> None:
    for file in results.FOLDER.glob("*.json"):
        text = file.read_text(encoding="utf-8")

        assert text == results.as_text(json.loads(text)), file.name


def test_bars_are_sorted_and_ours_stand_out() -> None:
    rows = [["peer", 10.0], ["torch-estimator", 1000.0], ["none", None]]
    panel = draw_charts.Panel("Steps", ("speed/small",), "steps/s", logarithmic=True)

    drawing = draw_charts.chart([panel], {"speed/small": {"columns": ["", "steps/s"], "rows": rows}})

    assert 'aria-label="Steps: torch-estimator 1,000, peer 10.0."' in drawing
    assert drawing.count('class="bar"') == drawing.count('class="bar ours"') == 1
    assert "none" not in drawing.split("</style>")[1]
