"""Studies in Python: functions and programs, and what is said of mistakes."""

from __future__ import annotations

import atexit
import os
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_estimator as te
from scripts.storms.submitting import wait_until
from tests.tuning.studies import ROOT, curve
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.jobs.directory import JobDirectory
from torch_estimator.processes.forked import fork
from torch_estimator.tuning.directory import StudyDirectory


def tune(folder: Path, what: Any, space: Any = None, **settings: Any) -> te.TuningResult:
    given = {"metric": "score", "algorithm": "grid", "trials": 3, "directory": folder / "study", **settings}
    return te.tune(what, space or {"x": [1, 2, 3]}, **given)


def test_a_function_gets_values_and_runs_in_a_process_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    atexit.register(ended.append, 1)
    print("once", end="")

    def score(parameters: dict[str, Any], job_dir: str) -> float:
        print("said by a trial")
        Path(f"{job_dir}.seen").write_text(f"{os.getpid()} {threading.active_count()} {parameters!r}")
        return float(parameters["x"])

    result = tune(tmp_path, score, {"x": [1, 2.5], "kind": ["a"]}, trials=2, parallel=2)
    assert capfd.readouterr().out == "once"
    table = result.frame()
    assert (table["score"].tolist(), table["state"].tolist()) == ([1.0, 2.5], ["SUCCEEDED"] * 2)
    assert (result.best_parameters, result.best_value, result.best_export) == ({"x": 2.5, "kind": "a"}, 2.5, None)
    seen = Path(f"{result.best_dir}.seen").read_text().split(maxsplit=2)
    assert (int(seen[0]) != os.getpid(), seen[1:]) == (True, ["1", "{'x': 2.5, 'kind': 'a'}"])
    assert (tmp_path / "study" / "logs" / "trial-1.raw.log").read_text() == "said by a trial\n"
    assert repr(result) == f"TuningResult(2 trials in {tmp_path}/study; best: trial 2, score = 2.5)"


def test_no_two_trials_draw_the_same_random_numbers(tmp_path: Path) -> None:
    drawn = {random.random, np.random.random, lambda: torch.rand(1).item()}
    for index, draw in enumerate(drawn):
        result = tune(tmp_path / str(index), lambda parameters, job_dir, draw=draw: float(draw()))
        assert result.frame()["score"].nunique() == 3


def test_a_program_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "task.py").write_text(curve())
    result = tune(tmp_path, "task", {"rate": (1, 3)}, arguments=["--steps", "8"])
    assert result.frame()["score"].tolist() == [8.0, 16.0, 24.0]
    # Nothing is left to do.
    assert tune(tmp_path, "task", {"rate": (1, 3)}, arguments=["--steps", "8"]).best_value == 24.0


def test_a_study_that_failed_goes_on_when_it_is_called_again(tmp_path: Path) -> None:
    def score(parameters: dict[str, Any], job_dir: str) -> float:
        if not (tmp_path / "data").exists():
            raise InvalidValueError("there is no data.")
        return float(parameters["x"])

    space = {"x": [1, 2, 3, 4]}
    with pytest.raises(InvalidValueError, match=r"3 trials have failed, .* error: there is no data\."):
        tune(tmp_path, score, space, trials=4)
    (tmp_path / "data").touch()
    result = tune(tmp_path, score, space, trials=4)
    assert result.frame()["state"].tolist() == ["FAILED"] * 3 + ["SUCCEEDED"]


def test_ctrl_c_ends_the_trials_and_they_go_on_later(tmp_path: Path) -> None:
    def score(parameters: dict[str, Any], job_dir: str) -> float:
        if not (tmp_path / "interrupted").exists():
            (tmp_path / "interrupted").touch()
            os.kill(os.getppid(), signal.SIGINT)
            signal.pause()
        return float(parameters["x"])

    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, score)
    assert tune(tmp_path, score).best_value == 3.0
    trials = StudyDirectory(JobDirectory(str(tmp_path), "study")).trials()
    assert [trial.starts for trial in trials] == [2, 1, 1]


