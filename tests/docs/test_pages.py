"""Every page's code runs, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.census import sample
from tests.docs.pages import ROOT, blocks, run_page

PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]
RUNNING = [page for page in PAGES if any(block.language in ("python", "bash") for block in blocks(page))]


@pytest.fixture(scope="session")
def census_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The census data that `python -m examples.census.sample` writes, made once for all pages."""
    folder = tmp_path_factory.mktemp("census-sample")
    sample.write(str(folder))
    return folder


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_the_code_of_a_page_runs(
    page: Path, census_sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "census-sample").symlink_to(census_sample)
    run_page(page)
