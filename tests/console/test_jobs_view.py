"""The list of jobs and runs: what it says of each, search, pages, and directories that are not as they should be."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.console.conftest import Visit
from tests.console.corpus import Corpus, write_census
from tests.console.pages import Page
from torch_estimator.activity.timeline import FOLDER, Change, Spent
from torch_estimator.console import index as index_module
from torch_estimator.console import sources as sources_module
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import JobDirectory
from torch_estimator.jobs.kinds import status_of


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the files at each request."""
    for module, name in (
        (index_module, "_FRESH_SECS"),
        (index_module, "_OVER_SECS"),
        (sources_module, "_NAMES_SECS"),
        (sources_module, "_RUNS_SECS"),
        (sources_module, "_REST"),
    ):
        monkeypatch.setattr(module, name, 0.0 if name == "_REST" else -1.0)


def ended(corpus: Corpus, name: str, *, state: str = "SUCCEEDED", reason: str = "", **spec: object) -> JobDirectory:
    events = [
        {"kind": "submitted", "time": 0.0, "state": "QUEUED"},
        {"kind": "ended", "time": 9.0, "state": state, "reason": reason},
    ]
    return corpus.job(name, events=events, **spec)  # type: ignore[arg-type]


def names_in(page: Page) -> list[str]:
    return [found["href"].rpartition("%3A")[2] for found in page.all("a", href="/page/job?id=job%3A")]


def test_a_job_that_runs_is_shown_with_its_state_progress_time_left_and_best_metric(
    corpus: Corpus, visit: Visit
) -> None:
    write_census(corpus)
    page = Page(visit(corpus.jobs).get("/"))
    assert "census_7 local, STANDARD_1 running 40 min ago 9,4" in page.text
    assert "of 12,000" in page.text
    assert "10 min" in page.text
    assert "auc 0.9" in page.text
    (progress,) = page.all("progress")
    assert 0.75 < float(progress["value"]) < 0.8


def test_whom_a_job_waits_for_is_in_the_list(corpus: Corpus, visit: Visit) -> None:
    write_census(corpus)
    (path,) = corpus.output("census_7").glob("activity/chief-0.*")
    with path.open("a") as file:
        file.write('{"time": 1e9, "state": "waiting", "waits_for": ["ps-0", "ps-1"]}\n')
    assert "waits for ps-0, ps-1" in Page(visit(corpus.jobs).get("/")).text


def test_after_the_end_the_step_is_the_one_that_was_recorded_last(corpus: Corpus, visit: Visit) -> None:
    ended(corpus, "census", state="FAILED", reason="It failed.")
    output = corpus.output("census")
    corpus.curves(output, {"loss": float}, steps=range(1, 152, 10), began=corpus.now - 200, secs_per_step=1)
    began = corpus.now - 200
    changes = [Change(time=began, state="training"), Change(time=began + 150, state="ended", failed=True)]
    corpus.timeline("census", "chief-0", 1, changes, [Spent(time=began + 150, step=157)])
    site = visit(corpus.jobs)
    for page in ("/", "/page/job?id=job:census"):
        assert " 157 " in Page(site.get(page)).text


def test_a_job_without_a_launcher_of_which_nothing_was_heard_for_long_is_said_not_to_live(
    corpus: Corpus, visit: Visit
) -> None:
    elsewhere = {**corpus.launched(), "host": "node-7", "place": "other"}
    started = {"kind": "started", "time": 1.0, "state": "RUNNING", "role": "chief-0"}
    for name, events in (("copied", [elsewhere, started]), ("half", [started])):
        corpus.log(corpus.job(name, events=events), "chief-0", [(corpus.now - 1800, "the last line")])
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(corpus.now - 1800))
        site = visit(corpus.jobs)
        page = Page(site.get(f"/page/job?id=job:{name}"))
        assert re.search(rf"running( on node-7)?, no sign of life since {since}", page.text)
        assert "its launcher cannot be seen from here; it may have been killed." in page.text
        assert f"no sign of life since {since}" in Page(site.get("/?q=running")).text