def test_a_call_takes_up_the_trials_of_one_that_was_killed(tmp_path: Path) -> None:
    def score(parameters: dict[str, Any], job_dir: str) -> float:
        with open(tmp_path / "runs", "a") as file:
            file.write("once\n")
        while not (tmp_path / "go").exists():
            time.sleep(0.002)
        return float(parameters["x"])

    caller = fork(may_outlive=True)
    if caller is None:
        tune(tmp_path, score)
        os._exit(0)
    wait_until((tmp_path / "runs").exists)
    events = JobDirectory(str(tmp_path), "study").events()
    with pytest.raises(InvalidValueError, match="another controller is at work"):
        tune(tmp_path, score)
    assert JobDirectory(str(tmp_path), "study").events() == events
    # Its children are in groups of their own, and go on.
    os.kill(caller.pid, signal.SIGKILL)
    wait_until(caller.has_ended)
    (tmp_path / "go").touch()
    assert tune(tmp_path, score).best_value == 3.0
    assert (tmp_path / "runs").read_text().count("once") == 3


def test_a_function_gets_the_values_of_lists_as_they_were_given(tmp_path: Path) -> None:
    def score(parameters: dict[str, Any], job_dir: str) -> float:
        Path(f"{job_dir}.seen").write_text(repr(parameters))
        return float(parameters["size"])

    space = {"size": [np.int64(3), np.float32(0.5)], "shuffle": [True, False], "kind": ["1", np.str_("b")]}
    result = tune(tmp_path, score, space, trials=8)
    seen = [(tmp_path / "study" / "trials" / f"{number}.seen").read_text() for number in range(1, 9)]
    assert seen == [
        repr({"size": size, "shuffle": shuffle, "kind": kind})
        for size in (0.5, 3)
        for shuffle in (True, False)
        for kind in ("1", "b")
    ]
    assert repr(result.best_parameters) == "{'size': 3, 'shuffle': True, 'kind': '1'}"
    ranges = {"rate": (np.float32(0.25), np.int64(2)), "layers": (np.int64(1), np.int64(3))}
    best = tune(tmp_path / "ranges", lambda parameters, job_dir: 1.0, ranges, algorithm="random").best_parameters
    assert {name: type(value) for name, value in best.items()} == {"rate": float, "layers": int}


class Scored:
    """A callable object."""

    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, parameters: dict[str, Any], job_dir: str) -> float:
        return max(self.least, float(parameters["x"]))


def add(first: int, parameters: dict[str, Any], job_dir: str, *, last: int = 0) -> float:
    return first + float(parameters["x"]) + last


def closure(least: int) -> Any:
    return lambda parameters, job_dir: max(least, float(parameters["x"]))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda number: partial(add, number), "add"),
        (lambda number: partial(add, 1, last=number), "add"),
        (Scored, "Scored"),
        (lambda number: Scored(number).__call__, "Scored.__call__"),
        (lambda number: partial(Scored(number)), "Scored"),
        (closure, "closure.<locals>.<lambda>"),
        (lambda number: [lambda parameters, job_dir: 1.0, lambda parameters, job_dir: 2.0][number], "<lambda>"),
    ],
)
def test_a_function_that_has_changed_is_refused(tmp_path: Path, make: Any, name: str) -> None:
    best = tune(tmp_path, make(0)).best_value
    assert tune(tmp_path, make(0)).best_value == best
    with pytest.raises(InvalidValueError, match=rf"{name} has changed since the study in .*; give another directory"):
        tune(tmp_path, make(1))
    # A study of an earlier version has no digest, and one of another Python tells nothing.
    job = JobDirectory(str(tmp_path), "study")
    spec = job.spec()
    assert spec.study is not None
    for code in ("", "3.0 another"):
        spec.study["code"] = code
        job.write(spec)
        assert tune(tmp_path, make(1)).best_value == best


def test_the_table_has_the_seconds_of_each_trial(tmp_path: Path) -> None:
    table = tune(tmp_path, lambda parameters, job_dir: float(parameters["x"])).frame()
    assert table.columns.tolist() == ["state", "step", "secs", "score", "x"]
    assert table["secs"].between(0, 600).all()


