"""The controller: which trials run, what becomes of them, and what is said of mistakes."""

from __future__ import annotations

import errno
import math
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.tuning.studies import curve, make_study, make_trial, run_study, trained
from torch_estimator.errors import InvalidValueError
from torch_estimator.tuning.controller import run_controller
from torch_estimator.tuning.directory import Trial, best_trial
from torch_estimator.tuning.samplers import Random
from torch_estimator.tuning.space import Discrete, Integer, Space
from torch_estimator.tuning.starters import Forked
from torch_estimator.tuning.submission import add_earlier_trials

SIX = Space((Discrete("rate", ("1", "2", "3", "4", "5", "6")),))
SIXTEEN = Space((Discrete("rate", tuple(map(str, range(1, 17)))),))


def test_a_grid_runs_two_at_a_time(tmp_path: Path) -> None:
    program = curve("""
    add("running", "+1")
    while len(open("running").readlines()) < 2:
        time.sleep(0.002)
    options.steps = 4
    def each_step(step):
        if step == 4:
            add("running", "-1")
    """)
    directory = make_study(tmp_path, program, space=SIX, metric="score", max_trials=6, parallel=2, algorithm="GRID")
    status, reason, said = run_study(directory)
    assert (status, reason) == (0, "")
    trials = directory.trials()
    assert [trial.parameters for trial in trials] == [{"rate": str(rate)} for rate in range(1, 7)]
    assert [(trial.state, trial.value, trial.step) for trial in trials] == [
        ("SUCCEEDED", 4.0 * rate, 4) for rate in range(1, 7)
    ]
    assert max(accumulate(map(int, (tmp_path / "running").read_text().split()))) == 2
    assert said[-1] == "the best of 6 trials is 6: score = 24"
    # Each call of the sampler has its place.
    assert sorted([trial.asked for trial in trials] + [trial.told[0] for trial in trials]) == list(range(1, 13))


def test_the_best_are_promoted_and_go_on_from_their_checkpoints(tmp_path: Path) -> None:
    settings = {"space": SIXTEEN, "metric": "score", "max_trials": 16, "algorithm": "GRID", "early_stopping": True}
    directory = make_study(tmp_path, curve("options.rate = 17 - options.rate"), **settings)
    status, _, _ = run_study(directory)
    trials = directory.trials()
    assert (status, len(trials)) == (0, 16)
    best = best_trial(trials, directory.study())
    assert best is not None
    assert (best.number, best.state, best.results) == (1, "SUCCEEDED", [(4, 64.0), (16, 256.0), (64, 1024.0)])
    for trial in trials:
        assert trained(trial) == list(range(1, trial.results[-1][0] + 1))
        assert trial.state == ("SUCCEEDED" if trial.step == 64 else "STOPPED")
    assert sorted(trial.step or 0 for trial in trials) == [4] * 12 + [64] * 4


@pytest.mark.parametrize(
    ("program", "steps"),
    [
        # Four have paused at step 16. That is a quarter of all.
        (curve("options.rate = 17 - options.rate"), [4] * 12 + [64] * 4),
        # One has paused at step 64, the highest rung; those at lower rungs stay there.
        (curve("options.rate, options.steps = 17 - options.rate, 256"), [4] * 12 + [16] * 3 + [256]),
        # From the fourth one on, each was the best when it came, also at step 16: ten have ended without this.
        (curve(), [4] * 3 + [16] * 3 + [64] * 10),
        # Three have ended of 13 that came to step 16, where the first ones were the best. One more goes on.
        (
            curve("each_step = lambda step: step == 5 and setattr(options, 'rate', 17 - options.rate)"),
            [4] * 3 + [16] * 9 + [64] * 4,
        ),
    ],
)
def test_in_the_end_a_quarter_of_all_finishes_if_as_many_are_at_the_highest_rung(
    tmp_path: Path, program: str, steps: list[int]
) -> None:
    settings = {"space": SIXTEEN, "metric": "score", "max_trials": 16, "algorithm": "GRID", "early_stopping": True}
    directory = make_study(tmp_path, program, **settings)
    assert run_study(directory)[0] == 0
    assert sorted(trial.step or 0 for trial in directory.trials()) == steps