@pytest.mark.parametrize("what", ["launcher", "log", "timeline"])
def test_a_job_of_which_something_was_heard_runs(corpus: Corpus, visit: Visit, what: str) -> None:
    elsewhere = {**corpus.launched(), "host": "node-7", "place": "other"}
    started = {"kind": "started", "time": 1.0, "state": "RUNNING", "role": "chief-0"}
    job = corpus.job("live", events=[corpus.launched() if what == "launcher" else elsewhere, started])
    if what == "log":
        corpus.log(job, "chief-0", [(corpus.now - 9, "the last line")])
    elif what == "timeline":
        corpus.timeline(
            "live", "chief-0", 1, [Change(time=corpus.now - 99, state="training")], [Spent(time=corpus.now)]
        )
    assert "no sign of life" not in Page(visit(corpus.jobs).get("/")).text


def test_the_newest_jobs_come_first_and_older_ones_on_further_pages(corpus: Corpus, visit: Visit) -> None:
    for number in range(120):
        corpus.job(f"job_{number}", ago=1000.0 * (number + 1))
    site = visit(corpus.jobs)
    shown = [names_in(Page(site.get("/", params={"page": page}))) for page in (1, 2, 3, 99)]
    assert shown[0] + shown[1] + shown[2] == [f"job_{number}" for number in range(120)]
    assert shown[3] == shown[2]
    assert Page(site.get("/?page=x")).links("page=2") == ["/?page=2"]


def test_a_search_looks_at_names_states_arguments_and_labels_but_not_at_secrets(corpus: Corpus, visit: Visit) -> None:
    ended(corpus, "first", arguments=["--learning-rate", "0.125", "--password", "hidden1"], labels={"team": "growth"})
    ended(corpus, "second", state="FAILED", arguments=["--key=hidden2", "--odd", "hidden3"], secret_arguments=["--odd"])
    site = visit(corpus.jobs)
    site.get("/")
    for text, found in {
        "FIRST": ["first"],
        "rate=0.125": ["first"],
        "succeeded growth": ["first"],
        "failed growth": [],
        "failed": ["second"],
        "hidden1": [],
        "hidden2": [],
        "hidden3": [],
        "local": ["first", "second"],
    }.items():
        assert sorted(names_in(Page(site.get("/", params={"q": text})))) == found, text
    assert "Nothing has “zz”" in Page(site.get("/?q=zz")).text


