"""Studies as jobs: submitted from YAML, watched, killed, cancelled and resumed."""

from __future__ import annotations

import itertools
import json
import os
import signal

import pytest
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from scripts.storms.submitting import wait_until
from tests.jobs.conftest import Jobs
from tests.tuning.studies import ROOT, curve, trained
from torch_estimator.jobs.directory import FINAL
from torch_estimator.jobs.kinds import status_of
from torch_estimator.summary.event_reader import read_events
from torch_estimator.tuning.directory import StudyDirectory

YAML = """
trainingInput:
  hyperparameters:
    goal: MAXIMIZE
    hyperparameterMetricTag: score
    maxTrials: 4
    maxParallelTrials: 2
    algorithm: GRID_SEARCH
    params:
    - parameterName: rate
      type: DISCRETE
      discreteValues: [1, 2, 3.50, 4]
"""

# Of the shape of census/estimator/hptuning_config.yaml of GoogleCloudPlatform/cloudml-samples.
CENSUS = """
trainingInput:
  hyperparameters:
    goal: MAXIMIZE
    hyperparameterMetricTag: accuracy
    maxTrials: 2
    maxParallelTrials: 2
    params:
      - parameterName: first-layer-size
        type: INTEGER
        minValue: 50
        maxValue: 500
        scaleType: UNIT_LINEAR_SCALE
      - parameterName: num-layers
        type: INTEGER
        minValue: 1
        maxValue: 15
        scaleType: UNIT_LINEAR_SCALE
      - parameterName: scale-factor
        type: DOUBLE
        minValue: 0.1
        maxValue: 1.0
        scaleType: UNIT_REVERSE_LOG_SCALE
"""

WAITING = """
def each_step(step):
    if step == 6:
        add("waits", str(os.getpid()))
        wait_for("go")
"""

WAITS = """
def waits():
    return open("waits").readlines()
"""


def submit(jobs: Jobs, code: str = "", *arguments: str, name: str = "study", text: str = YAML) -> None:
    (jobs.folder / "hp.yaml").write_text(text)
    (jobs.folder / "trainer").mkdir(exist_ok=True)
    (jobs.folder / "trainer" / "task.py").write_text(curve(code))
    jobs.submit(name, "--config", "hp.yaml", "--package-path", "trainer", *arguments, "--", "--steps", "16")


def study(jobs: Jobs, name: str = "study") -> StudyDirectory:
    return StudyDirectory(jobs.directory(name))


def waiting(jobs: Jobs) -> list[int]:
    path = jobs.folder / "waits"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_gclouds_yaml_runs_and_its_trials_are_listed(jobs: Jobs) -> None:
    submit(jobs, "print('rows are read')", "--job-dir", "out")
    assert jobs.wait("study") == "SUCCEEDED"
    lines = jobs.run("trials", "study")[1].splitlines()
    assert [line.split() for line in lines] == [
        ["TRIAL", "STATE", "RUNG", "STEP", "score", "rate"],
        ["1", "SUCCEEDED", "0", "16", "16", "1"],
        ["2", "SUCCEEDED", "0", "16", "32", "2"],
        ["3", "SUCCEEDED", "0", "16", "56", "3.50"],
        ["4", "SUCCEEDED", "0", "16", "64", "4", "best"],
    ]
    found = json.loads(jobs.run("trials", "study", "--format", "json")[1])
    assert [(one["job_dir"], one["best"]) for one in found][2:] == [("out/3", False), ("out/4", True)]
    (shown,) = [value for event in read_events("out/3") for value in event.summary.value]
    session = HParamsPluginData.FromString(shown.metadata.plugin_data.content).session_start_info
    assert (session.group_name, session.hparams["rate"].number_value) == ("3", 3.5)
    described = jobs.describe("study")
    assert (described["trials"], described["bestTrial"]) == ({"SUCCEEDED": 4}, 4)
    assert jobs.run("list")[1].splitlines()[1].split()[-1] == "study"
    status, out, _ = jobs.run("stream-logs", "study", "--task-name", "trial-2", "--polling-interval", "0.05")
    assert (status, out.partition(" ")[2]) == (0, "[trial-2] rows are read\n")
    assert "the best of 4 trials is 4: score = 64" in jobs.log("study", "launcher")


