"""The console beside TensorBoard and MLflow over the same runs: `scripts/bench console`.

1,000 runs of 20 curves of 1,000 points, and 100 jobs of 8 roles with 10,000 lines each, are written once into
`.bench/console`. All pages are looked at in Chromium on this machine (Debian's packages chromium and chromium-driver).

- *list*: from the command of a server to the first rows of its list; then the server's time for it,
  DOMContentLoaded, and the first rows once more. TensorBoard's list is not complete then, and MLflow's has 100 runs.
- *charts*: ten runs of 20 charts, compared on one page that is scrolled through.
- *pages*: memory of the console while 20 pages are open, one of them is scrolled through, and a job writes.
- *live*: from the write of a log line, a change of a lane and a point of a curve until it is on the screen.
- *access*: what axe-core finds on each view. It comes from npm once, into `.bench/console`.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx

from benchmarks.pages import axe
from benchmarks.pages.corpus import Corpus, ready_corpus
from benchmarks.pages.curves import run_name
from benchmarks.pages.live import LiveJob
from benchmarks.pages.page_times import (
    Scrolled,
    content_loaded_secs,
    note_at_start,
    note_change,
    note_charts,
    note_when,
    scroll_through,
    seen_at,
    take_notes,
)
from benchmarks.pages.sites import Site, console, mlflow, running, tensorboard
from benchmarks.peers import environment
from benchmarks.protocol import (
    Measured,
    SideError,
    Verdict,
    alternate,
    at_most,
    conclude,
    show,
    show_machine,
    table,
)
from tests.browser import browser, is_installed

PEERS = ("tensorboard", "mlflow")
PARTS = ("list", "charts", "pages", "live", "access")
CHARTS = "#curves .chart"
_BROWSER_STARTS_SECS = 2.0
_A_RUN = r"(run|job)-\d"


def look_at_list(site: Site, log: Path) -> dict[str, Any]:
    """Start a site and look at its list, cold and warm; return seconds."""
    with browser() as window:
        take_notes(window)
        note_at_start(window, "rows", site.rows, _A_RUN)
        # A visitor's browser has started long ago.
        time.sleep(_BROWSER_STARTS_SECS)
        with running(site, log) as server, httpx.Client(base_url=server.url, trust_env=False, timeout=120) as client:
            opened_at = time.time()
            window.open(server.url + site.page)
            cold, first_look = seen_at(window, "rows") - server.started_at, seen_at(window, "rows") - opened_at
            cpu = server.cpu_secs()
            answers = []
            for _ in range(5):
                started = time.perf_counter()
                try:
                    site.ask(client).raise_for_status()
                except httpx.HTTPError as error:
                    raise SideError(f"{site.name} did not answer: {error}") from error
                answers.append(time.perf_counter() - started)
            # Leave the page, since an address with another fragment alone does not load it again.
            window.open("about:blank")
            opened_at = time.time()
            window.open(server.url + site.page)
            warm = seen_at(window, "rows") - opened_at
            return {
                "cold": cold,
                "cpu": cpu,
                "first_look": first_look,
                "server": statistics.median(answers),
                "loaded": content_loaded_secs(window),
                "warm": warm,
                "memory": server.memory_mb(),
            }


def lists(corpus: Corpus, sites: dict[str, Site], args: argparse.Namespace) -> list[Verdict]:
    """The list of all runs, cold and warm, on each side."""
    log = corpus.folder / "server.log"
    looks = {key: functools.partial(look_at_list, site, log) for key, site in sites.items()}
    found = alternate(looks, 1 if args.quick else args.rounds, "list")
    keys = ("cold", "cpu", "first_look", "server", "loaded", "warm", "memory")
    first = ["s from the command to rows", "its CPU s", "s from the address to rows"]
    header = ["side", *first, "server s", "DOMContentLoaded s", "s from the address to rows", "MB"]
    rows = [[sites[key].name, *(found.median(key, one) for one in keys)] for key in found.results]
    show("list", f"the list of {corpus.runs:,} runs; first after the start, then again", table(header, rows))
    return [
        at_most("s from the command to the list", 2, found.median("ours", "cold")),
        at_most("server s of the list", 0.3, found.median("ours", "server")),
        at_most("s to DOMContentLoaded", 1, found.median("ours", "loaded")),
        at_most("from the command to the list, over the faster peer's", 1 / 5, over_faster(found, "cold")),
        at_most("list opened right after the start, over the faster peer's", 1 / 5, over_faster(found, "first_look")),
        at_most("server time of the list, over the faster peer's", 1 / 5, over_faster(found, "server")),
        at_most("list on the screen again, over the faster peer's", 1 / 5, over_faster(found, "warm")),
    ]


def over_faster(found: Measured, key: str) -> float | None:
    """Return our time over a peer's, paired by round, of the peer over which it is more."""
    return max((ratio for peer in PEERS if (ratio := found.ratio(key, "ours", peer)) is not None), default=None)


