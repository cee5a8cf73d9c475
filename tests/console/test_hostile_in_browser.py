"""Hostile directories in headless Chromium: nothing runs, and nothing is loaded from elsewhere.

Install it with ``apt-get install chromium chromium-driver``; without it, these tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.browser import Browser, browser, is_installed
from tests.console.console_server import console
from tests.console.hostile_directories import MARKUP, write_hostile

pytestmark = pytest.mark.skipif(
    not is_installed(), reason="needs Chromium: apt-get install chromium chromium-driver (half a minute)"
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a console over hostile directories."""
    with console(*write_hostile(tmp_path_factory.mktemp("hostile"))) as address:
        yield address


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """A window for all tests."""
    with browser() as opened:
        yield opened


def page(view: str, *ids: str, **others: str) -> str:
    return f"/page/{view}?{urlencode([*(('id', one) for one in ids), *others.items()])}"


PAGES = {
    "list": "/",
    "search": f"/?{urlencode({'q': MARKUP})}",
    "job": page("job", "job:hostile"),
    "role": page("job", "job:hostile", role=MARKUP, text=MARKUP),
    "run": page("job", "run:hostile"),
    "curves": page("job", "run:hostile", tag=MARKUP),
    "compare": page("compare", "job:hostile", "run:hostile", "job:healthy", f"run:{MARKUP}"),
    "nothing": page("job", f"job:{MARKUP}"),
}


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_nothing_runs(url: str, window: Browser, path: str) -> None:
    window.open(url + path)
    # Everything that scripts of the page load has come after two of their looks.
    window.run("return new Promise(done => setTimeout(done, 2500))")

    assert window.run("return window.hacked === undefined")
    assert window.run("return [...document.querySelectorAll('[onerror], [src=x], iframe, object, embed')].length") == 0
    assert [one for one in window.log() if "404" not in one] == []
    loaded = window.run("return performance.getEntriesByType('resource').map(one => one.name)")
    assert [one for one in loaded if not one.startswith(url)] == []


def test_a_long_line_leaves_the_page_as_wide_as_the_window(url: str, window: Browser) -> None:
    window.open(url + page("job", "job:hostile", role="ps-0"))

    # Lines that are not on the screen have no inner text.
    lines = window.run("return [...document.querySelectorAll('.log .line')].map(one => one.textContent)")
    assert any("after the long line" in line for line in lines)

    assert window.run("return document.documentElement.scrollWidth <= innerWidth")
