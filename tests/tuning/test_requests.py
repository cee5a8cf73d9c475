"""Requests to a controller: trials are stopped, paused and promoted, also where a controller was killed meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tuning.studies import curve, make_study, make_trial, run_study, trained
from torch_estimator.errors import InvalidValueError
from torch_estimator.tuning.directory import StudyDirectory
from torch_estimator.tuning.requests import Requests
from torch_estimator.tuning.space import Discrete, Space

SIX = Space((Discrete("rate", ("1", "2", "3", "4", "5", "6")),))
ASHA = {"space": SIX, "metric": "score", "max_trials": 6, "algorithm": "GRID", "early_stopping": True}

# Trial 2 waits at step 3, on its way to its first rung, until there is a file.
WAITS = """
def each_step(step):
    if options.rate == 2 and step == 3:
        pathlib.Path("waits").touch()
        wait_for("go")
"""


def run_with(directory: StudyDirectory, meanwhile: Callable[[], object]) -> list[str]:
    """Run a study to its end, while a thread does something; return what was said."""
    # As the launcher says it.
    directory.job.add("started", "RUNNING")
    failed: list[BaseException] = []

    def body() -> None:
        try:
            meanwhile()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    status, reason, said = run_study(directory)
    thread.join()
    assert (status, reason, failed) == (0, "", [])
    return said


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not is_so():
        time.sleep(0.005)
        assert time.monotonic() < end


def test_a_stopped_trial_stays_where_it_is_and_the_study_goes_on(tmp_path: Path) -> None:
    directory = make_study(tmp_path, curve(WAITS), **ASHA)

    def stop() -> None:
        wait_for((tmp_path / "waits").exists)
        Requests(directory).ask("STOP", 2)

    said = run_with(directory, stop)
    trial = directory.trial(2)
    assert (trial.state, trial.by_hand, trial.results) == ("STOPPED", "STOP", [])
    assert trial.reason == "it was stopped by request."
    assert trained(trial) == [1, 2]
    assert {one.state for one in directory.trials() if one.number != 2} == {"STOPPED", "SUCCEEDED"}
    [(request, answer)] = Requests(directory).all()
    assert (request.action, request.trial) == ("STOP", 2)
    assert answer is not None and (answer.text, answer.is_refused) == ("its process is told to end.", False)
    assert "trial 2 has ended: it was stopped by request." in said


def test_a_paused_trial_waits_until_it_is_promoted_and_then_goes_on_to_where_it_was_going(tmp_path: Path) -> None:
    # One trial after the other: trial 6 ends only when trial 2 has been promoted.
    program = curve(
        WAITS + "    if options.rate == 6 and step == 1:\n        pathlib.Path('six').touch()\n        wait_for('on')"
    )
    directory = make_study(tmp_path, program, **ASHA)
    held = []

    def pause_and_promote() -> None:
        wait_for((tmp_path / "waits").exists)
        Requests(directory).ask("PAUSE", 2)
        wait_for(lambda: bool(Requests(directory).all()[-1][1]))
        (tmp_path / "go").touch()
        wait_for((tmp_path / "six").exists)
        held.append(directory.trial(2))
        Requests(directory).ask("PROMOTE", 2)
        wait_for(lambda: len([one for one in Requests(directory).all() if one[1]]) == 2)
        (tmp_path / "on").touch()

    said = run_with(directory, pause_and_promote)
    assert (held[0].state, held[0].by_hand, held[0].pauses_at) == ("PAUSED", "PAUSE", 1)
    trial = directory.trial(2)
    assert (trial.by_hand, trial.reason) == ("", "")
    assert trial.results[0] == (4, 8.0)
    assert "trial 2 goes on to step 1." in said


def test_a_promoted_trial_goes_to_its_next_rung_although_others_did_better(tmp_path: Path) -> None:
    program = curve("""
    def each_step(step):
        if options.rate == 6 and step == 1:
            pathlib.Path("six").touch()
            wait_for("on")
    """)
    directory = make_study(tmp_path, program, **ASHA)

    def promote() -> None:
        wait_for((tmp_path / "six").exists)
        Requests(directory).ask("PROMOTE", 1)
        wait_for(lambda: bool(Requests(directory).all()[-1][1]))
        (tmp_path / "on").touch()

    run_with(directory, promote)
    # Without the request, trial 1 would be the worst one, and stay at step 4.
    assert directory.trial(1).results[:2] == [(4, 4.0), (16, 16.0)]
    assert trained(directory.trial(1)) == list(range(1, 17))


def test_what_was_asked_of_a_killed_controller_is_done_by_the_next(tmp_path: Path) -> None:
    directory = make_study(tmp_path, curve(), **ASHA)
    directory.job.add("started", "RUNNING")
    # Trial 1 has paused at its first rung. It was asked to stop, which the controller has written, but not answered.
    make_trial(directory, 1, parameters={"rate": "6"}, state="PAUSED", results=[(4, 24.0)], told=[2], asked=1, starts=1)
    Requests(directory).ask("STOP", 1)
    directory.write(stopped := directory.trial(1))
    stopped.by_hand = "STOP"
    directory.write(stopped)
    assert run_study(directory)[0] == 0
    assert directory.trial(1).state == "STOPPED"
    assert [answer and answer.is_refused for _, answer in Requests(directory).all()] == [False]
    # It stays stopped when the study goes on.
    assert run_study(directory)[0] == 0
    assert (directory.trial(1).state, directory.trial(1).starts) == ("STOPPED", 1)


def test_a_request_for_a_trial_that_ended_meanwhile_is_refused_with_a_sentence(tmp_path: Path) -> None:
    directory = make_study(tmp_path, curve(), **ASHA)
    directory.job.add("started", "RUNNING")
    trial = make_trial(directory, 1, parameters={"rate": "1"}, starts=1)
    Requests(directory).ask("STOP", 1)
    Requests(directory).ask("STOP", 1)
    damaged = Path(directory.job.url, "requests", "00000002.json")
    damaged.write_text("{")
    trial.state, trial.results, trial.told, trial.asked = "SUCCEEDED", [(64, 64.0)], [2], 1
    directory.write(trial)
    assert run_study(directory)[0] == 0
    damaged.write_text('{"action": "STOP", "trial": 1, "time": 0}')
    [(_, ended), (_, unread)] = Requests(directory).all()
    assert ended is not None and ended.is_refused and ended.text == "trial 1 has ended already: it is SUCCEEDED."
    assert unread is not None and unread.is_refused and "is damaged" in unread.text
    with pytest.raises(InvalidValueError, match="trial 1 has ended already: it is SUCCEEDED"):
        Requests(directory).ask("PAUSE", 1)


def test_what_cannot_be_done_is_refused_at_once(tmp_path: Path) -> None:
    directory = make_study(tmp_path, curve(), **ASHA)
    directory.job.add("started", "RUNNING")
    make_trial(directory, 1)
    requests = Requests(directory)
    with pytest.raises(InvalidValueError, match="has no trial 2"):
        requests.ask("STOP", 2)
    with pytest.raises(InvalidValueError, match="trial 1 runs already; only a paused trial"):
        requests.ask("PROMOTE", 1)
    with pytest.raises(InvalidValueError, match="but not to 'EXPLODE'"):
        requests.ask("EXPLODE", 1)
    directory.job.add("ended", "FAILED")
    with pytest.raises(InvalidValueError, match="no controller is there to stop trial 1; jobs resume study starts one"):
        requests.ask("STOP", 1)
    assert requests.all() == []