def test_a_killed_controller_leaves_trials_that_the_next_one_takes_up(jobs: Jobs) -> None:
    submit(jobs, WAITING)
    wait_until(lambda: len(waiting(jobs)) == 2)
    os.kill(jobs.launcher("study"), signal.SIGKILL)
    assert jobs.wait("study") == "FAILED"
    assert jobs.run("resume", "study")[0] == 0
    wait_until(lambda: jobs.log("study", "launcher").count("still runs") == 2)
    assert len(waiting(jobs)) == 2
    (jobs.folder / "go").touch()
    assert jobs.wait("study") == "SUCCEEDED"
    assert [(trial.state, trial.starts, trained(trial)) for trial in study(jobs).trials()] == [
        ("SUCCEEDED", 1, list(range(1, 17)))
    ] * 4


def test_trials_that_ended_without_a_controller_are_not_started_again(jobs: Jobs) -> None:
    submit(jobs, WAITING)
    wait_until(lambda: len(waiting(jobs)) == 2)
    os.kill(jobs.launcher("study"), signal.SIGKILL)
    assert jobs.wait("study") == "FAILED"
    (jobs.folder / "go").touch()
    wait_until(lambda: all(study(jobs).end(number).read() is not None for number in (1, 2)))
    assert jobs.run("resume", "study")[0] == 0
    assert jobs.wait("study") == "SUCCEEDED"
    assert [trial.starts for trial in study(jobs).trials()] == [1] * 4


def test_a_cancelled_study_saves_and_goes_on_where_it_was(jobs: Jobs) -> None:
    submit(jobs, WAITING)
    wait_until(lambda: len(waiting(jobs)) == 2)
    assert jobs.run("cancel", "study")[0] == 0
    assert jobs.wait("study") == "CANCELLED"
    trials = study(jobs).trials()
    assert [(trial.state, trial.restarts) for trial in trials] == [("RUNNING", 0)] * 2
    assert [line.split()[1] for line in jobs.run("trials", "study")[1].splitlines()[1:]] == ["INTERRUPTED"] * 2
    assert jobs.describe("study")["trials"] == {"INTERRUPTED": 2}
    assert all(study(jobs).holder(number) is None for number in (1, 2))
    (jobs.folder / "go").touch()
    assert jobs.run("resume", "study")[0] == 0
    assert jobs.wait("study") == "SUCCEEDED"
    assert [trial.starts for trial in study(jobs).trials()] == [2, 2, 1, 1]
    # The steps after the checkpoint of step 4 were lost with the process.
    assert trained(study(jobs).trial(1)) == [1, 2, 3, 4, 5, *range(5, 17)]


def test_a_trial_is_stopped_from_the_command_line(jobs: Jobs) -> None:
    submit(jobs, WAITING)
    wait_until(lambda: len(waiting(jobs)) == 2)
    assert jobs.run("trials", "study", "--stop", "1") == (0, "", "Asked study study to stop trial 1.\n")
    wait_until(lambda: study(jobs).trial(1).state == "STOPPED")
    (jobs.folder / "go").touch()
    assert jobs.wait("study") == "SUCCEEDED"
    first = jobs.run("trials", "study")[1].splitlines()[1].split(maxsplit=4)
    assert first == ["1", "STOPPED", "0", "1", "it was stopped by request."]
    status, _, err = jobs.run("trials", "study", "--pause", "2")
    assert (status, err) == (2, "estimator: error: trial 2 has ended already: it is SUCCEEDED.\n")


