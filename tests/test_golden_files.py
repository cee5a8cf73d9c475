"""Every file of reference numbers has tests."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.conftest import SHARED

TESTS = Path(__file__).parent


def test_every_reference_file_is_read_by_a_test() -> None:
    folder = Path(os.environ.get("TE_GOLDEN_DIR") or SHARED / "golden")
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} of reference numbers; set TE_GOLDEN_DIR to where it is")
    sources = [path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    named = {name for source in sources if "golden(" in source for name in re.findall(r'"(\w+?)(?:\.json)?"', source)}
    assert {path.stem for path in folder.glob("*.json")} <= named
