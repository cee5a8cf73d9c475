"""Forms of the console: cancel and resume a job; who may send them, and jobs that have changed meanwhile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.console.conftest import Visit
from tests.console.corpus import Corpus
from tests.console.pages import Page
from tests.console.test_tuning_view import send, write_study
from tests.jobs.conftest import Jobs
from tests.jobs.conftest import jobs as jobs
from torch_estimator.console import index as index_module
from torch_estimator.jobs.directory import JobDirectory
from torch_estimator.tuning.requests import Requests

PATH = "/page/job/change"


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FRESH_SECS", "_OVER_SECS"):
        monkeypatch.setattr(index_module, name, -1.0)


def write_job(corpus: Corpus, state: str = "FAILED", **spec: Any) -> JobDirectory:
    return corpus.job("census", events=[{"kind": "ended", "time": 9.0, "state": state}], **spec)


def test_a_job_is_cancelled_and_resumed(jobs: Jobs, visit: Visit) -> None:
    jobs.program("""
    print("runs", flush=True)
    wait_for("go")
    """)
    jobs.submit("census")
    jobs.wait_for_line("census", "chief-0", "runs")
    console = visit(jobs.folder / "jobs")
    page = "/page/job?id=job:census"
    assert [one["value"] for one in Page(console.get(page)).all("button", name="action")] == ["cancel"]
    answer = send(console, PATH, page, id="job:census", action="cancel")
    assert (answer.status_code, answer.headers["location"]) == (303, "/page/job?id=job%3Acensus")
    assert jobs.wait("census") == "CANCELLED"
    assert [one["value"] for one in Page(console.get(page)).all("button", name="action")] == ["resume"]
    (jobs.folder / "go").touch()
    assert send(console, PATH, page, id="job:census", action="resume").status_code == 303
    assert jobs.wait("census") == "SUCCEEDED"
    assert not Page(console.get(page)).all("button", name="action")


@pytest.mark.parametrize(
    ("state", "spec", "action", "said"),
    [
        ("SUCCEEDED", {}, "cancel", "Job census has ended already: it is SUCCEEDED."),
        ("SUCCEEDED", {}, "resume", "Job census SUCCEEDED, so that nothing is left to do"),
        ("FAILED", {"arguments": ["--token="], "secret_arguments": ["--token"]}, "resume", "The values of --token are"),
        ("FAILED", {"folder": "/gone", "interpreter": "python3"}, "resume", "Job census ran in /gone, which is not"),
        ("FAILED", {"study": {"space": {"parameters": []}}}, "resume", "The trials of census run a function"),
        ("FAILED", {}, "explode", "A job can be cancelled or resumed"),
    ],
)
def test_what_cannot_be_done_with_a_job_is_said_in_a_sentence(
    corpus: Corpus, visit: Visit, state: str, spec: dict[str, Any], action: str, said: str
) -> None:
    job = write_job(corpus, state, **spec)
    console = visit(corpus.jobs)
    console.get("/page/job?id=job:census")
    key = console.cookies["estimator_form"]
    page = Page(console.post(PATH, data={"form_key": key, "id": "job:census", "action": action}))
    assert page.status in (400, 409) and said in page.text
    assert len(job.events()) == 1


def test_a_job_that_was_removed_meanwhile_and_what_is_no_job_are_refused(corpus: Corpus, visit: Visit) -> None:
    job = write_job(corpus)
    console = visit(corpus.jobs, logdir=corpus.base)
    see = "/page/job?id=job:census"
    corpus.curves(corpus.base / "run", {"loss": float}, steps=[1, 2], began=corpus.now, secs_per_step=1.0)
    assert "is no job" in Page(send(console, PATH, see, id="run:run", action="cancel")).text
    key = console.cookies["estimator_form"]
    Path(job.url, "job.json").unlink()
    page = Page(console.post(PATH, data={"form_key": key, "id": "job:census", "action": "resume"}))
    assert page.status == 404 and "there is no job census" in page.text


FORMS = [
    (PATH, {"id": "job:study", "action": "cancel"}),
    ("/page/tuning/ask", {"id": "job:study", "trial": "3", "action": "STOP"}),
    ("/page/tuning/version", {"id": "job:study", "trial": "1", "model": "m"}),
    ("/page/models/default", {"model": "m", "version": "1"}),
]


@pytest.mark.parametrize(("path", "fields"), FORMS)
def test_a_form_of_another_site_or_of_yesterday_changes_nothing(
    tmp_path: Path, visit: Visit, path: str, fields: dict[str, str]
) -> None:
    directory = write_study(tmp_path)
    count = len(directory.job.events())
    console = visit(tmp_path / "jobs", registry=tmp_path / "registry")
    text = console.get("/page/tuning?id=job:study&trial=3").text
    key = re.search(r'name="form_key" value="([^"]+)"', text)
    assert key is not None
    right = {"form_key": key[1], **fields}

    def refused(answer: httpx.Response, said: str) -> None:
        page = Page(answer)
        assert page.status in (401, 403) and said in page.text

    old = "The form is out of date, or another site has sent it"
    refused(console.post(path, data={**right, "form_key": "yesterday"}), old)
    refused(console.post(path, data=right, headers={"sec-fetch-site": "cross-site"}), old)
    refused(console.post(path, data=right, headers={"origin": "http://evil.example"}), old)
    refused(console.post(path, data=right, headers={"host": "evil.example"}), "This page only shows")
    assert len(directory.job.events()) == count
    assert Requests(directory).all() == []
    assert not (tmp_path / "registry").exists()


@pytest.mark.parametrize(("path", "fields"), FORMS)
def test_with_tokens_a_form_needs_one_that_still_counts(
    tmp_path: Path, visit: Visit, path: str, fields: dict[str, str]
) -> None:
    directory = write_study(tmp_path)
    tokens = tmp_path / "tokens"
    tokens.write_text("right\n")
    console = visit(tmp_path / "jobs", token_file=str(tokens))
    assert console.get("/page/tuning?id=job:study").headers["location"] == "/page/login"
    login = re.search(r'name="form_key" value="([^"]+)"', console.get("/page/login").text)
    assert login is not None
    right = {"form_key": login[1], **fields}
    for headers in ({}, {"authorization": "Bearer old"}):
        page = Page(console.post(path, data=right, headers=headers))
        assert page.status == 401 and "sign in again" in page.text
    assert Requests(directory).all() == []
    if path == "/page/tuning/ask":
        assert console.post(path, data=right, headers={"authorization": "Bearer right"}).status_code == 303
        assert len(Requests(directory).all()) == 1
