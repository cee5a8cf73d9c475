"""The page of one job: lanes, curves on the same axis, and the log."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.console.conftest import Visit
from tests.console.corpus import Corpus, write_census
from tests.console.pages import Page
from torch_estimator.activity.timeline import Change, Spent
from torch_estimator.console import curves as curves_module


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the files at each request."""
    monkeypatch.setattr(curves_module, "_READ_SECS", -1.0)
    monkeypatch.setattr(curves_module, "_LOOK_SECS", -1.0)


def titles(answer_text: str, role: str) -> list[str]:
    """What the segments and marks of a lane say."""
    lane = answer_text.partition(f'aria-label="{role} over time"')[2].partition("</svg>")[0]
    return [part.partition("</title>")[0] for part in lane.split("<title>")[1:]]


# Lanes.


def test_each_role_has_a_lane_with_waits_and_for_whom(corpus: Corpus, visit: Visit) -> None:
    write_census(corpus)
    answer = visit(corpus.jobs).get("/page/job?id=job:census_7")
    lanes = [found["aria-label"] for found in Page(answer).all("svg", aria_label="over time")]
    assert lanes == [f"{role} over time" for role in ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")]
    waits = [one for one in titles(answer.text, "chief-0") if "waiting" in one]
    assert [one.partition(" from ")[0] for one in waits] == [
        "chief-0 waiting for ps-0, at step 1,876, 14 s",
        "chief-0 waiting for worker-1, at step 4,284, 18 s",
        "chief-0 waiting for input, at step 6,676, 6 s",
    ]
    assert any(one.startswith("evaluator-0 exporting") for one in titles(answer.text, "evaluator-0"))


def test_a_restart_is_shown_with_its_reason_and_what_it_cost(corpus: Corpus, visit: Visit) -> None:
    write_census(corpus)
    answer = visit(corpus.jobs).get("/page/job?id=job:census_7")
    assert "Restarted once: 21 s passed until the roles worked again; 60 steps were done again." in Page(answer).text
    (restart,) = [one for one in titles(answer.text, "worker-1") if "steps again" in one and "away" not in one]
    assert restart == "worker-1: was killed by SIGKILL; at work again after 21 s; 60 steps again"
    assert not [one for one in titles(answer.text, "chief-0") if "again" in one]


@pytest.mark.parametrize(
    ("saved_at", "told"),
    [
        (115.2, "60 steps were done again."),
        # It had gone beyond that step before its next note.
        (180.0, "how many steps were done again is not known."),
    ],
)
@pytest.mark.parametrize("ahead", [0.0, 90.0])
def test_steps_that_a_lost_parameter_server_costs_are_those_by_which_training_goes_back(
    corpus: Corpus, visit: Visit, saved_at: float, told: str, ahead: float
) -> None:
    began = corpus.now - 600
    corpus.job("lost", ago=600, events=[corpus.launched()])
    saved = saved_at, "saving", round(978 + (saved_at - 115.2) * 10)
    for pid, role, host, clock, noted, end in (
        (1, "chief-0", "a", 0.0, [(0, "training", 0), (110, "waiting", 1038), (113, "training", 1038), saved], 5000),
        (2, "worker-0", "b", ahead, [(0, "training", 0), (111, "waiting", 976), (116, "training", 976)], 5000),
        (3, "ps-0", "a", 0.0, [(0, "serving", None), (109.5, "serving", 960)], 960),
        (4, "ps-0", "a", 0.0, [(115, "serving", None), (590, "serving", 5000)], 5000),
    ):
        changes = [Change(time=began + clock + at, state=state, step=step) for at, state, step in noted]
        seen = changes[-1].time if pid == 3 else began + clock + 590
        corpus.timeline("lost", role, pid, changes, [Spent(time=seen, step=end, computing=1.0)], host)
    answer = visit(corpus.jobs).get("/page/job?id=job:lost")
    assert told in Page(answer).text
    assert "Restarted once" in Page(answer).text
    assert ("60 steps again" in answer.text) == told.startswith("60")


def test_checkpoints_evaluations_and_exports_are_marked(corpus: Corpus, visit: Visit) -> None:
    write_census(corpus)
    text = visit(corpus.jobs).get("/page/job?id=job:census_7").text
    for note, count in (("checkpoint of step 3600,", 1), ("evaluation of step ", 7), ("export best/", 2)):
        assert text.count(f"<title>{note}") == count, note


def test_where_the_time_goes_is_said_in_a_sentence(corpus: Corpus, visit: Visit) -> None:
    write_census(corpus)
    page = Page(visit(corpus.jobs).get("/page/job?id=job:census_7"))
    assert "of 3 training processes: 67% computing, 20% waiting for parameter servers, " in page.text
    assert re.search(r"bounds? this training: ", page.text)
    assert "These shares are of the training alone, after its first steps." in page.text
    (bar,) = page.all("svg", class_="spent")
    assert bar["aria-label"].startswith("Of ")


def test_a_part_of_the_time_can_be_shown(corpus: Corpus, visit: Visit) -> None:
    job = write_census(corpus)
    began = job.spec().created
    site = visit(corpus.jobs)
    part = site.get("/page/now", params={"id": "job:census_7", "from": began + 1050, "to": began + 1150})
    assert [one.partition(",")[0] for one in titles(part.text, "chief-0")] == [
        "chief-0 training at step 3",
        "chief-0 waiting for worker-1",
        "chief-0 training at step 4",
    ]
    assert "Show all of it" in part.text
    for low, high in (("x", "y"), ("-1", "nan"), (began + 10, began), ("1e300", "")):
        assert site.get("/page/now", params={"id": "job:census_7", "from": low, "to": high}).status_code == 200


def test_without_timelines_the_events_say_when_processes_ran(corpus: Corpus, visit: Visit) -> None:
    corpus.job(
        "old",
        events=[
            corpus.launched(),
            {"kind": "started", "time": 1.0, "state": "RUNNING", "role": "chief-0", "pid": 1},
            {"kind": "exited", "time": 100.0, "role": "chief-0", "status": 143},
            {"kind": "restarted", "time": 104.0, "state": "RUNNING", "role": "chief-0", "pid": 2},
            {"kind": "ended", "time": 300.0, "state": "FAILED", "status": 1, "reason": "It <failed>."},
        ],
    )
    answer = visit(corpus.jobs).get("/page/job?id=job:old")
    found = [one.partition(" from ")[0] for one in titles(answer.text, "chief-0")]
    assert found[:2] == ["chief-0 running, 1 min 39 s", "chief-0 away was preempted (status 143), 4 s"]
    assert "It &lt;failed&gt;." in answer.text
    assert "was preempted" in Page(answer).text


def test_lanes_of_machines_whose_clocks_differ_are_joined_at_the_same_steps(corpus: Corpus, visit: Visit) -> None:
    began = corpus.now - 600
    corpus.job("skewed", ago=600, events=[corpus.launched()])
    for role, host, ahead in (
        ("chief-0", "a", 0.0),
        ("worker-0", "b", 90.0),
        ("worker-1", "a", 0.0),
        ("ps-0", "b", 90.0),
    ):
        spent = [Spent(time=began + ahead + at, step=at * 2, computing=float(at)) for at in range(5, 600, 5)]
        changes = [Change(time=began + ahead, state="starting"), Change(time=began + ahead + 4, state="training")]
        corpus.timeline("skewed", role, 1, changes, spent, host=host)
    answer = visit(corpus.jobs).get("/page/job?id=job:skewed")
    assert Page(answer).text.count("clock 1 min 30 s ahead") == 2
    starts = {
        titles(answer.text, role)[0].rpartition(" from ")[2] for role in ("chief-0", "worker-0", "worker-1", "ps-0")
    }
    assert len(starts) == 1


def test_ten_thousand_changes_are_drawn_as_few_segments(corpus: Corpus, visit: Visit) -> None:
    corpus.job("busy", ago=5000, events=[corpus.launched()])
    began = corpus.now - 5000
    changes = [
        Change(time=began + place / 2, state="waiting" if place % 4 == 3 else "training") for place in range(10_000)
    ]
    corpus.timeline("busy", "chief-0", 1, changes, [Spent(time=corpus.now)])
    answer = visit(corpus.jobs).get("/page/job?id=job:busy")
    found = titles(answer.text, "chief-0")
    assert 1 <= len(found) < 900
    assert found[0].startswith("chief-0 training 2 states")


@pytest.mark.parametrize("damage", ["torn", "gone", "junk"])
def test_files_that_are_torn_gone_or_junk_leave_the_rest(corpus: Corpus, visit: Visit, damage: str) -> None:
    write_census(corpus)
    output = corpus.output("census_7")
    site = visit(corpus.jobs)
    for path in [
        *output.glob("activity/worker-0*"),
        *output.glob("events*"),
        output / "checkpoint",
        output / "training.json",
    ]:
        if damage == "torn":
            path.write_bytes(path.read_bytes()[:-100])
        elif damage == "gone":
            path.unlink()
        else:
            path.write_bytes(b"\xff\x00[" * 300)
    for page in ("/", "/page/job?id=job:census_7", "/page/now?id=job:census_7", "/page/compare?id=job:census_7"):
        assert site.get(page).status_code == 200
    assert titles(site.get("/page/job?id=job:census_7").text, "chief-0")
    shutil.rmtree(output)
    assert site.get("/page/job?id=job:census_7").status_code == 200


def test_a_job_that_was_copied_with_its_output_is_found_beside_it(corpus: Corpus, visit: Visit) -> None:
    write_census(corpus)
    shutil.move(corpus.base / "output", corpus.base / "home" / "output")
    shutil.move(corpus.jobs, corpus.base / "home" / "jobs")
    page = Page(visit(corpus.base / "home" / "jobs").get("/page/job?id=job:census_7"))
    assert "auc" in page.text
    assert str(corpus.base / "home" / "output" / "census_7") in page.text


# Curves.


def points(visitor: Any, **given: Any) -> list[dict[str, Any]]:
    series: list[dict[str, Any]] = visitor.get("/page/points", params=given).json()["series"]
    return series


def test_points_are_reduced_but_no_peak_is_lost_and_a_part_has_all_of_its_points(corpus: Corpus, visit: Visit) -> None:
    corpus.job("peak")
    corpus.curves(
        corpus.output("peak"),
        {"loss": lambda step: 9.0 if step == 4567 else -9.0 if step == 4568 else 1.0},
        steps=range(20_000),
        began=corpus.now - 100,
        secs_per_step=0.001,
    )
    site = visit(corpus.jobs)
    (whole,) = points(site, id="job:peak", name="loss", by="step", points=100)
    assert len(whole["x"]) <= 202
    assert (whole["x"][0], whole["x"][-1]) == (0, 19_999)
    assert (max(whole["y"]), min(whole["y"])) == (9.0, -9.0)
    (part,) = points(site, id="job:peak", name="loss", by="step", points=100, **{"from": 4550, "to": 4600})
    assert part["x"] == list(range(4549, 4602))


@pytest.mark.parametrize("seed", range(20))
def test_of_each_bucket_the_least_and_the_greatest_value_stay(seed: int) -> None:
    choice = np.random.default_rng(seed)
    x = np.sort(choice.integers(0, choice.choice((3, 1000)), 5000)).astype(float)
    y = choice.normal(size=5000)
    y[choice.random(5000) < choice.choice((0, 0.5))] = np.nan
    kept, values = curves_module.reduced(x, y, 50)
    assert len(kept) <= 102
    assert (np.diff(kept) >= 0).all()
    assert np.isin(kept, x).all()
    places = np.minimum(49, ((x - x[0]) / (x[-1] - x[0]) * 50).astype(int))
    kept_places = np.minimum(49, ((kept - x[0]) / (x[-1] - x[0]) * 50).astype(int))
    for place in set(places.tolist()):
        if np.isfinite(y[places == place]).any():
            for pick in (np.nanmin, np.nanmax):
                assert pick(values[kept_places == place]) == pick(y[places == place])


def test_what_is_no_number_is_a_gap_and_odd_requests_are_answered(corpus: Corpus, visit: Visit) -> None:
    corpus.job("nan")
    values = [float("nan"), float("inf"), 1.0, -float("inf")]
    corpus.curves(corpus.output("nan"), {"loss": lambda step: values[step]}, steps=range(4), began=1e9, secs_per_step=1)
    site = visit(corpus.jobs)
    (curve,) = points(site, id="job:nan", name="loss", by="step")
    assert curve["y"] == [None, None, 1.0, None]
    for given in ({"points": "-1"}, {"points": "9" * 30}, {"from": "x", "to": "nan"}, {"by": "odd"}, {"name": "none"}):
        assert site.get("/page/points", params={"id": "job:nan", "name": "loss", **given}).status_code == 200


def test_a_point_that_is_written_later_is_asked_for(corpus: Corpus, visit: Visit) -> None:
    corpus.job("live")
    corpus.curves(corpus.output("live"), {"loss": float}, steps=range(4), began=1e9, secs_per_step=1)
    site = visit(corpus.jobs)
    before = site.get("/page/follow?id=job:live").json()["curves"]
    corpus.curves(corpus.output("live"), {"loss": float}, steps=range(4, 9), began=2e9, secs_per_step=1)
    corpus.curves(corpus.output("live") / "eval", {"loss": float}, steps=range(4, 9), began=2e9, secs_per_step=1)
    assert site.get("/page/follow?id=job:live").json()["curves"] > before
    curves = points(site, id="job:live", name=["loss", "eval/loss"], by="step")
    assert [(one["label"], one["x"]) for one in curves] == [
        ("training", list(range(9))),
        ("evaluation", list(range(4, 9))),
    ]


def test_curves_of_many_runs_stay_within_a_bound_of_memory(corpus: Corpus) -> None:
    from torch_estimator.console.sources import Sources

    kept = curves_module.Curves(most_bytes=100_000)
    for number in range(20):
        corpus.job(f"job_{number}")
        folder = corpus.output(f"job_{number}")
        corpus.curves(folder, {"loss": float}, steps=range(500), began=1e9, secs_per_step=1)
    sources = Sources(str(corpus.jobs))
    for number in range(20):
        found = sources.find(f"job:job_{number}")
        assert len(kept.of(found)[1]["loss"].points.steps) == 500
        assert kept.nbytes < 100_000


def test_runs_that_are_looked_at_together_lose_points_rather_than_each_other(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_estimator.console.sources import Sources

    kept = curves_module.Curves(most_bytes=400_000)
    for number in range(12):
        corpus.job(f"job_{number}")
        corpus.curves(
            corpus.output(f"job_{number}"),
            {"loss": lambda step: 9.0 if step == 1234 else -9.0 if step == 4321 else step / 5000},
            steps=range(5000),
            began=1e9,
            secs_per_step=1,
        )
    sources = Sources(str(corpus.jobs))
    runs = [sources.find(f"job:job_{number}") for number in range(12)]
    for run in runs:
        kept.of(run)
    reads: list[object] = []
    monkeypatch.setattr(curves_module.ScalarReader, "__init__", reads.append)
    for run in runs:
        steps, values, _ = kept.of(run)[1]["loss"].points
        assert 600 < len(steps) < 5000
        assert (steps[0], steps[-1], values.max(), values.min()) == (0, 4999, 9.0, -9.0)
        assert (steps[values.argmax()], steps[values.argmin()]) == (1234, 4321)
    assert kept.nbytes <= 400_000
    assert not reads


def test_a_large_run_is_shown_while_it_is_read_and_blocks_no_request(
    corpus: Corpus, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves_module, "_WAIT_SECS", 0.0)
    monkeypatch.setattr("torch_estimator.summary.scalar_file._BLOCK_BYTES", 2**16)
    corpus.job("large")
    values = {f"metric_{place}": float for place in range(20)}
    corpus.curves(corpus.output("large"), values, steps=range(2000), began=1e9, secs_per_step=1)
    site = visit(corpus.jobs)
    assert "Still being read: large." in Page(site.get("/page/compare?id=job:large")).text
    lasts = []
    for _ in range(100):
        answer = site.get("/page/points?id=job:large&name=metric_3&by=step").json()
        lasts.append(answer["series"][0]["x"][-1])
        if not answer["is_behind"]:
            break
    assert len(lasts) > 2
    assert lasts == sorted(lasts)
    assert lasts[-1] == 1999
    assert "Still being read" not in site.get("/page/compare?id=job:large").text
    curves = site._transport._transport.app.state.context.curves  # type: ignore[attr-defined]
    (run,) = curves._runs.values()
    with run.lock:
        # As if another request read it.
        assert points(site, id="job:large", name="metric_3", by="step")[0]["x"][-1] == 1999
        assert site.get("/page/job?id=job:large").status_code == 200


# The log.


def lines_in(answer_text: str) -> list[str]:
    return [part.partition("</span>")[0] for part in answer_text.partition('class="log"')[2].split("<span>")[1:]]


def test_the_last_lines_of_all_roles_are_shown_by_time_and_can_be_filtered(corpus: Corpus, visit: Visit) -> None:
    job = corpus.job("logged")
    for role, offset in (("chief-0", 0.0), ("worker-0", 0.5)):
        corpus.log(job, role, [(1e9 + number + offset, f"{role} says {number}") for number in range(5000)])
    site = visit(corpus.jobs)
    shown = lines_in(site.get("/page/job?id=job:logged").text)
    assert len(shown) == 300
    assert shown[-3:] == ["worker-0 says 4998", "chief-0 says 4999", "worker-0 says 4999"]
    of_role = lines_in(site.get("/page/job?id=job:logged&role=worker-0&text=SAYS 12").text)
    assert of_role[0] == "worker-0 says 12"
    assert len(of_role) == 111
    assert "No line has “none”" in Page(site.get("/page/job?id=job:logged&text=none")).text


def test_a_click_in_a_lane_leads_to_the_line(corpus: Corpus, visit: Visit) -> None:
    write_census(corpus)
    site = visit(corpus.jobs)
    links = Page(site.get("/page/job?id=job:census_7")).links("role=worker-1&at=")
    (wait,) = [one for one in links if titles(site.get("/page/job?id=job:census_7").text, "worker-1")][1:2]
    answer = site.get(wait)
    before, _, after = answer.text.partition(" marked")
    marked = after.partition("<span>")[2].partition("</span>")[0]
    assert "worker-1" in after[:200]
    assert marked.startswith("INFO:torch_estimator:loss = ")
    assert before.count('<div class="line') > 1
    assert "data-cursor" not in answer.text


@pytest.mark.parametrize("at", [0, 1e9 + 2500, 1e9 + 4999.2, 9e9])
def test_the_lines_around_any_time_are_found(corpus: Corpus, visit: Visit, at: float) -> None:
    job = corpus.job("logged")
    corpus.log(job, "chief-0", [(1e9 + number, f"line {number} {'x' * (number % 90)}") for number in range(5000)])
    shown = lines_in(visit(corpus.jobs).get("/page/job", params={"id": "job:logged", "at": at}).text)
    numbers = [int(line.split()[1]) for line in shown]
    place = min(5000, max(0, int(np.ceil(at - 1e9))))
    assert numbers == list(range(max(0, place - 150), min(5000, place + 150)))


def test_new_lines_are_followed_without_a_loss_or_a_repetition(corpus: Corpus, visit: Visit) -> None:
    job = corpus.job("live")
    corpus.log(job, "chief-0", [(1e9, "first")])
    site = visit(corpus.jobs)
    page = Page(site.get("/page/job?id=job:live"))
    (log,) = page.all("div", class_="log")
    cursor, seen = log["data-cursor"], []
    path = Path(job.logs) / "chief-0.log"
    for number in range(20):
        if number == 10:
            corpus.log(job, "worker-0", [(1e9 + 1, f"other {place}") for place in range(3)])
        with path.open("ab") as file:
            # The writer is in the middle of a line at each look.
            end = f" of {number - 1}\n" if number else ""
            file.write(f"{end}2001-09-09T01:46:41+0000 line {number}".encode())
        news = site.get(f"{log['data-follow']}&cursor={cursor}").json()
        cursor = news["cursor"]
        seen += [(role, text) for _, role, text, _ in news["lines"]]
    assert [text for role, text in seen if role == "chief-0"] == [f"line {number} of {number}" for number in range(19)]
    assert [text for role, text in seen if role == "worker-0"] == [f"other {place}" for place in range(3)]


@pytest.mark.parametrize("cursor", ["x", "chief-0.log:-1", "chief-0.log:99999999", "../x:1,chief-0.log:0", ":" * 9000])
def test_a_cursor_that_is_none_is_answered(corpus: Corpus, visit: Visit, cursor: str) -> None:
    corpus.log(corpus.job("live"), "chief-0", [(1e9, "first")])
    answer = visit(corpus.jobs).get("/page/follow", params={"id": "job:live", "cursor": cursor})
    assert answer.status_code == 200


def test_lines_of_any_length_are_cut_and_passed(corpus: Corpus, visit: Visit) -> None:
    job = corpus.job("long")
    site = visit(corpus.jobs)
    cursor = site.get("/page/follow?id=job:long").json()["cursor"]
    corpus.log(job, "chief-0", [(1e9, "before"), (1e9 + 1, "x" * 10_000_000), (1e9 + 2, "after")])
    shown = lines_in(site.get("/page/job?id=job:long").text)
    assert shown[-1] == "after"
    assert all(len(line) < 3000 for line in shown)
    seen: list[str] = []
    for _ in range(50):
        news = site.get("/page/follow", params={"id": "job:long", "cursor": cursor}).json()
        seen += [text for _, _, text, _ in news["lines"]]
        cursor = news["cursor"]
    assert seen[-1] == "after"
    assert len(seen) <= 3
    assert all(len(line) < 3000 for line in seen)


def test_logs_without_times_and_logs_in_segments_are_shown(corpus: Corpus, visit: Visit) -> None:
    job = corpus.job("odd")
    (Path(job.logs) / "trial-1.raw.log").write_text("no time\n2001-09-09T01:46:41+0000 a time\nnone again\n")
    for number in (1, 2):
        (Path(job.logs) / f"worker-0.{number:08}.log").write_text(f"2001-09-09T01:46:4{number}+0000 segment {number}\n")
    (Path(job.logs) / "launcher.stderr").write_text("not a log\n")
    page = visit(corpus.jobs).get("/page/job?id=job:odd")
    assert sorted(lines_in(page.text)) == ["a time", "no time", "none again", "segment 1", "segment 2"]
    assert len(Page(page).all("option")) == 3
