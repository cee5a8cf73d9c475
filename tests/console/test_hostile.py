"""What programs wrote is text: it neither becomes a part of a page nor hides what a page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.console.conftest import Visit
from tests.console.corpus import Corpus
from tests.console.pages import Page
from torch_estimator.activity.timeline import Change, Spent
from torch_estimator.console.texts import HIDDEN, arguments_of, clean

TAG = "<script>window.hacked=1</script>"
HOSTILE = f"\x1b[31m{TAG}\"'><img src=x onerror=window.hacked=1>\x1b]8;;http://evil.example\x07&amp;\u202egnp.exe\x00\ud800{{{{7*7}}}}"


def write_hostile(corpus: Corpus) -> None:
    """Write a job that has hostile text wherever a program or a person can put some."""
    sane = HOSTILE.replace("\ud800", "").replace("\x00", "")
    job = corpus.job(
        "hostile",
        ago=500,
        arguments=[f"--{sane}", sane, sane, f"--rate={sane}"],
        labels={sane: sane},
        module_name=sane,
        folder=f"/{sane}",
        tier=sane,
        target=sane,
        events=[
            corpus.launched(),
            {"kind": "started", "time": 1.0, "state": "RUNNING", "role": "chief-0", "pid": 1},
            {"kind": "started", "time": 1.0, "state": "RUNNING", "role": sane, "pid": 1, "reason": sane},
            {"kind": "exited", "time": 5.0, "role": "chief-0", "status": 1, "reason": sane},
            {"kind": "ended", "time": 400.0, "state": "FAILED", "status": 1, "reason": sane},
        ],
    )
    output = corpus.output("hostile")
    corpus.curves(output, {sane: float, "loss": float}, steps=range(20), began=corpus.now - 400, secs_per_step=1)
    corpus.curves(
        output / 'eval_"><script>x<\x85script>', {"auc": float}, steps=range(9), began=corpus.now - 300, secs_per_step=1
    )
    began = corpus.now - 450
    changes = [Change(time=began, state="starting"), Change(time=began + 9, state=sane, waits_for=(sane,), reason=sane)]
    changes += [
        Change(time=began + 20, state="waiting", waits_for=(sane,), step=3),
        Change(time=began + 40, state="ended"),
    ]
    corpus.timeline("hostile", "chief-0", 1, changes, [Spent(time=began + 60, computing=9.0)])
    (output / "checkpoint").write_text(
        json.dumps(
            {
                "model_checkpoint_path": f"model.ckpt-{sane}",
                "all_model_checkpoint_paths": [f"model.ckpt-{sane}"],
                "all_model_checkpoint_timestamps": [began + 50],
            }
        )
    )
    (output / "export" / '"><b>' / "1764318000").mkdir(parents=True)
    corpus.log(job, "chief-0", [(began, HOSTILE), (began + 1, "x" * 20_000), (began + 2, "50 %\r100 %")])
    corpus.log(job, '"><i>x', [(began, HOSTILE)])


PAGES = (
    "/",
    "/?q=<script>",
    "/page/job?id=job:hostile",
    "/page/job?id=job:hostile&tag=%22><script>&text=<b>&role=%22>",
    "/page/job?id=job:hostile&at=1",
    "/page/now?id=job:hostile",
    "/page/compare?id=job:hostile&id=job:<script>",
    "/page/compare?id=job:hostile&id=job:sane&q=<b>",
    "/page/job?id=job:<script>x</script>",
)


@pytest.mark.parametrize("address", PAGES)
def test_no_text_becomes_an_element_or_an_attribute(corpus: Corpus, visit: Visit, address: str) -> None:
    write_hostile(corpus)
    corpus.job("sane")
    site = visit(corpus.jobs)
    answer = site.get(address)
    page = Page(answer)
    scripts = page.all("script")
    assert all(one["src"].startswith("/page/static/") for one in scripts)
    assert len(scripts) in (0, 3)
    assert {name for name, _ in page.elements}.isdisjoint({"b>", "i", "iframe", "object", "style"})
    assert len(page.all("img")) <= 1
    assert not [name for _, found in page.elements for name in found if name.startswith("on") or name == "style"]
    assert all(one["href"].startswith(("/", "?")) for one in page.all("a"))
    # Neither escape sequences nor marks that change the direction of what follows.
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", answer.text)
    assert "{{7*7}}" in answer.text or "49" not in page.text.partition("hostile")[0]
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("address", ["points?name=loss&id=", "follow?id="])
def test_data_for_scripts_is_json_that_no_browser_takes_for_a_page(corpus: Corpus, visit: Visit, address: str) -> None:
    write_hostile(corpus)
    answer = visit(corpus.jobs).get(f"/page/{address}job:hostile")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    json.loads(answer.content.decode())


def test_a_log_line_keeps_what_can_be_read_of_it(corpus: Corpus, visit: Visit) -> None:
    write_hostile(corpus)
    text = Page(visit(corpus.jobs).get("/page/job?id=job:hostile&role=chief-0")).text
    assert TAG in text
    assert "\\u202egnp.exe\\x00" in text
    assert "100 %" in text and "50 %" not in text
    assert "(of a line of 20,000 bytes)" in text


def test_a_job_with_a_hostile_name_is_no_job(corpus: Corpus, visit: Visit) -> None:
    for name in ('"><script>x', "a b", "..\u202e", "x" * 200):
        (corpus.jobs / name).mkdir()
    assert "There are no jobs yet" in Page(visit(corpus.jobs).get("/")).text


def test_runs_below_a_log_directory_may_have_any_name(corpus: Corpus, visit: Visit, tmp_path: Path) -> None:
    name = '"><script>x&y=1#z%2e\u202e'
    corpus.curves(tmp_path / "logs" / name, {"loss": float}, steps=range(9), began=1e9, secs_per_step=1)
    site = visit(None, logdir=tmp_path / "logs")
    (link,) = Page(site.get("/")).links("/page/job?id=run")
    page = Page(site.get(link))
    assert page.status == 200
    assert len(page.all("script")) == 3
    assert "\\u202e" in page.text


NUMBERS = ("1" + 400 * "0", "-1" + 400 * "0", "1e300", "-1e300", "NaN", "Infinity", "-Infinity", "-1")


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_that_no_clock_and_no_counter_has_are_no_reason_to_fail(
    corpus: Corpus, visit: Visit, number: str
) -> None:
    def spoil(path: Path, *keys: str) -> None:
        text = path.read_text()
        for key in keys:
            text, count = re.subn(rf'("{key}": )\[?[-0-9.e]+\]?', rf"\g<1>{number}", text)
            assert count
        path.write_text(text)

    changes = [Change(time=corpus.now - 50, state="training", step=3), Change(time=corpus.now - 9, state="training")]
    for name in ("times", "steps", "head", "job"):
        job = corpus.job(
            name, events=[corpus.launched(), {"kind": "started", "time": 1.0, "role": "chief-0", "pid": 1}]
        )
        corpus.curves(corpus.output(name), {"loss": float}, steps=range(9), began=corpus.now - 40, secs_per_step=1)
        corpus.timeline(name, "chief-0", 1, changes, [Spent(time=corpus.now - 30, step=3), Spent(time=corpus.now)])
        corpus.checkpoints(name, {3: corpus.now - 30}, 100)
        corpus.log(job, "chief-0", [(corpus.now, "line")])
        (timeline,) = (corpus.output(name) / "activity").glob("*.jsonl")
        if name == "times":
            spoil(timeline, "time")
            for path in Path(job.url, "events").iterdir():
                spoil(path, "time")
        elif name == "steps":
            spoil(timeline, "step")
            spoil(corpus.output(name) / "training.json", "max_steps")
        elif name == "head":
            spoil(timeline, "began", "pid", "computing")
        else:
            spoil(Path(job.url, "job.json"), "created")
            (corpus.output(name) / "training.json").write_text(f'{{"run": "x", "max_steps": 9, "began": {number}}}')
            (corpus.output(name) / "checkpoint").write_text(
                '{"model_checkpoint_path": "model.ckpt-1' + 400 * "0" + f'", "all_model_checkpoint_paths": '
                f'["model.ckpt-3"], "all_model_checkpoint_timestamps": [{number}]}}'
            )
    site = visit(corpus.jobs)
    for address in ("/", "/?q=chief", "/page/compare?id=job:times&id=job:job"):
        assert site.get(address).status_code == 200, address
    for name in ("times", "steps", "head", "job"):
        for address in ("job", "now", "follow", "points"):
            answer = site.get(f"/page/{address}?id=job:{name}&name=loss")
            assert answer.status_code < 500, (name, address, answer.text[-2000:])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\sixel", "sixel"),
        ("a\x1b", "a\\x1b"),
        ("a\u2066b\u2028c\ufeff", "a\\u2066b\\u2028c\\ufeff"),
        ("tab\tstays", "tab\tstays"),
        ("10%\r20%\r\n", "20%"),
        ("\ud800", "\\ud800"),
        ("עברית ü 漢字 🙂", "עברית ü 漢字 🙂"),
    ],
)
def test_texts_are_shown_without_what_cannot_be_seen(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_passwords_are_hidden_however_they_are_written() -> None:
    arguments = ["--passwords=1hidden", "--pw", "2hidden", "--bearer=3hidden", "--h", "Authorization: Bearer 4hidden"]
    arguments += ["--conn", "Server=h;Password=5hidden;Port=1", "--sas=6hidden", "--url=postgres://me:7hidden@h/x"]
    shown = arguments_of([*arguments, "--passes=3", "--token-count-column=n"], [])
    assert "hidden" not in str(shown)
    assert shown["--conn"] == f"Server=h;Password={HIDDEN};Port=1"


def test_an_address_with_a_number_of_thousands_of_digits_names_nothing(corpus: Corpus, visit: Visit) -> None:
    corpus.job("study")
    assert visit(corpus.jobs).get("/page/job?id=trial:study/" + 5000 * "9").status_code == 404


def test_a_long_text_is_cut_quickly() -> None:
    for text in ("x" * 10**7, "\x1b]" * 10**6, "\x1b[" * 10**6, "\u202e" * 10**6):
        assert len(clean(text)) < 15_000