def test_the_best_trial_runs_to_its_end_where_none_was_promoted_so_far(tmp_path: Path) -> None:
    settings = {"space": SIX, "metric": "score", "max_trials": 6, "algorithm": "GRID", "early_stopping": True}
    # There are more trials than points of the grid.
    directory = make_study(tmp_path, curve(), **{**settings, "max_trials": 10})
    assert run_study(directory)[0] == 0
    trials = directory.trials()
    best = best_trial(trials, directory.study())
    assert best is not None
    assert (best.number, best.step, trained(best)) == (6, 64, list(range(1, 65)))
    # From the fourth one on, each was the best when it came, and so was promoted.
    assert [trial.step for trial in trials] == [4, 4, 4, 16, 16, 64]


def test_a_poor_trial_that_ends_early_by_itself_is_not_the_best(tmp_path: Path) -> None:
    program = curve("""
    if options.rate == 6:
        options.steps = 2
        add(os.environ["CLOUD_ML_HP_METRIC_FILE"], json.dumps({"score": 0.1, "global_step": 2}))
    options.rate = 7 - options.rate
    """)
    settings = {"space": SIX, "metric": "score", "max_trials": 6, "algorithm": "GRID", "early_stopping": True}
    directory = make_study(tmp_path, program, **settings)
    assert run_study(directory)[0] == 0
    trials = directory.trials()
    best = best_trial(trials, directory.study())
    assert best is not None and best.number == 1
    assert [(one.number, one.step) for one in trials if one.state == "SUCCEEDED"] == [(1, 64), (6, 2)]


def test_a_trial_without_the_metric_at_its_rung_fails_at_once(tmp_path: Path) -> None:
    program = curve("""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    def each_step(step):
        os.environ["CLOUD_ML_HP_METRIC_FILE"] = "elsewhere"
    """)
    settings = {"space": SIX, "metric": "score", "max_failed": 1, "early_stopping": True}
    directory = make_study(tmp_path, program, **settings)
    assert "because the metric 'score' never appeared; nothing was measured in" in run_study(directory)[1]
    assert directory.trial(1).starts == 1


def test_a_study_that_ends_lets_only_trials_save_that_go_to_their_end(tmp_path: Path) -> None:
    program = curve("""
    def end(number, frame):
        add("saved", str(options.rate))
        sys.exit(143)
    signal.signal(signal.SIGTERM, end)
    options.steps = 8
    options.rate == 2 and (wait_for("waits"), sys.exit(2))
    def each_step(step):
        if step == 3:
            pathlib.Path("waits").touch()
            time.sleep(60)
    """)
    for early_stopping, saved in ((True, ""), (False, "1.0\n")):
        folder = tmp_path / str(early_stopping)
        folder.mkdir()
        settings = {"max_trials": 2, "max_failed": 1, "parallel": 2, "early_stopping": early_stopping}
        directory = make_study(folder, program, space=SIX, metric="score", algorithm="RANDOM", **settings)
        for number in (1, 2):
            make_trial(directory, number, parameters={"rate": str(number)}, pauses_at=1 if early_stopping else None)
        (folder / "saved").touch()
        assert run_study(directory)[0] == 1
        assert (folder / "saved").read_text() == saved
        assert directory.trial(1).state == "RUNNING"


def test_a_lower_value_can_be_better_and_nan_is_the_worst(tmp_path: Path) -> None:
    program = curve("""
    options.steps = 4
    options.rate = {1: math.nan}.get(options.rate, options.rate)
    """).replace("import argparse,", "import math, argparse,")
    directory = make_study(
        tmp_path, program, space=SIX, metric="score", max_trials=6, goal="MINIMIZE", algorithm="GRID"
    )
    assert run_study(directory)[0] == 0
    trials = directory.trials()
    best = best_trial(trials, directory.study())
    assert best is not None and best.parameters == {"rate": "2"}
    assert trials[0].value is not None and math.isnan(trials[0].value)


def test_the_environment_of_a_study_may_say_what_auto_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = curve("print(os.environ.get('TORCH_ESTIMATOR_COMPILE')); options.steps = 4")
    for name, given, settled in (("a", None, None), ("b", "true", True), ("c", "false", False)):
        if given is not None:
            monkeypatch.setenv("TORCH_ESTIMATOR_COMPILE", given)
        directory = make_study(tmp_path, program, name=name, space=SIX, metric="score")
        assert run_study(directory)[0] == 0
        assert directory.trial(1).compile is settled
        assert Path(directory.log(1)).read_text() == f"{given}\n"


