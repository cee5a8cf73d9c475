"""axe-core finds no serious fault on any view, in both colour schemes and on a narrow screen.

`scripts/bench console --parts access` brings axe-core from npm and runs it, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.pages import axe
from tests.browser import Browser, browser, is_installed
from tests.console.console_server import console
from tests.console.corpus import Corpus, write_census

pytestmark = [
    pytest.mark.skipif(not is_installed(), reason="needs Chromium: apt-get install chromium chromium-driver"),
    pytest.mark.skipif(
        not axe.axe_file().exists(),
        reason="needs axe-core, which comes with: .venv/bin/python -m benchmarks.pages.axe",
    ),
]

VIEWS = {
    "list": "/",
    "nothing found": "/?q=nothing",
    "job": "/page/job?id=job:census_7",
    "over": "/page/job?id=job:census_8",
    "compare": "/page/compare?id=job:census_7&id=job:census_8",
    "no such job": "/page/job?id=job:nobody",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a console with a job that runs and one that is over."""
    corpus = Corpus(tmp_path_factory.mktemp("jobs"), time.time())
    write_census(corpus)
    write_census(corpus, "census_8", is_running=False)
    with console(Path(corpus.jobs)) as address:
        yield address


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """A window for all tests."""
    with browser() as opened:
        yield opened


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 400)])
@pytest.mark.parametrize("path", VIEWS.values(), ids=VIEWS)
def test_a_view_has_no_serious_fault(url: str, window: Browser, path: str, scheme: str, width: int) -> None:
    window.prefer(scheme)
    window.resize(width, 900)
    window.open(url + path)
    window.run("document.querySelector('.chart')?.scrollIntoView()")
    window.wait_until(lambda: len(window.find(".chart canvas")) > 0 or not window.find(".chart"))

    assert axe.faults(window, axe.axe_file().read_text()) == []