def page(view: str, *ids: str) -> str:
    """Return the address of a view of runs or jobs."""
    return f"/page/{view}?{urlencode([('id', one) for one in ids])}"


def compare_page(corpus: Corpus) -> str:
    """Return the address at which ten runs are compared."""
    return page("compare", *(f"run:{run_name(run)}" for run in range(10)))


def job_pages(corpus: Corpus) -> list[str]:
    """Return the addresses of ten jobs."""
    return [page("job", f"job:{corpus.job_name(job)}") for job in range(10)]


def charts(corpus: Corpus, sites: dict[str, Site], args: argparse.Namespace) -> list[Verdict]:
    """Ten runs of 20 charts, over one another and one after the other, scrolled through."""
    found: dict[str, list[Scrolled]] = {"ten runs over one another": [], "ten jobs, one after the other": []}
    with running(sites["ours"], corpus.folder / "server.log") as server, browser() as window:
        take_notes(window)
        note_charts(window, CHARTS)
        for _ in range(1 if args.quick else args.rounds):
            for scrolled, paths in zip(found.values(), ([compare_page(corpus)], job_pages(corpus)), strict=True):
                for path in paths:
                    window.open(server.url + path)
                    scrolled.append(scroll_through(window))
    rows = []
    for name, scrolled in found.items():
        secs = [secs for one in scrolled for secs in one.secs]
        seen, longest = sum(one.charts for one in scrolled), max(one.longest_ms for one in scrolled)
        rows.append([name, str(seen), median(secs), max(secs, default=None), longest])
    header = ["page", "charts seen", "s until drawn", "s, the slowest", "longest task ms"]
    show("charts", "charts scrolled through at 1,200 pixels a second", table(header, rows))
    every = [one for scrolled in found.values() for one in scrolled]
    missing = sum(one.charts - len(one.secs) for one in every)
    slowest = max((secs for one in every for secs in one.secs), default=None)
    longest = max(one.longest_ms for one in every)
    return [
        at_most("charts that were in view and never drawn", 0, missing),
        at_most("s from a chart's coming into view until it is drawn, the slowest", 0.3, slowest),
        at_most("ms of the longest task of the browser, where none is under 50", 100, longest),
    ]