def test_a_trial_that_fails_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    program = curve("options.rate == 2 and sys.exit('no row has a label')")
    directory = make_study(tmp_path, program, space=SIX, metric="score", max_trials=6, algorithm="GRID")
    assert run_study(directory)[:2] == (0, "")
    failed = directory.trials()[1]
    assert (failed.state, failed.starts) == ("FAILED", 1)
    assert failed.reason == "it ended with status 1. It said: no row has a label"
    assert [trial.state for trial in directory.trials()].count("SUCCEEDED") == 5


def test_a_study_ends_after_too_many_failures(tmp_path: Path) -> None:
    directory = make_study(tmp_path, "import sys; sys.exit(2)", space=SIX, max_trials=6, max_failed=2)
    status, reason, _ = run_study(directory)
    assert status == 1
    assert reason == "2 trials have failed, the last one, 2, because it ended with status 2."
    assert [trial.state for trial in directory.trials()] == ["FAILED"] * 2


def test_some_trials_that_diverge_do_not_end_a_study_that_has_values(tmp_path: Path) -> None:
    program = curve("options.steps = 4; options.rate not in (1, 16) and options.rate < 9 and sys.exit('NaN loss')")
    settings = {"space": SIXTEEN, "metric": "score", "max_trials": 16, "algorithm": "GRID"}
    directory = make_study(tmp_path, program, **settings)
    assert run_study(directory)[:2] == (0, "")
    assert [trial.state for trial in directory.trials()].count("FAILED") == 7
    program = program.replace("options.rate < 9", "options.rate < 12")
    status, reason, _ = run_study(make_study(tmp_path, program, name="worse", **settings))
    assert (status, reason.partition(",")[0]) == (1, "8 trials have failed")


def test_a_study_of_which_no_trial_has_a_value_fails(tmp_path: Path) -> None:
    directory = make_study(tmp_path, "import sys; sys.exit('broken')", space=SIX)
    assert run_study(directory)[:2] == (
        1,
        "no trial has a value; trial 1 failed because it ended with status 1. It said: broken",
    )


def test_a_parameter_that_the_program_does_not_take_is_named(tmp_path: Path) -> None:
    directory = make_study(tmp_path, curve(), space=Space((Integer("layers", 1, 9),)), max_failed=1)
    assert "unrecognized arguments: --layers=" in run_study(directory)[1]


def test_a_program_that_ignores_its_job_directory_is_told_of_it(tmp_path: Path) -> None:
    directory = make_study(tmp_path, "print('all is well')", metric="auc")
    assert run_study(directory)[1].endswith(
        f"the metric 'auc' never appeared; nothing was measured in {directory.path(1)}, which the program gets as "
        "--job-dir."
    )


def test_a_metric_that_never_appears_is_an_error_that_names_those_that_did(tmp_path: Path) -> None:
    directory = make_study(tmp_path, curve("options.steps = 4"), space=SIX, metric="auc")
    assert run_study(directory)[1].endswith("the metric 'auc' never appeared; these did: score.")


def test_a_program_that_cannot_pause_runs_to_its_end_and_that_is_said_once(tmp_path: Path) -> None:
    program = curve("evaluation_watch = lambda: type('', (), {'evaluated': lambda *a, **k: None})")
    settings = {"space": SIX, "metric": "score", "max_trials": 6, "algorithm": "GRID", "early_stopping": True}
    directory = make_study(tmp_path, program, **settings)
    _, _, said = run_study(directory)
    assert [trial.step for trial in directory.trials()] == [64] * 6
    assert sum("ended without a pause" in line for line in said) == 1


