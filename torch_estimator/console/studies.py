"""The trials of studies, each read again only if its file has changed: most of a study's files no longer do."""

from __future__ import annotations

import contextlib
import os

from torch_estimator.errors import UserError
from torch_estimator.tuning.directory import StudyDirectory, Trial

_MOST_KEPT = 20_000

# Trials by the paths of their files, with the times of these.
_kept: dict[str, tuple[int, Trial]] = {}


def read_trials(directory: StudyDirectory) -> tuple[list[Trial], list[str]]:
    """Return the trials of a study, and what is wrong with those that cannot be read."""
    trials, problems = [], []
    for number in directory.numbers():
        try:
            trials.append(_trial(directory, number))
        except UserError as error:
            problems.append(str(error))
    return trials, problems


def states_of(directory: StudyDirectory, trials: list[Trial], *, is_over: bool) -> list[str]:
    """Return the states of trials, as they are shown."""
    # Whether a process of a trial is there, a reader without the right to lock its file cannot know.
    with contextlib.suppress(OSError, UserError, ValueError):
        return directory.states(trials, is_over=is_over)
    return [trial.state for trial in trials]


def _trial(directory: StudyDirectory, number: int) -> Trial:
    path, changed = directory.path(number, ".json"), 0
    with contextlib.suppress(OSError):
        changed = os.stat(path).st_mtime_ns
    known = _kept.get(path)
    if known is not None and known[0] == changed:
        return known[1]
    trial = directory.trial(number)
    if changed:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[path] = changed, trial
    return trial