def test_an_empty_directory_is_as_good_as_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    assert tune(tmp_path, lambda parameters, job_dir: float(parameters["x"])).best_value == 3.0


def test_what_is_no_directory_of_a_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "data").touch()
    with pytest.raises(InvalidValueError, match=r"/study has files, but none of a study; give another directory\."):
        tune(tmp_path, lambda parameters, job_dir: 1.0)
    with pytest.raises(InvalidValueError, match=r"/data cannot be the directory of a study: Not a directory; give "):
        tune(tmp_path, lambda parameters, job_dir: 1.0, directory=tmp_path / "study" / "data")


def test_another_thread_is_refused(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def call() -> None:
        try:
            tune(tmp_path, lambda parameters, job_dir: 1.0)
        except InvalidValueError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert [str(error) for error in errors] == [
        "tune must be called in the main thread, the only one that can handle signals."
    ]
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"trials": 2.5}, "trials must be a whole number, but got 2.5"),
        ({"parallel": "3"}, "parallel must be a whole number, but got '3'"),
        ({"seed": None}, "seed must be a whole number, but got None"),
        ({"metric": None}, "metric must be the name of a metric, such as 'auc', but got None"),
        ({"early_stopping": "no"}, "early_stopping must be True or False, but got 'no'"),
        ({"arguments": "--steps 8"}, "arguments must be a list of texts, such as .* but got '--steps 8'"),
        ({"space": ["x"]}, "space must be a dict of values by name, but got \\['x'\\]"),
        ({"space": {1: [2]}}, "the name of a parameter must be a text, but got 1"),
        ({"what": 5}, "the first argument must be a function or the name of a module, but got 5"),
    ],
)
def test_an_argument_of_another_type_is_one_sentence(tmp_path: Path, settings: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidTypeError, match=error):
        tune(tmp_path, **{"what": lambda parameters, job_dir: 1.0, **settings})
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"space": {"x": [None, 64]}}, "'x' must be numbers, texts or bools, and all of one kind, but got \\[None, 64"),
        ({"space": {"x": [True, "auto"]}}, "must be numbers, texts or bools, and all of one kind"),
        ({"space": {"x": (False, True)}}, "the values of parameter 'x' must be a list, \\(low, high\\) or"),
        ({"space": {"state": [1]}}, "parameter 'state' has the name of another column of the table"),
        ({"space": {"score": [1]}}, "parameter 'score' has the name of another column of the table"),
        ({"space": {"job_dir": ["a"]}}, "parameter 'job_dir' cannot be told from the --job-dir that each trial gets"),
        ({"goal": ["minimize"]}, "goal must be one of"),
        ({"space": {"x": 5}}, "the values of parameter 'x' must be a list, \\(low, high\\) or"),
        ({"space": {"x": (3, 1)}}, "'x' has no values"),
        ({"space": {"x": (0, 1.0, "log")}}, "needs a minimum above 0"),
        ({"space": {}}, "there are no parameters"),
        ({"trials": 2}, "the grid has 3 points, but the study has 2 trials"),
        ({"goal": "best"}, "goal must be one of 'maximize', 'minimize', but got 'best'"),
        ({"what": "no.such.module"}, "there is no module no.such.module"),
        ({"what": lambda parameters, job_dir: "good"}, "returned 'good'"),
        ({"directory": "memory://study/one"}, "the trials of a study lock local files"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, settings: dict[str, Any], error: str) -> None:
    settings = {"what": lambda parameters, job_dir: 1.0, **settings}
    if settings.get("space") == {}:
        with pytest.raises(InvalidValueError, match=error):
            te.tune(settings["what"], {}, metric="score", directory=tmp_path / "study")
        return
    with pytest.raises(InvalidValueError, match=error):
        tune(tmp_path, **settings)


def test_another_study_in_the_directory_is_refused(tmp_path: Path) -> None:
    tune(tmp_path, lambda parameters, job_dir: 1.0)
    with pytest.raises(InvalidValueError, match="has the study of something else; give another directory"):
        tune(tmp_path, lambda parameters, job_dir: 1.0, {"x": [4, 5]})
