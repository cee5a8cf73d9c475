"""Every page's code runs, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, run_page

PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]
# Pages whose own test runs them, and looks at more than what they print.
ELSEWHERE = [ROOT / "docs" / "tutorials" / "census.md"]
RUNNING = [
    page
    for page in PAGES
    if page not in ELSEWHERE and any(block.language in ("python", "bash") for block in blocks(page))
]


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT / "docs")))
@pytest.mark.usefixtures("readers_directory")
def test_the_code_of_a_page_runs(page: Path) -> None:
    run_page(page)
