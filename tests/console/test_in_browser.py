"""The console in headless Chromium: charts that come into view, a job that goes on, and pages without JavaScript.

Install it with ``apt-get install chromium chromium-driver``; without it, these tests are skipped.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, browser, is_installed
from tests.console.console_server import console
from tests.console.corpus import Corpus, write_census
from tests.console.test_hostile import write_hostile

pytestmark = pytest.mark.skipif(
    not is_installed(), reason="needs Chromium: apt-get install chromium chromium-driver (half a minute)"
)

PICTURES = os.environ.get("TE_PICTURES")
"""Folder for pictures of the guide; without it, they are thrown away."""


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path, time.time())


@pytest.fixture
def site(corpus: Corpus) -> Iterator[str]:
    with console(corpus.jobs) as url:
        yield url


@pytest.fixture
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def requests(window: Browser, text: str) -> int:
    script = "return performance.getEntriesByType('resource').filter((one) => one.name.includes(arguments[0])).length"
    return int(window.run(script, text))


def drawn(window: Browser) -> int:
    return len(window.find(".chart canvas"))


def test_only_charts_that_come_into_view_are_fetched_and_drawn(corpus: Corpus, site: str, window: Browser) -> None:
    corpus.job("many")
    curves = {f"metric_{number:02}": float for number in range(60)}
    corpus.curves(corpus.output("many"), curves, steps=range(1000), began=corpus.now - 900, secs_per_step=0.9)
    window.open(f"{site}/page/job?id=job:many")
    window.wait_until(lambda: drawn(window) >= 2)
    assert drawn(window) < 20
    assert requests(window, "/page/points") < 20
    window.run("document.querySelectorAll('.chart')[59].scrollIntoView()")
    window.wait_until(lambda: len(window.find(".chart:nth-child(60) canvas")) == 1)
    assert requests(window, "/page/points") < 40
    assert window.log() == []


def test_a_job_that_goes_on_is_followed(corpus: Corpus, site: str, window: Browser) -> None:
    job = write_census(corpus)
    window.open(f"{site}/page/job?id=job:census_7")
    window.wait_for(".log", "step = 9400")
    window.run("window.isSamePage = true")
    corpus.log(job, "chief-0", [(time.time(), "a line that was written just now")])
    window.wait_for(".log", "written just now")
    window.wait_until(lambda: drawn(window) >= 1)
    version = window.run("return document.querySelector('.chart').dataset.drawn")
    output = corpus.output("census_7")
    corpus.curves(output, {"loss": lambda step: 0.2}, steps=range(9500, 9600), began=time.time(), secs_per_step=0.01)
    window.wait_until(lambda: bool(window.run("return document.querySelector('.chart').dataset.drawn") != version))
    (path,) = output.glob("activity/chief-0.*")
    with path.open("a") as file:
        file.write(f'{{"time": {corpus.now - 20}, "state": "waiting", "waits_for": ["ps-0"], "step": 9555}}\n')
    window.wait_until(lambda: "at step 9,555" in str(window.run("return document.getElementById('lanes').innerHTML")))
    job.add("ended", "SUCCEEDED", status=0)
    # Only what has changed was loaded anew.
    assert window.run("return window.isSamePage === true")
    assert window.log() == []


def test_a_page_that_was_opened_before_the_first_curve_follows_curves_and_state(
    corpus: Corpus, site: str, window: Browser
) -> None:
    job = corpus.job("early", ago=20, events=[{"kind": "submitted", "time": 0.0, "state": "QUEUED"}, corpus.launched()])
    corpus.log(job, "chief-0", [(corpus.now - 10 + line / 100, f"line {line}") for line in range(200)])
    window.open(f"{site}/page/job?id=job:early")
    assert "There are no curves yet." in window.text("#curves")
    window.wait_for(".title .state", "preparing")
    window.run("window.isSamePage = true")
    window.write("#text", "a search that is being written")
    window.run("document.querySelector('.log').scrollTop = 50")
    output = corpus.output("early")
    corpus.curves(output, {"loss": float}, steps=range(50), began=corpus.now - 10, secs_per_step=0.1)
    window.wait_until(lambda: drawn(window) == 1)
    assert "There are no curves yet." not in window.text("#curves")
    assert window.run("return document.querySelector('.pointer').hidden")
    # Later there are an evaluation of what has a chart, and a curve that has none.
    window.run("document.querySelector('.chart').isFirst = true")
    evaluated = {"loss": float, "auc": float}
    corpus.curves(output / "eval", evaluated, steps=[10], began=corpus.now - 5, secs_per_step=1)
    window.wait_until(lambda: drawn(window) == 2)
    window.wait_for(".chart:first-child", "evaluation")
    assert window.run("return document.querySelector('.chart').isFirst")
    assert len(window.find("button[value=cancel]")) == 1
    job.add("ended", "SUCCEEDED", status=0)
    window.wait_for(".title .state", "succeeded")
    assert not window.find("button[value=cancel]")
    # What is read after the end is marked, too.
    corpus.curves(output / "eval", evaluated, steps=[49], began=corpus.now - 1, secs_per_step=1)
    window.wait_until(lambda: "of step 49" in str(window.run("return document.getElementById('lanes').innerHTML")))
    assert window.run("return document.querySelector('#text').value") == "a search that is being written"
    assert window.run("return document.querySelector('.log').scrollTop") == 50
    assert window.run("return window.isSamePage")
    assert window.log() == []


def test_labels_of_an_axis_differ_where_values_are_close(corpus: Corpus, site: str, window: Browser) -> None:
    corpus.job("close")
    close = {"loss": lambda step: 0.010521 + step * 1e-7}
    corpus.curves(corpus.output("close"), close, steps=range(30), began=corpus.now, secs_per_step=1)
    window.open(f"{site}/page/compare?id=job:close")
    window.wait_until(lambda: drawn(window) == 1)
    window.run(
        "window.texts = []; const pens = CanvasRenderingContext2D.prototype, draw = pens.fillText;"
        "pens.fillText = function (...given) { texts.push(given[0]); draw.apply(this, given); }"
    )
    window.resize(900, 900)
    window.wait_until(lambda: any(text.startswith("0.01") for text in window.run("return texts")))
    shown = [text for text in window.run("return texts") if text.startswith("0.01")]
    assert len(set(shown)) == len(shown) > 2


def test_a_part_that_is_chosen_in_a_chart_is_shown_in_all_of_them_and_in_the_lanes(
    corpus: Corpus, site: str, window: Browser
) -> None:
    write_census(corpus, is_running=False)
    window.open(f"{site}/page/job?id=job:census_7")
    window.wait_until(lambda: drawn(window) >= 2)
    window.run("document.querySelector('.chart').scrollIntoView()")
    box = window.run("return document.querySelector('.chart .u-over').getBoundingClientRect().toJSON()")
    for kind, part in (("mousePressed", 0.4), ("mouseMoved", 0.45), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        place = {"x": box["left"] + part * box["width"], "y": box["top"] + 20}
        window.emulate("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
    window.wait_for("#lanes", "Show all of it")
    seconds = window.run("const { low, high } = document.getElementById('lanes').dataset; return high - low")
    assert 230 < seconds < 250
    window.run("document.querySelector('.chart .u-over').dispatchEvent(new MouseEvent('dblclick'))")
    window.wait_until(lambda: "Show all of it" not in window.text("#lanes"))
    assert window.log() == []


def test_a_click_in_a_lane_goes_to_the_line_of_the_log(corpus: Corpus, site: str, window: Browser) -> None:
    write_census(corpus, is_running=False)
    window.open(f"{site}/page/job?id=job:census_7")
    window.click(".lane:nth-child(3) a:has(rect.restart)")
    window.wait_for(".log .marked", "worker-1")
    assert "role=worker-1" in window.url
    assert window.run("return document.querySelector('.log').scrollTop") > 0


def test_a_search_is_answered_while_it_is_written_and_ticks_stay(corpus: Corpus, site: str, window: Browser) -> None:
    for number in range(4):
        corpus.job(f"job_{number}", ago=100.0 * (number + 1), arguments=[f"--rate={number}"])
    window.open(site)
    window.wait_for("#list", "job_3")
    window.click("tbody tr:nth-child(3) input")
    window.write("#q", "rate=2")
    window.wait_until(lambda: "job_3" not in window.text("#list"))
    assert "job_2" in window.text("#list")
    assert window.run("return document.querySelector('#list input').checked")
    assert window.url.endswith("q=rate%3D2")
    corpus.job("job_4", arguments=["--rate=2"])
    window.wait_for("#list", "job_4")
    assert window.run("return document.querySelectorAll('#list input:checked').length") == 1
    window.click(".actions button")
    window.wait_for("#runs", "job_2")
    assert window.log() == []


def test_lists_lanes_and_logs_are_there_without_javascript(corpus: Corpus, window: Browser) -> None:
    # Before the console starts: a list that does not follow by itself may be a second old.
    write_census(corpus)
    window.without_javascript()
    with console(corpus.jobs) as site:
        window.open(site)
        window.write("#q", "census")
        window.click(".search button")
        window.wait_for("#list", "census_7")
        window.click("#list .name a")
        window.wait_for("#log .log", "step = 9400")
        assert "The plots need JavaScript" in window.text("#curves")
        assert len(window.find("#lanes rect")) > 30
        window.write("#text", "SIGKILL")
        window.click("#log form button")
        window.wait_for("#log .log", "starting it again")
        assert "step = 9400" not in window.text("#log .log")


def test_nothing_hostile_runs(corpus: Corpus, site: str, window: Browser) -> None:
    write_hostile(corpus)
    corpus.job("sane")
    for page in ("/", "/page/job?id=job:hostile", "/page/compare?id=job:hostile&id=job:sane"):
        window.open(f"{site}{page}")
        if "id=" in page:
            window.wait_until(lambda: drawn(window) >= 2)
        assert window.run("return typeof window.hacked") == "undefined"
        assert window.log() == []


@pytest.mark.parametrize("width", [400, 800, 1280])
def test_it_fits_a_screen(corpus: Corpus, site: str, window: Browser, width: int) -> None:
    write_census(corpus)
    write_hostile(corpus)
    window.resize(width, 900)
    jobs = ("job?id=job:census_7", "job?id=job:hostile", "compare?id=job:hostile&id=job:census_7")
    for page in ("/", *(f"/page/{one}" for one in jobs)):
        window.open(f"{site}{page}")
        window.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert window.run("return document.documentElement.scrollWidth") <= width, page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_the_guide(corpus: Corpus, site: str, window: Browser, scheme: str, tmp_path: Path) -> None:
    write_census(corpus)
    ended = [(0.05, 0.893, "SUCCEEDED"), (0.1, 0.902, "SUCCEEDED"), (0.4, 0.871, "FAILED")]
    for number, (rate, auc, state) in enumerate(ended, 4):
        write_earlier(corpus, f"census_{number}", rate, auc, state, ago=86400.0 * (7 - number))
    window.prefer(scheme)
    folder = Path(PICTURES or tmp_path)
    for name, page, height in (
        ("jobs", "/", 560),
        ("job", "/page/job?id=job:census_7", 1340),
        ("compare", "/page/compare?id=job:census_4&id=job:census_5&id=job:census_6", 900),
    ):
        window.resize(1100, height)
        window.open(f"{site}{page}")
        if name != "jobs":
            window.wait_until(lambda: drawn(window) >= 2)
            window.wait_until(lambda: len(window.find(".chart[data-drawn]")) == len(window.find(".chart")))
        background = window.run("return getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(","))) < 380) is (scheme == "dark")
        # The folder and the port are others each time.
        window.run("document.querySelector('.address').textContent = '127.0.0.1:8600'")
        window.run("const where = document.querySelector('#jobs-in'); if (where) where.textContent = '/home/me/jobs'")
        window.screenshot(folder / f"console_{name}_{scheme}.png")
        assert (folder / f"console_{name}_{scheme}.png").stat().st_size > 10_000


def write_earlier(corpus: Corpus, name: str, rate: float, auc: float, state: str, *, ago: float) -> None:
    """Write a job that has ended."""
    began, noise = corpus.now - ago, random.Random(name)

    def loss(step: int) -> float:
        return 0.28 + rate / 8 + 0.4 * 2.0 ** (-step * rate / 30)

    reason = "" if state == "SUCCEEDED" else "chief-0 ended with status 2. chief-0 said: the loss is NaN at step 2410."
    corpus.job(
        name,
        ago=ago,
        arguments=["--train-steps", "3000", f"--learning-rate={rate}", "--units", "64" if rate == 0.4 else "128,64"],
        events=[
            {"kind": "submitted", "time": 0.0, "state": "QUEUED"},
            {"kind": "started", "time": 2.0, "state": "RUNNING", "role": "chief-0", "pid": 1},
            {"kind": "ended", "time": 900.0, "state": state, "reason": reason},
        ],
    )
    steps = range(0, 3000 if state == "SUCCEEDED" else 2400, 10)
    corpus.curves(
        corpus.output(name),
        {"loss": lambda step: loss(step) + noise.gauss(0, 0.012)},
        steps=steps,
        began=began + 10,
        secs_per_step=0.3,
    )
    corpus.curves(
        corpus.output(name) / "eval",
        {"auc": lambda step: auc - 0.1 * 2 ** (-step * rate / 40), "loss": lambda step: loss(step) + 0.015},
        steps=[step for step in range(300, 3001, 300) if step <= steps[-1] + 10],
        began=began + 100,
        secs_per_step=0.3,
    )
    corpus.checkpoints(name, {steps[-1] + 10: began + 890}, 3000)
