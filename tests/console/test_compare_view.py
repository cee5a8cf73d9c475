"""The comparison of runs: what differs, and which curves are drawn over one another."""

from __future__ import annotations

import json

from tests.console.conftest import Visit
from tests.console.corpus import Corpus
from tests.console.pages import Page
from torch_estimator.console.texts import NOTHING


def write(corpus: Corpus, name: str, *arguments: str, **spec: object) -> None:
    corpus.job(name, arguments=list(arguments), **spec)  # type: ignore[arg-type]
    corpus.curves(corpus.output(name), {"loss": float}, steps=range(9), began=1e9, secs_per_step=1)


def test_arguments_that_differ_are_shown_and_others_are_counted(corpus: Corpus, visit: Visit) -> None:
    write(corpus, "first", "--rate=0.1", "--steps", "5", "--fast")
    write(corpus, "other", "--rate=0.2", "--steps", "5")
    page = Page(visit(corpus.jobs).get("/page/compare?id=job:first&id=job:other"))
    assert f"Argument first other --rate 0.1 0.2 --fast set {NOTHING}" in page.text
    assert "--steps" not in page.text
    assert "3 more are the same." in page.text


def test_secrets_are_not_shown_here_either(corpus: Corpus, visit: Visit) -> None:
    write(corpus, "first", "--db-password", "hidden1", "--odd=hidden2", "--url=https://me:hidden3@host/x")
    write(corpus, "other", "--odd=hidden4", secret_arguments=["--odd"])
    site = visit(corpus.jobs)
    compared = site.get("/page/compare?id=job:first&id=job:other").text
    assert "hidden1" not in compared and "hidden3" not in compared and "hidden4" not in compared
    assert "https://••••••@host/x" in compared
    assert "hidden1" not in site.get("/page/job?id=job:first").text
    assert "hidden4" not in site.get("/page/job?id=job:other").text


def test_each_chart_has_the_curves_of_all_runs(corpus: Corpus, visit: Visit) -> None:
    write(corpus, "first")
    write(corpus, "other")
    corpus.curves(corpus.output("other") / "eval", {"auc": float}, steps=range(3), began=1e9, secs_per_step=1)
    site = visit(corpus.jobs)
    page = Page(site.get("/page/compare?id=job:first&id=job:other"))
    assert [json.loads(one["data-names"]) for one in page.all("figure")] == [["loss"], ["eval/auc"]]
    (section,) = page.all("section", id="curves")
    series = site.get(f"{section['data-points']}&name=loss&name=eval/auc").json()["series"]
    assert [(one["id"], one["label"]) for one in series] == [
        ("job:first", "training"),
        ("job:other", "training"),
        ("job:other", "evaluation"),
    ]


def test_a_run_that_is_gone_is_said_and_the_others_are_compared(corpus: Corpus, visit: Visit) -> None:
    write(corpus, "first")
    page = Page(visit(corpus.jobs).get("/page/compare?id=job:gone&id=job:first"))
    assert "There is no job:gone here" in page.text
    assert len(page.all("figure")) == 1


def test_more_runs_are_found_by_text_and_too_many_are_said(corpus: Corpus, visit: Visit) -> None:
    for number in range(20):
        corpus.job(f"job_{number}", ago=100.0 * (number + 1))
    site = visit(corpus.jobs)
    page = Page(site.get("/page/compare?id=job:job_0&q=job_1"))
    assert len(page.links("id=job%3Ajob_0&id=job%3Ajob_1")) == 11
    every = "&".join(f"id=job:job_{number}" for number in range(20))
    assert "Only the first 12 of 20 are compared" in Page(site.get(f"/page/compare?{every}")).text
    assert "+ job_0" in Page(site.get("/page/compare")).text