def test_a_search_says_what_was_not_looked_at_yet(
    corpus: Corpus, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        ended(corpus, f"job_{number}")
    assert names_in(Page(visit(corpus.jobs).get("/?q=job"))) == ["job_0", "job_1", "job_2"]
    monkeypatch.setattr("torch_estimator.console.index._MOST_SECS", 0.0)
    assert "3 of 3 are still to be searched" in Page(visit(corpus.jobs).get("/?q=job")).text
    site = visit(corpus.jobs, in_background=True)
    deadline = time.monotonic() + 60
    while names_in(Page(site.get("/?q=job"))) != ["job_0", "job_1", "job_2"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_first_look_does_not_wait_for_what_takes_long(
    corpus: Corpus, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(corpus, "first")
    site = visit(corpus.jobs)
    monkeypatch.setattr(index_module, "_MOST_SECS", -1.0)
    page = Page(site.get("/"))
    assert names_in(page) == ["first"]
    assert "being read …" in page.text
    monkeypatch.undo()
    assert "succeeded" in Page(site.get("/")).text


def test_a_damaged_job_is_said_and_the_others_are_there(corpus: Corpus, visit: Visit) -> None:
    ended(corpus, "good")
    (corpus.jobs / "empty").mkdir()
    for name, content in (("half", '{"name": "half", "crea'), ("other", '["\\ud800"]'), ("deep", "[" * 100_000)):
        (corpus.jobs / name).mkdir()
        (corpus.jobs / name / "job.json").write_text(content)
    events = Path(ended(corpus, "events").url) / "events"
    (events / "00000002.json").write_text("")
    (corpus.jobs / "file").write_text("no job")
    (corpus.jobs / "unstudied").mkdir()
    study = ended(corpus, "unstudied", study={"odd": True})
    site = visit(corpus.jobs)
    page = Page(site.get("/"))
    assert sorted(names_in(page)) == ["deep", "empty", "events", "good", "half", "other", "unstudied"]
    assert "half/job.json is damaged" in page.text
    assert "there is no job empty" in page.text
    for name in names_in(page):
        answer = site.get("/page/job", params={"id": f"job:{name}"})
        assert answer.status_code in (200, 404), name
    assert study.name in page.text


def test_jobs_that_are_resumed_or_removed_are_seen(corpus: Corpus, visit: Visit) -> None:
    job = ended(corpus, "first")
    other = ended(corpus, "other")
    site = visit(corpus.jobs)
    assert Page(site.get("/")).text.count("succeeded") == 2
    job.add("submitted", "QUEUED")
    assert "queued" in Page(site.get("/")).text
    Path(other.url).rename(corpus.base / "away")
    assert names_in(Page(site.get("/"))) == ["first"]
    answer = site.get("/page/job?id=job:other")
    assert (answer.status_code, "it may have been removed" in answer.text) == (404, True)


@pytest.mark.parametrize("id", ["", "job:", "job:..", "job:../jobs", "run:.", "run:../x", "trial:a/1", "x", "job:a/b"])
def test_an_id_that_names_nothing_gets_a_sentence(corpus: Corpus, visit: Visit, id: str) -> None:
    ended(corpus, "first")
    site = visit(corpus.jobs, logdir=corpus.base / "none")
    for page in ("job", "now", "points", "follow"):
        assert site.get(f"/page/{page}", params={"id": id}).status_code == 404
    assert site.get("/page/compare", params={"id": id}).status_code == 200


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("none", "none cannot be read: No such file or directory. --jobs names another directory."),
        ("file", "file cannot be read: Not a directory. --jobs names another directory."),
        ("memory://console_none", "does not exist, or nothing is in it. --jobs names another directory."),
        ("odd://x", "odd://x cannot be used: Protocol not known: odd"),
    ],
)
def test_a_directory_that_cannot_be_listed_is_said_and_the_rest_works(
    corpus: Corpus, visit: Visit, given: str, sentence: str
) -> None:
    (corpus.base / "file").write_text("")
    corpus.curves(corpus.base / "logs" / "a", {"loss": lambda step: 1.0}, steps=range(3), began=1e9, secs_per_step=1)
    site = visit(given if "://" in given else corpus.base / given, logdir=corpus.base / "logs")
    page = Page(site.get("/"))
    assert page.status == 200
    assert sentence in page.text
    assert page.links("id=run%3Aa") == ["/page/job?id=run%3Aa"]
    assert site.get("/page/job?id=run:a").status_code == 200


def test_directories_of_event_files_are_listed_each_with_its_evaluations(corpus: Corpus, visit: Visit) -> None:
    logs = corpus.base / "logs"
    for place in ("ours", "ours/eval", "keras/train", "keras/validation", "deep/er/run"):
        auc = {"auc": lambda step: 0.75} if place.endswith(("eval", "validation")) else {"loss": lambda step: 2.0}
        corpus.curves(logs / place, auc, steps=range(0, 100, 10), began=1e9, secs_per_step=1)
    site = visit(None, logdir=logs)
    page = Page(site.get("/"))
    found = {one["href"] for one in page.all("a", href="/page/job?id=run%3A")}
    assert found == {f"/page/job?id={quote(f'run:{one}', safe='')}" for one in ("ours", "keras", "deep/er/run")}
    assert page.text.count("auc 0.75") == 2
    keras = Page(site.get("/page/job?id=run:keras"))
    assert "validation 0.75" in keras.text
    assert "training 2" in keras.text


def test_the_best_of_all_evaluations_is_shown_or_of_how_many_it_is(corpus: Corpus, visit: Visit) -> None:
    corpus.job("whole")
    steps = range(3000)
    for began in (corpus.now - 900, corpus.now - 500):
        corpus.curves(
            corpus.output("whole") / "eval",
            {"accuracy": lambda step: 0.9 if step == 30 else 0.2},
            steps=steps[: 300 if began < corpus.now - 600 else 3000],
            began=began,
            secs_per_step=0.1,
        )
    corpus.job("long")
    corpus.curves(
        corpus.output("long"),
        {"accuracy": lambda step: 1 - step / 9e3},
        steps=steps,
        began=corpus.now - 400,
        secs_per_step=0.1,
    )
    text = Page(visit(corpus.jobs).get("/")).text
    assert "accuracy 0.9 " in text
    (count,) = re.findall(r"accuracy 0\.\d+ of the last (\d+)", text)
    assert 50 < int(count) < 1000


def test_a_job_that_cannot_be_read_at_all_does_not_cost_the_list(corpus: Corpus, visit: Visit) -> None:
    corpus.job("sane")
    corpus.job("deep", events=[corpus.launched()])
    corpus.timeline("deep", "chief-0", 1, [Change(time=corpus.now, state="training")], [Spent(time=corpus.now)])
    (path,) = (corpus.output("deep") / FOLDER).iterdir()
    with open(path, "a") as file:
        file.write("[" * 5000 + "\n")
    site = visit(corpus.jobs, in_background=True)
    for _ in range(2):
        text = Page(site.get("/")).text
        assert "sane" in text and "deep" in text and "being read" not in text
    assert site.get("/page/job?id=job:deep").status_code == 200


def test_directories_whose_names_are_no_text_are_said(corpus: Corpus, visit: Visit, tmp_path: Path) -> None:
    for name in ("sane", "bad\udcff", "sane/eval_\udcff"):
        folder = tmp_path / "logs" / name
        corpus.curves(folder, {"loss": float}, steps=range(9), began=1e9, secs_per_step=1)
    site = visit(None, logdir=tmp_path / "logs")
    text = Page(site.get("/")).text
    assert "sane" in text and "names are not UTF-8 are not shown" in text
    for page in ("job", "now", "compare", "follow", "points"):
        assert site.get(f"/page/{page}?id=run:sane&name=loss").status_code == 200, page


def test_of_very_many_jobs_the_newest_are_listed(corpus: Corpus, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        corpus.job(f"job_{number}", ago=1000.0 * (number + 1))
    monkeypatch.setattr(sources_module, "MOST_LISTED", 3)
    monkeypatch.setattr("torch_estimator.console.jobs_view.MOST_LISTED", 3)
    page = Page(visit(corpus.jobs).get("/"))
    assert names_in(page) == ["job_0", "job_1", "job_2"]
    assert "Only the newest 3 are listed" in page.text


def test_with_a_token_file_only_who_has_a_token_sees_anything(corpus: Corpus, visit: Visit) -> None:
    ended(corpus, "first")
    (corpus.base / "tokens").write_text("s3cret\n")
    site = visit(corpus.jobs, token_file=str(corpus.base / "tokens"))
    for page in ("/", *(f"/page/{one}?id=job:first" for one in ("job", "now", "compare", "points", "follow"))):
        answer = site.get(page, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/page/login")
    assert "first" in site.get("/", headers={"authorization": "Bearer s3cret"}).text


def test_a_job_whose_output_cannot_be_reached_is_shown_without_it(corpus: Corpus, visit: Visit) -> None:
    job = ended(corpus, "far", job_dir="nosuchstore://bucket/x")
    corpus.log(job, "chief-0", [(1e9, "a line")])
    site = visit(corpus.jobs)
    assert "succeeded" in Page(site.get("/")).text
    page = Page(site.get("/page/job?id=job:far"))
    assert "Curves and lanes are missing: nosuchstore://bucket/x cannot be used: Protocol not known" in page.text
    assert "a line" in page.text


def test_links_to_what_is_listed_anyway_are_not_followed(corpus: Corpus, visit: Visit) -> None:
    logs = corpus.base / "logs"
    corpus.curves(logs / "a" / "first", {"loss": float}, steps=range(3), began=1e9, secs_per_step=1)
    corpus.curves(corpus.base / "elsewhere", {"loss": float}, steps=range(3), began=1e9, secs_per_step=1)
    (logs / "a" / "loop").symlink_to(logs)
    (logs / "up").symlink_to(corpus.base)
    (logs / "again").symlink_to(logs / "a")
    (logs / "linked").symlink_to(corpus.base / "elsewhere")
    page = Page(visit(None, logdir=logs).get("/"))
    assert sorted(one["href"] for one in page.all("a", href="id=run")) == [
        "/page/job?id=run%3Aa%2Ffirst",
        "/page/job?id=run%3Alinked",
    ]


def test_a_job_of_an_unknown_kind_of_target_gets_a_sentence(corpus: Corpus, visit: Visit) -> None:
    corpus.job("odd", settings={"kind": "moon"}, events=[corpus.launched()])
    corpus.job("none", settings={}, events=[corpus.launched()])
    page = Page(visit(corpus.jobs).get("/"))
    assert sorted(names_in(page)) == ["none", "odd"]
    with pytest.raises(InvalidValueError, match="names the kind of target 'moon', but there are local, slurm, ray"):
        status_of(JobDirectory(str(corpus.jobs), "odd"))