def pages(corpus: Corpus, sites: dict[str, Site], args: argparse.Namespace) -> list[Verdict]:
    """Memory of the console with 20 pages open."""
    secs = 60 * (1 if args.quick else args.minutes)
    paths = [page("job", "job:live")] * 8 + job_pages(corpus)[:4] + ["/"] * 4 + [compare_page(corpus)] * 4
    memory, answers, longest = [], [], 50.0
    with (
        LiveJob(corpus),
        running(sites["ours"], corpus.folder / "server.log") as server,
        browser() as window,
        httpx.Client(base_url=server.url, trust_env=False, timeout=120) as visitor,
    ):
        for number, path in enumerate(paths):
            if number:
                window.new_window()
            take_notes(window)
            window.open(server.url + path)
        hidden = 0
        for one in window.windows():
            window.switch(one)
            hidden += window.run("return document.hidden")
        began = time.monotonic()
        while time.monotonic() - began < secs:
            window.switch(window.windows()[-1])
            window.open(server.url + compare_page(corpus))
            longest = max(longest, scroll_through(window).longest_ms)
            started = time.perf_counter()
            visitor.get("/").raise_for_status()
            answers.append(time.perf_counter() - started)
            memory.append(server.memory_mb())
        cpu = server.cpu_secs() / (time.monotonic() - began)
    half = len(memory) // 2
    grown = statistics.median(memory[half + half // 2 :]) - statistics.median(memory[half // 2 : half + 1])
    rows = [
        ["MB at first", memory[0]],
        ["MB at most", max(memory)],
        ["MB more in the last quarter than in the second", grown],
        ["s of the list for one more visitor, median", statistics.median(answers)],
        ["s of the list for one more visitor, at most", max(answers)],
        ["of the pages, hidden for Chromium", hidden],
        ["cores that the console used", cpu],
    ]
    show(
        "pages",
        f"{len(paths)} pages open for {secs / 60:g} minutes beside a job that writes",
        table(["what", ""], rows),
    )
    return [
        at_most("MB of the console with 20 pages open", 200, max(memory)),
        at_most("MB more in the last quarter of the time than in the second", 10, grown),
        at_most("s of the list for one more visitor, median", 0.3, statistics.median(answers)),
    ]


def live(corpus: Corpus, sites: dict[str, Site], args: argparse.Namespace) -> list[Verdict]:
    """Seconds from a write until it is on the screen."""
    found: dict[str, list[float]] = {"a line of a log": [], "a change of a lane": [], "a point of a curve": []}
    lines, lanes, points = found.values()
    with (
        LiveJob(corpus, writes_points=False) as job,
        running(sites["ours"], corpus.folder / "server.log") as server,
        browser() as window,
    ):
        job.point(1.0)
        take_notes(window)
        window.open(server.url + page("job", "job:live"))
        window.wait_until(lambda: bool(window.find(f"{CHARTS} canvas")))
        moments = random.Random(0)
        for number in range(3 if args.quick else 20):
            # Writes come at any time between two looks of the page.
            time.sleep(moments.uniform(0.5, 2.5))
            note_when(window, f"line {number}", ".log .line", f"marker {number} of the log$")
            lines.append(-job.say(f"marker {number} of the log"))
            lines[-1] += seen_at(window, f"line {number}", 30)
            time.sleep(moments.uniform(0.5, 2.5))
            note_when(window, f"lane {number}", "#lanes title", f"ps-{100 + number}\\b")
            lanes.append(-job.change("waiting", f"ps-{100 + number}"))
            lanes[-1] += seen_at(window, f"lane {number}", 30)
            window.run("document.querySelector(arguments[0]).scrollIntoView()", CHARTS)
            time.sleep(moments.uniform(0.5, 2.5))
            note_change(window, f"point {number}", CHARTS, "data-drawn")
            points.append(-job.point(100.0 + number))
            points[-1] += seen_at(window, f"point {number}", 30)
    rows = [[name, statistics.median(secs), max(secs)] for name, secs in found.items()]
    show("live", "from a write until it is on the screen", table(["what", "s, median", "s, at most"], rows))
    limits = zip(found.items(), (1, 2, 3), strict=True)
    return [at_most(f"s until {name} is on the screen, at most", limit, max(secs)) for (name, secs), limit in limits]


def access(corpus: Corpus, sites: dict[str, Site], args: argparse.Namespace) -> list[Verdict]:
    """What axe-core finds on each view, in both colour schemes and on a narrow screen."""
    script = axe.axe_file() if args.quick else axe.install()
    if script is None or not script.exists():
        print("axe-core is left out: it is not installed, or there is no npm.", file=sys.stderr)
        return [at_most("serious faults that axe-core finds", 0, None)]
    views = {
        "list": "/",
        "search": "/?q=run-001",
        "job": job_pages(corpus)[0],
        "run": page("job", "run:run-0000"),
        "live job": page("job", "job:live"),
        "compare": compare_page(corpus),
        "nothing found": page("job", "job:nobody"),
    }
    rows = []
    with LiveJob(corpus), running(sites["ours"], corpus.folder / "server.log") as server, browser() as window:
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 400)):
            window.prefer(scheme)
            window.resize(width, 900)
            for name, path in views.items():
                window.open(server.url + path)
                time.sleep(1)
                found = axe.faults(window, script.read_text())
                rows.append([f"{name}, {scheme}, {width} px", str(len(found)), "; ".join(sorted(set(found))[:4])])
    show("access", f"serious faults that axe-core {axe.VERSION} finds", table(["view", "faults", "which"], rows))
    return [at_most("serious faults that axe-core finds", 0, sum(int(row[1]) for row in rows))]


def median(values: Sequence[float]) -> float | None:
    """Return the median, if there is any value."""
    return statistics.median(values) if values else None


def sites_of(corpus: Corpus, peers: Sequence[str], *, install: bool) -> dict[str, Site]:
    """Return the console and the peers that are there."""
    makers: dict[str, Callable[[], Site]] = {
        "tensorboard": lambda: tensorboard(corpus.logdir),
        "mlflow": lambda: mlflow(corpus.folder, corpus.runs),
    }
    found = {"ours": console(corpus.jobs_dir, corpus.logdir)}
    for peer in peers:
        if install or environment.is_installed(peer):
            found[peer] = makers[peer]()
        else:
            print(f"{peer} is left out: python -m benchmarks.peers.environment {peer} installs it.", file=sys.stderr)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and the verdicts; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench console", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="whom to compare with; by default both")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    add("--rounds", type=int, default=3, help="how often every side shows its list")
    add("--minutes", type=float, default=60.0, help="for how long pages are open")
    add("--quick", action="store_true", help="a tenth of the runs and jobs, to see that it works; installs nothing")
    args = parser.parse_args(arguments)
    if not is_installed():
        parser.error("Chromium is not installed (on Debian: apt-get install chromium chromium-driver)")
    corpus = ready_corpus(environment.folder("console"), quick=args.quick)
    sites = sites_of(corpus, args.peers if "list" in args.parts else (), install=not args.quick)
    show_machine({peer: environment.REQUIREMENTS[peer][0].partition("==")[2] for peer in sites if peer in PEERS})
    parts = {"list": lists, "charts": charts, "pages": pages, "live": live, "access": access}
    return conclude([one for name in args.parts for one in parts[name](corpus, sites, args)], quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
