"""Where the reference numbers and real data of the tests lie."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    """Reads a reference file by name, for instance ``golden("hash.json")`` or ``golden("hash")``."""
    named = os.environ.get("TE_GOLDEN_DIR")
    folder = Path(named or SHARED / "golden")
    if named and not folder.is_dir():
        pytest.fail(f"TE_GOLDEN_DIR names {named}, but there is no such folder")
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} of reference numbers; set TE_GOLDEN_DIR to where it is")

    def read(name: str) -> Any:
        return json.loads((folder / f"{name.removesuffix('.json')}.json").read_text())

    return read


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data: ``census/``, ``babyweight/``, ``mnist/``."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} of real data beside the checkout")
    return folder