def test_a_second_controller_is_refused(jobs: Jobs) -> None:
    submit(jobs, WAITING)
    wait_until(lambda: len(waiting(jobs)) == 2)
    job = jobs.directory("study")
    from torch_estimator.tuning.controller import run_program

    with pytest.raises(ValueError, match=r"another controller is at work in .*end that first"):
        run_program(job, job.spec(), [])
    (jobs.folder / "go").touch()
    assert jobs.wait("study") == "SUCCEEDED"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--on", "slurm"], "there is no Slurm here: sbatch was not found"),
        (["--hang-secs", "60"], "--hang-secs watches the roles of a job, but the trials of this study are none"),
        (["--jobs", "memory://jobs"], "the trials of a study lock local files, but memory://jobs/study is none"),
    ],
)
def test_what_a_study_cannot_run_on_is_refused(jobs: Jobs, arguments: list[str], error: str) -> None:
    (jobs.folder / "hp.yaml").write_text(YAML)
    line = ("submit", "training", "study", "--config", "hp.yaml", "--module-name", "trainer.task")
    status, _, err = jobs.run(*line, *arguments)
    assert (status, error in err) == (2, True), err


CLUSTER = """
import argparse
import json
import os
import time
from functools import partial
import torch
import torch_estimator as te
from tests.line_jobs import Line, absolute_error, points, squared_error

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
parser.add_argument("--job-dir")
options = parser.parse_args()
assert options.job_dir.endswith("/" + json.loads(os.environ["TF_CONFIG"])["task"]["trial"])


def model_fn(mode):
    optimizer = partial(torch.optim.Adam, lr=options.rate)
    return te.EstimatorSpec(mode=mode, module=Line(), loss=squared_error, optimizer=optimizer)


class Slowly(te.Hook):
    def after_step(self, context):
        time.sleep(0.02)


te.train_and_evaluate(
    te.Estimator(model_fn, options.job_dir, te.RunConfig(random_seed=1, save_checkpoints_steps=20)),
    te.TrainSpec(lambda: points().repeat(), max_steps=300, hooks=[Slowly()]),
    te.EvalSpec(points, steps=2, start_delay_secs=0, throttle_secs=0),
)
"""


