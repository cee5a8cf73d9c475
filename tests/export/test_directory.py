"""Unfinished exports are removed once no process can be writing them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.export.models import model_of
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.export.directory import OLD_SECS, owned, remove_leftovers
from torch_estimator.export.writer import write_export

ROOT = Path(__file__).resolve().parents[2]
EXPORTS_WITH_AN_ASSET = """
import sys
from tests.export.test_directory import export

export(sys.argv[1], assets_extra={"slow": sys.argv[2]})
"""


def export(base: str | Path, **settings: Any) -> str:
    built = model_of([fc.numeric_column("x")], [])
    receiver = serving_input.raw_features(built.transform)
    return write_export(
        base, module=built.module, transform=built.transform, head=built.head, receiver=receiver, **settings
    )


def test_an_unfinished_export_is_removed_only_after_its_writer_was_killed(tmp_path: Path) -> None:
    base, slow = tmp_path / "census", tmp_path / "slow"
    os.mkfifo(slow)
    command = [sys.executable, "-c", EXPORTS_WITH_AN_ASSET, str(base), str(slow)]
    with subprocess.Popen(command, cwd=ROOT) as other:
        # The open returns once the other process opens the asset for reading, which then waits for content.
        with slow.open("wb"):
            (unfinished,) = base.iterdir()
            _make_old(unfinished)
            first = export(base)
            assert {path.name for path in base.iterdir()} == {unfinished.name, Path(first).name}
            other.kill()
        other.wait()
    os.utime(unfinished)

    second = export(base)

    assert {str(path) for path in base.iterdir()} == {first, second}
    names = sorted(path.name for path in Path(second).iterdir())
    assert names == ["assets.extra", "model.onnx", "signatures.json"]


def test_an_unfinished_export_of_another_machine_stays_for_an_hour(tmp_path: Path) -> None:
    elsewhere = tmp_path / "temp-1700000000"
    elsewhere.mkdir()
    (elsewhere / ".owner").write_text("another kernel")
    (elsewhere / "model.onnx").write_text("half")
    changed = (elsewhere / "model.onnx").stat().st_mtime

    remove_leftovers(str(tmp_path), changed + OLD_SECS - 1)
    assert elsewhere.exists()
    remove_leftovers(str(tmp_path), changed + OLD_SECS + 1)
    assert not elsewhere.exists()


def test_a_file_that_still_grows_keeps_an_old_export(tmp_path: Path) -> None:
    elsewhere = tmp_path / "temp-1700000000"
    words = elsewhere / "assets.extra" / "words.txt"
    words.parent.mkdir(parents=True)
    words.touch()
    _make_old(elsewhere)
    words.write_text("more")

    remove_leftovers(str(tmp_path), time.time())

    assert elsewhere.exists()


def test_an_unfinished_export_of_this_process_stays(tmp_path: Path) -> None:
    mine = tmp_path / "temp-1700000000"
    mine.mkdir()
    with owned(str(mine)):
        _make_old(mine)
        remove_leftovers(str(tmp_path), time.time())
        assert mine.exists()
    assert list(mine.iterdir()) == []


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    for name in ("1700000000", "temp-", "temp-mine", "temporary"):
        (tmp_path / name).mkdir()
        _make_old(tmp_path / name)
    (tmp_path / "temp-1700000001").write_text("a file")
    (tmp_path / "temp-1700000002").symlink_to(tmp_path / "1700000000")
    before = sorted(tmp_path.iterdir())

    remove_leftovers(str(tmp_path), time.time() + 2 * OLD_SECS)

    assert sorted(tmp_path.iterdir()) == before


def _make_old(directory: Path) -> None:
    for path in [directory, *directory.rglob("*")]:
        os.utime(path, (1_700_000_000, 1_700_000_000))


def test_an_empty_directory_of_a_writer_that_was_killed_at_once_is_removed_after_seconds(tmp_path: Path) -> None:
    new = tmp_path / "temp-1700000000"
    new.mkdir()
    made = new.stat().st_mtime
    remove_leftovers(str(tmp_path), made + 1)
    assert new.exists()
    remove_leftovers(str(tmp_path), made + 11)
    assert not new.exists()