def test_a_killed_trial_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    program = curve("""
    def each_step(step):
        if step == 9 and not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    directory = make_study(tmp_path, program, space=SIX, metric="score")
    assert run_study(directory)[:2] == (0, "")
    trial = directory.trial(1)
    assert trained(trial) == list(range(1, 65))
    assert (trial.state, trial.starts, trial.restarts) == ("SUCCEEDED", 2, 0)


def test_a_death_of_which_the_controller_was_not_told_is_no_restart(tmp_path: Path) -> None:
    # As after a cancel, a Ctrl-C, or the end of the controller itself.
    directory = make_study(tmp_path, curve(), space=SIX, metric="score")
    make_trial(directory, 1, parameters={"rate": "1"}, starts=5, restarts=directory.job.spec().max_restarts)
    assert run_study(directory)[:2] == (0, "")
    assert (directory.trial(1).state, directory.trial(1).starts) == ("SUCCEEDED", 6)


def test_a_program_that_cannot_pause_is_not_paused_by_a_kill(tmp_path: Path) -> None:
    program = curve("""
    evaluation_watch = lambda: type('', (), {'evaluated': lambda *a, **k: None})
    def each_step(step):
        if step == 9 and not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    directory = make_study(tmp_path, program, space=SIX, metric="score", early_stopping=True)
    assert run_study(directory)[0] == 0
    trial = directory.trial(1)
    assert (trial.state, trial.starts, [step for step, _ in trial.results]) == ("SUCCEEDED", 2, [64])


def test_a_program_that_goes_on_after_its_training_has_paused(tmp_path: Path) -> None:
    program = curve("""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    options.rate = 7 - options.rate
    """)
    settings = {"space": SIX, "metric": "score", "max_trials": 6, "algorithm": "GRID", "early_stopping": True}
    directory = make_study(tmp_path, program, **settings)
    assert run_study(directory)[0] == 0
    assert [trial.step for trial in directory.trials()] == [64, 4, 4, 4, 4, 4]


def test_a_rung_is_an_evaluated_checkpoint_where_the_metric_has_more_points(tmp_path: Path) -> None:
    program = curve("""
    def each_step(step):
        score = {"score": options.rate * step, "global_step": step}
        add(os.environ["CLOUD_ML_HP_METRIC_FILE"], json.dumps(score))
    """)
    settings = {"space": SIX, "metric": "score", "max_trials": 2, "algorithm": "RANDOM", "early_stopping": True}
    directory = make_study(tmp_path, program, **settings)
    assert run_study(directory)[0] == 0
    assert sorted(trial.results[0][0] for trial in directory.trials()) == [4, 4]


def test_a_trial_that_dies_again_and_again_fails(tmp_path: Path) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    directory = make_study(tmp_path, program, space=SIX)
    assert run_study(directory)[1].endswith("because it was killed by SIGKILL.")
    assert directory.trial(1).starts == 1 + directory.job.spec().max_restarts


def test_the_trials_of_an_earlier_job_come_first(tmp_path: Path) -> None:
    other = Space((Discrete("rate", ("7",)),))
    earlier = make_study(tmp_path, curve(), name="earlier", metric="score")
    for number, state in enumerate(("SUCCEEDED", "STOPPED", "FAILED"), 1):
        results = [(number, 0.5)]
        make_trial(earlier, number, parameters={"rate": str(number)}, state=state, results=results)
    settings = {"metric": "score", "resume_previous": "earlier"}
    grid = {"algorithm": "GRID", "max_trials": 9}
    directory = make_study(tmp_path, curve("options.steps = 4"), space=SIX, **settings, **grid)
    assert run_study(directory)[0] == 0
    assert [trial.parameters["rate"] for trial in directory.trials()] == ["3", "4", "5", "6"]
    added: list[Any] = []
    recorder = Random(directory.study())
    recorder.add = lambda *call: added.append(call)  # type: ignore[method-assign]  # the sampler is not under test
    add_earlier_trials(recorder, directory.study(), directory.job.jobs)
    assert added == [({"rate": "1"}, 0.5, None), ({"rate": "2"}, 0.5, 2)]
    elsewhere = make_study(tmp_path, curve(), space=other, name="elsewhere", **settings)
    with pytest.raises(InvalidValueError, match="'rate' must be one of 7, but got 1"):
        run_study(elsewhere)
    with pytest.raises(InvalidValueError, match="there is no job never"):
        run_study(make_study(tmp_path, curve(), name="late", resume_previous="never"))


def test_a_full_disk_ends_a_study_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_study(tmp_path, curve(), space=SIX, metric="score")

    def write(trial: Trial) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", directory.path(1, ".json"))

    monkeypatch.setattr(directory, "write", write)
    with pytest.raises(InvalidValueError) as error:
        run_controller(directory, lambda say: Forked(directory), 1)
    assert str(error.value).startswith(f"the study in {directory.job.url} cannot be written: No space left on device")
    assert str(error.value).endswith("; mend that, and jobs resume study goes on.")
