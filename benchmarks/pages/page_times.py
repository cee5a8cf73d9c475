"""What a page notes of itself while Chromium shows it: when rows, charts and texts appear, and how long tasks take.

All times are milliseconds since 1970, by the clock that `time.time` has on this machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.protocol import SideError
from tests.browser import Browser

# Runs in each new page before its own scripts. DevTools puts it there, so that a content security policy is no matter.
_NOTES = """
window.notes = {tasks: [], seen: {}, charts: {}};
const now = () => performance.timeOrigin + performance.now();
new PerformanceObserver(list => {
  for (const task of list.getEntries()) notes.tasks.push(task.duration);
}).observe({type: "longtask", buffered: true});

// A selector whose first element with text is waited for: `wait` has its name, its CSS and a pattern for its text.
window.waitFor = (name, css, pattern) => {
  const wanted = new RegExp(pattern);
  const isThere = () => [...document.querySelectorAll(css)].some(one => wanted.test(one.textContent));
  const look = () => {
    if (notes.seen[name] === undefined && document.body && isThere()) {
      notes.seen[name] = now();
      watcher.disconnect();
    }
  };
  const watcher = new MutationObserver(look);
  watcher.observe(document, {subtree: true, childList: true, characterData: true});
  look();
};

// When each chart came into view, and when it was drawn, by its place on the page.
window.watchCharts = css => {
  const isDrawn = chart => [...chart.querySelectorAll("canvas")].some(one => one.width > 0 && one.height > 0);
  const charts = [...document.querySelectorAll(css)];
  const note = (chart, key) => { (notes.charts[charts.indexOf(chart)] ??= {})[key] ??= now(); };
  const views = new IntersectionObserver(entries => {
    for (const {target, isIntersecting} of entries) {
      if (!isIntersecting) continue;
      note(target, "inView");
      if (isDrawn(target)) note(target, "drawn");
    }
  });
  for (const chart of charts) {
    views.observe(chart);
    const watcher = new MutationObserver(() => { if (isDrawn(chart)) note(chart, "drawn"); });
    watcher.observe(chart, {subtree: true, childList: true});
  }
};

// When an attribute of the first element that a selector finds next changes.
window.waitForChange = (name, css, attribute) => {
  const watcher = new MutationObserver(() => {
    notes.seen[name] ??= now();
    watcher.disconnect();
  });
  watcher.observe(document.querySelector(css), {attributes: true, attributeFilter: [attribute]});
};
"""

_LONGEST_WAIT_SECS = 300.0


def take_notes(window: Browser) -> None:
    """Have all pages that a window opens from now on take notes."""
    window.emulate("Page.addScriptToEvaluateOnNewDocument", source=_NOTES)


def note_at_start(window: Browser, name: str, css: str, pattern: str) -> None:
    """Have all pages from now on note when the text of an element first matches."""
    _in_new_pages(window, f"waitFor({name!r}, {css!r}, {pattern!r});")


def note_charts(window: Browser, css: str) -> None:
    """Have all pages from now on note when charts come into view, and when they are drawn."""
    _in_new_pages(window, f"addEventListener('DOMContentLoaded', () => watchCharts({css!r}));")


def _in_new_pages(window: Browser, source: str) -> None:
    window.emulate("Page.addScriptToEvaluateOnNewDocument", source=source)


def note_when(window: Browser, name: str, css: str, pattern: str) -> None:
    """Note in the page that is open when the text of an element first matches."""
    window.run("waitFor(...arguments)", name, css, pattern)


def note_change(window: Browser, name: str, css: str, attribute: str) -> None:
    """Note in the page that is open when an attribute of an element next changes."""
    window.run("waitForChange(...arguments)", name, css, attribute)


def seen_at(window: Browser, name: str, secs: float = _LONGEST_WAIT_SECS) -> float:
    """Wait until something has been noted; return when it was, in seconds since 1970."""
    deadline = time.monotonic() + secs
    while (found := window.run("return window.notes?.seen[arguments[0]] ?? null", name)) is None:
        if time.monotonic() > deadline:
            raise SideError(f"{name} was not shown within {secs:g} s on {window.url}.")
        time.sleep(0.02)
    return float(found) / 1000


def content_loaded_secs(window: Browser) -> float:
    """Return how long the page that is open took until DOMContentLoaded."""
    found = window.run("return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    return float(found) / 1000


@dataclass(frozen=True, slots=True)
class Scrolled:
    """How a page behaved that was scrolled through.

    Attributes:
        charts: How many charts came into view.
        secs: For each that was drawn, how long after that.
        longest_ms: The longest task of the browser, 50 at least.
    """

    charts: int
    secs: list[float]
    longest_ms: float


def scroll_through(window: Browser, *, pixels: int = 300, pause_secs: float = 0.25) -> Scrolled:
    """Scroll from the top of the page that is open to its end, as with a wheel."""
    time.sleep(0.5)
    while True:
        before = window.run("return scrollY")
        if window.run("scrollBy(0, arguments[0]); return scrollY", pixels) == before:
            break
        time.sleep(pause_secs)
    time.sleep(1)
    notes = [one for one in window.run("return Object.values(notes.charts)") if "inView" in one]
    secs = [max(0.0, one["drawn"] - one["inView"]) / 1000 for one in notes if "drawn" in one]
    return Scrolled(len(notes), secs, max([50.0, *window.run("return notes.tasks")]))
