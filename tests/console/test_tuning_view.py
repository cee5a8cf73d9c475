"""The page of a study: trials by rung, lines through their parameters, what makes the difference, and forms."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.console.conftest import Visit
from tests.console.pages import Page
from tests.serving.echo_export import HOSTILE, write_echo
from tests.tuning.studies import make_study, make_trial
from torch_estimator import activity
from torch_estimator.activity.timeline import FOLDER, HEAD_BYTES
from torch_estimator.cluster.task import Task
from torch_estimator.console import index as index_module
from torch_estimator.registry import Registry
from torch_estimator.tuning.directory import StudyDirectory
from torch_estimator.tuning.requests import Answer, Requests
from torch_estimator.tuning.space import Categorical, Double, Space


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FRESH_SECS", "_OVER_SECS"):
        monkeypatch.setattr(index_module, name, -1.0)


SPACE = Space((Double("rate", 0.01, 1.0, scale="LOG"), Categorical("kind", ("a", "b"))))

# Number: state, rung, results, further attributes.
TRIALS: dict[int, tuple[str, int, list[tuple[int, float]], dict[str, Any]]] = {
    1: ("SUCCEEDED", 2, [(4, 0.5), (16, 0.7), (64, 0.9)], {}),
    2: ("PAUSED", 0, [(4, 0.3)], {}),
    3: ("RUNNING", 1, [(4, 0.6)], {"pauses_at": 16}),
    4: ("FAILED", 0, [], {"reason": "it was killed by SIGKILL."}),
    5: ("STOPPED", 0, [(4, 0.1)], {"by_hand": "STOP", "reason": "it was stopped by request."}),
    6: ("RUNNING", 0, [], {"pauses_at": 1}),
}


def write_study(folder: Path, *, state: str = "RUNNING", **asked: Any) -> StudyDirectory:
    settings = {"space": SPACE, "metric": "auc", "max_trials": 9, "early_stopping": True, "algorithm": "RANDOM"}
    directory = make_study(folder, "", **{**settings, **asked})
    directory.job.add("started" if state == "RUNNING" else "ended", state)
    for number, (trial, rung, results, others) in TRIALS.items():
        parameters = {"rate": f"{0.1 * number:g}", "kind": "ab"[number % 2]}
        make_trial(directory, number, state=trial, rung=rung, results=results, parameters=parameters, **others)
    return directory


def rungs(text: str) -> dict[str, list[tuple[int, str]]]:
    """The trials of each rung and their kinds, as the page shows them."""
    found = {}
    for part in text.split('<div class="rung">')[1:]:
        label = re.search(r'small">([^<]*)<', part)
        assert label is not None
        cells = re.findall(r'class="cell ([a-z ]+)"[^>]*>(\d+)<', part.partition("</ol>")[0])
        found[label[1]] = [(int(number), kind) for kind, number in cells]
    return found


def send(console: httpx.Client, path: str, see: str, **fields: str) -> httpx.Response:
    """Fill a form of a page and send it."""
    key = re.search(r'name="form_key" value="([^"]+)"', console.get(see).text)
    assert key is not None
    return console.post(path, data={"form_key": key[1], **fields})


PAGE = "/page/tuning?id=job:study"


# What is shown.


def test_trials_are_shown_by_rung_with_the_best_first_and_paused_ones_too(tmp_path: Path, visit: Visit) -> None:
    write_study(tmp_path)
    assert rungs(visit(tmp_path / "jobs").get(PAGE).text) == {
        "step 64": [(1, "succeeded top")],
        "step 16": [(1, "on top"), (3, "running")],
        "step 4": [(3, "on"), (1, "on top"), (2, "paused"), (5, "stopped"), (4, "failed"), (6, "running")],
    }


def test_a_line_goes_through_the_values_of_each_trial_with_a_metric_and_the_best_is_on_top(
    tmp_path: Path, visit: Visit
) -> None:
    write_study(tmp_path)
    text = visit(tmp_path / "jobs").get(PAGE).text
    lines = re.findall(
        r'class="trial ([a-z ]+)" data-trial="(\d)" tabindex="-1"><title>([^<]*)</title>.*?points="([^"]*)"', text
    )
    assert [(kind, number) for kind, number, _, _ in lines] == [
        ("rest", "5"),
        ("rest", "2"),
        ("rest", "3"),
        ("best picked", "1"),
    ]
    assert lines[-1][2] == "Trial 1: auc 0.9; rate 0.1, kind b"
    # 0.1 is halfway from 0.01 to 1 on the logarithmic axis; b is the second of two; no metric is better.
    assert lines[-1][3] == "60,176.0 500,52.0 940,52.0"


def test_the_best_trial_and_what_makes_the_difference_are_said(tmp_path: Path, visit: Visit) -> None:
    write_study(tmp_path)
    page = Page(visit(tmp_path / "jobs").get(PAGE))
    assert "Best auc 0.9 Trials 6 of 9 Running 2" in page.text
    assert "Trial 1 best so far" in page.text
    assert "between 4 trials at step 4 that each parameter explains alone. That few trials say little." in page.text
    assert len(page.all("progress")) == 2


def test_the_table_has_the_best_trials_first_and_those_without_a_value_last(tmp_path: Path, visit: Visit) -> None:
    write_study(tmp_path)
    text = visit(tmp_path / "jobs").get(PAGE).text
    assert [int(number) for number in re.findall(r'<tr data-trial="(\d)"', text)] == [1, 3, 2, 5, 4, 6]


def test_a_damaged_trial_is_named_and_the_others_are_shown(tmp_path: Path, visit: Visit) -> None:
    directory = write_study(tmp_path)
    Path(directory.path(2, ".json")).write_text("{")
    page = Page(visit(tmp_path / "jobs").get(PAGE))
    assert "trials/2.json is damaged" in page.text
    assert "Trials 5 of 9" in page.text


@pytest.mark.parametrize("trials", [{}, {1: ("RUNNING", 0, [], {})}, {1: ("PAUSED", 0, [(4, float("nan"))], {})}])
def test_a_study_that_has_hardly_begun_is_shown(
    tmp_path: Path, visit: Visit, monkeypatch: pytest.MonkeyPatch, trials: Any
) -> None:
    monkeypatch.setattr("tests.console.test_tuning_view.TRIALS", trials)
    write_study(tmp_path)
    page = Page(visit(tmp_path / "jobs").get(PAGE))
    assert page.status == 200
    assert ("No trial has begun yet." in page.text) is (not trials)


def test_what_is_no_study_is_said_in_a_sentence(tmp_path: Path, visit: Visit) -> None:
    directory = write_study(tmp_path)
    job = directory.job
    job.write(type(job.spec())(name="study", created=0.0, target="local", module_name="x", folder=str(tmp_path)))
    console = visit(tmp_path / "jobs")
    for id, said in (
        ("job:study", "study is no study, so that it has no trials"),
        ("job:gone", "There is no job:gone"),
    ):
        page = Page(console.get(f"/page/tuning?id={id}"))
        assert page.status == 404 and said in page.text
    job.write(dataclasses.replace(job.spec(), study={"space": 7}))
    page = Page(console.get(PAGE))
    assert page.status == 409 and "cannot be used" in page.text


def test_names_and_values_of_a_program_are_only_text(tmp_path: Path, visit: Visit) -> None:
    name = HOSTILE.replace(" ", "/").replace("=", "")
    space = Space((Categorical(name, (HOSTILE, "b\u202e")),))
    directory = make_study(tmp_path, "", space=space, metric=HOSTILE)
    directory.job.add("started", "RUNNING")
    make_trial(directory, 1, parameters={name: HOSTILE}, results=[(4, 0.5)], state="PAUSED", reason=HOSTILE)
    make_trial(directory, 2, parameters={name: "b\u202e"}, results=[(4, 0.4)], state="FAILED", reason=HOSTILE)
    text = visit(tmp_path / "jobs").get(f"{PAGE}&trial=2").text
    assert "window.hacked" in text
    assert "<script>window" not in text and "<img" not in text.replace('<img src="/page/static', "")
    assert "\u202e" not in text


# Forms.


def test_a_trial_is_asked_to_stop_and_the_answer_is_shown(tmp_path: Path, visit: Visit) -> None:
    directory = write_study(tmp_path)
    console = visit(tmp_path / "jobs")
    answer = send(console, "/page/tuning/ask", f"{PAGE}&trial=3", id="job:study", trial="3", action="STOP")
    assert (answer.status_code, answer.headers["location"]) == (303, "/page/tuning?id=job%3Astudy&trial=3#trial")
    [(request, _)] = Requests(directory).all()
    assert (request.action, request.trial) == ("STOP", 3)
    assert "stop trial 3: not answered yet" in Page(console.get(PAGE)).text
    Requests(directory).answer_file(1).write(Answer(text="its process is told to end."))
    assert "stop trial 3: its process is told to end." in Page(console.get(PAGE)).text


def test_only_what_makes_sense_has_a_button(tmp_path: Path, visit: Visit) -> None:
    write_study(tmp_path)
    console = visit(tmp_path / "jobs")

    def buttons(trial: int) -> list[str]:
        return [one["value"] for one in Page(console.get(f"{PAGE}&trial={trial}")).all("button", name="action")]

    assert [buttons(number) for number in (1, 2, 3, 4)] == [[], ["PROMOTE", "PAUSE", "STOP"], ["PAUSE", "STOP"], []]
    # Beyond loopback without a token the page only shows.
    shown = console.get(f"{PAGE}&trial=2", headers={"host": "evil.example"})
    assert not Page(shown).all("form", method="post")


def test_a_request_that_cannot_be_carried_out_is_refused_with_a_sentence(tmp_path: Path, visit: Visit) -> None:
    directory = write_study(tmp_path)
    console = visit(tmp_path / "jobs")

    def said(trial: str, action: str) -> str:
        fields = {"id": "job:study", "trial": trial, "action": action}
        page = Page(send(console, "/page/tuning/ask", f"{PAGE}&trial=3", **fields))
        assert page.status == 409
        return page.text

    # Trial 1 ended after the page was loaded.
    assert "Trial 1 has ended already: it is SUCCEEDED." in said("1", "STOP")
    assert "Trial 3 runs already; only a paused trial can be promoted." in said("3", "PROMOTE")
    assert "has no trial 77" in said("77", "STOP")
    assert "has no trial 0" in said("x", "STOP")
    key = re.search(r'name="form_key" value="([^"]+)"', console.get(f"{PAGE}&trial=3").text)
    assert key is not None
    directory.job.add("ended", "FAILED")
    fields = {"form_key": key[1], "id": "job:study", "trial": "3", "action": "STOP"}
    assert (
        "no controller is there to stop trial 3; jobs resume study"
        in Page(console.post("/page/tuning/ask", data=fields)).text
    )
    assert "no controller is there to stop, pause or promote a trial" in Page(console.get(f"{PAGE}&trial=2")).text
    assert Requests(directory).all() == []


def test_the_export_of_a_trial_becomes_the_next_version_of_a_model(tmp_path: Path, visit: Visit) -> None:
    directory = write_study(tmp_path, state="SUCCEEDED")
    write_echo(Path(directory.trial(1).job_dir) / "export" / "best" / "1700000000")
    (Path(directory.trial(1).job_dir) / "export" / "best" / "1700000000" / "assets.extra" / "warmup.jsonl").unlink()
    console = visit(tmp_path / "jobs", registry=tmp_path / "registry")
    answer = send(console, "/page/tuning/version", PAGE, id="job:study", trial="1", model="echo")
    assert (answer.status_code, answer.headers["location"]) == (303, "/page/models?model=echo&version=1")
    again = Page(send(console, "/page/tuning/version", PAGE, id="job:study", trial="1", model="echo"))
    assert again.status == 409 and "Version 1 of echo was made from this export already." in again.text
    registry = Registry(tmp_path / "registry")
    assert registry.versions("echo") == [1]
    info = registry.read_version("echo", 1)
    assert info.description == "trial 1 of study"
    assert info.origin == f"{directory.trial(1).job_dir}/export/best/1700000000"
    refused = Page(send(console, "/page/tuning/version", PAGE, id="job:study", trial="2", model="echo"))
    assert refused.status == 409 and "Trial 2 has no export" in refused.text


def test_a_model_is_not_left_behind_by_an_export_that_is_refused(tmp_path: Path, visit: Visit) -> None:
    directory = write_study(tmp_path, state="SUCCEEDED")
    export = write_echo(Path(directory.trial(1).job_dir) / "export" / "best" / "1700000000")
    (export / "model.onnx").write_bytes(b"torn")
    console = visit(tmp_path / "jobs", registry=tmp_path / "registry")
    refused = Page(send(console, "/page/tuning/version", PAGE, id="job:study", trial="1", model="echo"))
    assert refused.status == 409
    assert Registry(tmp_path / "registry").models() == []


def test_of_a_thousand_trials_the_table_has_the_best(
    tmp_path: Path, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {number: ("STOPPED", 0, [(4, 1 / number)], {}) for number in range(1, 1001)}
    monkeypatch.setattr("tests.console.test_tuning_view.TRIALS", many)
    write_study(tmp_path, state="SUCCEEDED", max_trials=1000, space=Space((Double("rate", 0.01, 1000.0),)))
    console = visit(tmp_path / "jobs")
    text = console.get(PAGE).text
    assert "The best 200 of 1,000; the rungs lead to all of them." in text
    assert re.findall(r'<tr data-trial="(\d+)"', text) == [str(number) for number in range(1, 201)]
    assert len(re.findall(r'class="cell stopped', text)) == 1001


def test_the_page_of_its_job_leads_to_the_trials_and_shows_none_of_them(tmp_path: Path, visit: Visit) -> None:
    directory = write_study(tmp_path, state="SUCCEEDED")
    trial = directory.trial(1)
    with activity.recording(trial.job_dir, Task()), activity.doing("training", step=lambda: 20):
        pass
    site = visit(directory.job.jobs)
    page = Page(site.get("/page/job?id=job:study"))
    assert "The page of each of its trials has lanes and curves." in page.text
    assert "/page/tuning?id=job%3Astudy" in page.links("tuning")
    assert "Where the time goes" not in page.text
    assert "20 of" not in page.text
    assert not page.all("section", id="curves")
    trial_page = Page(site.get("/page/job?id=trial:study/1"))
    assert trial_page.all("section", id="curves")
    assert "Nothing was recorded" not in trial_page.text


def test_the_page_of_a_trial_has_its_state_rung_metric_and_parameters_and_a_link_to_its_study(
    tmp_path: Path, visit: Visit
) -> None:
    write_study(tmp_path)
    site = visit(tmp_path / "jobs")
    page = Page(site.get("/page/job?id=trial:study/1"))
    assert "State succeeded Rung 2 auc 0.9 at step 64" in page.text
    assert "rate 0.1 kind b" in page.text
    assert page.links("trial=1") == ["/page/tuning?id=job%3Astudy&trial=1#trial"]
    assert "it was killed by SIGKILL." in Page(site.get("/page/job?id=trial:study/4")).text


def test_a_trial_that_is_not_there_is_said(tmp_path: Path, visit: Visit) -> None:
    write_study(tmp_path)
    console = visit(tmp_path / "jobs")
    for asked in ("7", "x"):
        page = Page(console.get(f"{PAGE}&trial={asked}"))
        assert f"There is no trial {asked} that can be shown." in page.text
    assert "There is no trial" not in Page(console.get(f"{PAGE}&trial=2")).text


def test_long_names_end_before_the_next_axis(tmp_path: Path, visit: Visit) -> None:
    parameters = [f"{letter}_hidden_layers_of_the_network" for letter in "abcdefgh"]
    space = Space(tuple(Double(name, 0.0, 1.0) for name in parameters))
    directory = make_study(tmp_path, "", space=space, metric="prediction/mean")
    make_trial(directory, parameters=dict.fromkeys(parameters, "0.5"), results=[(4, 0.5)], state="PAUSED")
    text = visit(tmp_path / "jobs").get(PAGE).text
    names = re.findall(r'<text x="([0-9.]+)" [^>]*class="name">([^<]*)<', text)
    assert names[0][1] == "a_hidden_la…"
    assert {len(name) for _, name in names} == {12}
    # All axes are drawn before the first name, which they would cross.
    assert text.rindex('class="upright"') < text.index('class="name"')


# Lanes of a trial.


def write_timeline(directory: StudyDirectory, began: float, steps: tuple[int, int], end: str | None) -> None:
    """Write what a process of trial 1 noted that trained ten seconds; `end` is why it ended, None if it was killed."""
    folder = Path(directory.trial(1).job_dir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    head = {"pid": 1, "host": "a", "began": began, "spent": {"time": began + 10, "step": steps[1], "computing": 9.0}}
    changes: list[dict[str, Any]] = [
        {"time": began, "state": "starting"},
        {"time": began + 1, "state": "training", "step": steps[0]},
    ]
    if end is not None:
        changes.append({"time": began + 10, "state": "ended", "step": steps[1], "reason": end})
    lines = [json.dumps(head).ljust(HEAD_BYTES - 1), *map(json.dumps, changes)]
    (folder / f"chief-0.{began * 1000:.0f}-1.jsonl").write_text("\n".join(lines) + "\n")


def titles(console: httpx.Client) -> list[str]:
    text = console.get("/page/job?id=trial:study/1").text
    return [one.partition(" from ")[0] for one in re.findall(r"<title>chief-0:? ([^<]*)</title>", text)]


PAUSED = "SIGTERM asked for it; start again to go on"


def test_a_trial_is_paused_between_its_rungs_and_a_kill_is_still_a_restart(tmp_path: Path, visit: Visit) -> None:
    directory = write_study(tmp_path)
    write_timeline(directory, 1000.0, (0, 4), PAUSED)
    write_timeline(directory, 1030.0, (4, 12), None)
    write_timeline(directory, 1050.0, (8, 16), PAUSED)
    write_timeline(directory, 1100.0, (16, 64), "the last step was reached")
    console = visit(tmp_path / "jobs")
    assert [one for one in titles(console) if not one.startswith(("starting", "training"))] == [
        "paused at the rung of step 4, then went on, 20 s",
        "away it was gone without a word, as after SIGKILL; back after 10 s; 4 steps again, 10 s",
        "paused at the rung of step 16, then went on, 40 s",
        "it was gone without a word, as after SIGKILL; at work again after 11 s; 4 steps again",
    ]
    assert "Restarted once: 11 s passed" in Page(console.get("/page/job?id=trial:study/1")).text


def test_a_trial_that_is_paused_by_request_is_no_restart(tmp_path: Path, visit: Visit) -> None:
    directory = write_study(tmp_path)
    make_trial(directory, 1, state="PAUSED", rung=0, results=[], by_hand="PAUSE")
    began = time.time() - 60
    write_timeline(directory, began, (0, 3), None)
    write_timeline(directory, began + 30, (2, 3), None)
    folder = Path(directory.job.url) / "requests"
    folder.mkdir()
    request = {"action": "PAUSE", "trial": 1, "time": began + 9}
    (folder / "00000001.json").write_text(json.dumps(request))
    away = [one for one in titles(visit(tmp_path / "jobs")) if not one.startswith(("starting", "training"))]
    assert away[0] == "paused by request, then went on, 20 s"
    assert away[1].startswith("paused by request, ")
    assert len(away) == 2
    directory.job.add("ended", "FAILED")
    assert [one for one in titles(visit(tmp_path / "jobs")) if one.startswith("paused")] == away[:1]