@pytest.mark.parametrize("is_killed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_trials_that_are_clusters_pause_and_go_on(jobs: Jobs, is_killed: bool) -> None:
    jobs.program(CLUSTER)
    (jobs.folder / "hp.yaml").write_text(
        YAML.replace("trainingInput:", "trainingInput:\n  scaleTier: CUSTOM\n  workerCount: 1\n  evaluatorCount: 1")
        .replace("maxParallelTrials: 2", "enableTrialEarlyStopping: true")
        .replace("MAXIMIZE", "MINIMIZE")
        .replace("maxTrials: 4", "maxTrials: 2")
        .replace("Tag: score", "Tag: loss")
        .replace("[1, 2, 3.50, 4]", "[0.0001, 0.05]")
    )
    jobs.submit("study", "--config", "hp.yaml")
    if is_killed:
        wait_until(lambda: "trial 2 started" in jobs.log("study", "launcher"))
        os.kill(jobs.launcher("study"), signal.SIGKILL)
        assert jobs.wait("study") == "FAILED"
        assert jobs.run("resume", "study")[0] == 0
    assert jobs.wait("study") == "SUCCEEDED", jobs.log("study", "launcher")
    stopped, best = sorted(study(jobs).trials(), key=lambda trial: trial.state == "SUCCEEDED")
    assert (stopped.state, best.state) == ("STOPPED", "SUCCEEDED")
    assert (stopped.starts, best.starts, stopped.restarts, best.restarts) == (1, 2, 0, 0)
    assert [len(stopped.results), len(best.results), best.step] == [1, 2, 300]
    assert best.results[0][0] < 300 and stopped.results[0][0] < 300
    inner = Jobs(jobs.folder / "jobs" / "study")
    jobs_of = [f"study_{trial.number}" for trial in (stopped, best)]
    assert [status_of(inner.directory(name)).state for name in jobs_of] == ["CANCELLED", "SUCCEEDED"]
    assert jobs.log("study", "launcher").count("still runs (as a job)") == is_killed
    described = jobs.run("describe", jobs_of[1], "--jobs", "jobs/study/jobs", "--format", "json")[1]
    assert set(json.loads(described)["roles"]) >= {"chief-0", "worker-0", "evaluator-0"}


def test_a_directory_with_the_trials_of_another_study_is_refused(jobs: Jobs) -> None:
    submit(jobs, "", "--job-dir", "out")
    assert jobs.wait("study") == "SUCCEEDED"
    line = ("submit", "training", "again", "--config", "hp.yaml", "--module-name", "trainer.task", "--job-dir", "out")
    status, _, err = jobs.run(*line)
    assert (status, "--job-dir out has trials of another study already, such as 1, whose" in err) == (2, True), err


def test_a_job_that_is_no_study_has_no_trials(jobs: Jobs) -> None:
    jobs.program("pass")
    jobs.submit("plain")
    jobs.wait("plain")
    assert "job plain is no study, so that it has no trials." in jobs.run("trials", "plain")[2]


def test_kills_of_controller_and_trials_leave_the_table_of_an_undisturbed_study(jobs: Jobs) -> None:
    text = YAML.replace("maxParallelTrials: 2", "enableTrialEarlyStopping: true")
    often = WAITING.replace("step == 6", "step % 4 == 2").replace('"go"', 'f"go-{len(waits())}"')
    submit(jobs, often + WAITS, text=text)
    kills = itertools.cycle(["trial", "nothing", "controller", "both", "nothing"])
    for count in itertools.count(1):
        wait_until(lambda count=count: len(waiting(jobs)) == count or status_of(jobs.directory("study")).state in FINAL)
        if len(waiting(jobs)) < count:
            break
        kill = next(kills)
        if kill in ("controller", "both"):
            os.kill(jobs.launcher("study"), signal.SIGKILL)
        if kill in ("trial", "both"):
            os.kill(waiting(jobs)[-1], signal.SIGKILL)
        if kill in ("controller", "both"):
            assert jobs.wait("study") == "FAILED"
            assert jobs.run("resume", "study")[0] == 0
        (jobs.folder / f"go-{count}").touch()
    assert jobs.wait("study") == "SUCCEEDED"
    submit(jobs, name="other", text=text)
    assert jobs.wait("other") == "SUCCEEDED"
    tables = [
        [(one.parameters, one.state, one.rung, one.results, one.asked, one.told) for one in study(jobs, name).trials()]
        for name in ("study", "other")
    ]
    assert tables[0] == tables[1]
    assert count > 8
    for trial, other in zip(study(jobs).trials(), study(jobs, "other").trials(), strict=True):
        assert sorted(set(trained(trial))) == trained(other)
        # What is trained again had no checkpoint.
        assert {step % 4 for step in trained(trial) if trained(trial).count(step) > 1} <= {1, 2}


@pytest.mark.slow
def test_googles_line_tunes_the_census_trainer(jobs: Jobs) -> None:
    (jobs.folder / "hptuning_config.yaml").write_text(CENSUS)
    line = (
        f"submit training census_hp --stream-logs --runtime-version 1.10 --config hptuning_config.yaml --job-dir out "
        f"--module-name examples.census.trainer.task --package-path {ROOT}/examples --region us-central1 "
        "-- --train-steps 20 --save-checkpoints-steps 10 --eval-steps 2"
    )
    assert jobs.run(*line.split())[0] == 0
    trials = study(jobs, "census_hp").trials()
    assert [(trial.state, trial.step) for trial in trials] == [("SUCCEEDED", 20)] * 2
    assert all((jobs.folder / "out" / str(number) / "export" / "census").is_dir() for number in (1, 2))
