"""Requests: what people ask of the controller of a study that runs, as numbered files, with its answers beside them.

    JOBS/NAME/requests/00000001.json    a `Request`: stop, pause or promote a trial
    JOBS/NAME/requests/00000001.answer  an `Answer`, which only the controller writes

What is not answered waits for a controller: one that was killed, and is started again, finds it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from torch_estimator import files
from torch_estimator.errors import InvalidValueError, UserError
from torch_estimator.jobs.directory import FINAL
from torch_estimator.jobs.kinds import status_of
from torch_estimator.runs.numbered_files import NumberedFiles
from torch_estimator.runs.state_file import StateFile
from torch_estimator.tuning.directory import StudyDirectory, Trial

Action = Literal["STOP", "PAUSE", "PROMOTE"]
"""STOP ends a trial, and it stays where it is. PAUSE ends its process, and it waits until it is promoted by request.
PROMOTE sends a paused trial to its next rung, or to where it was going, although others did better."""

ACTIONS: tuple[Action, ...] = ("STOP", "PAUSE", "PROMOTE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a trial, and when, in seconds since 1970."""

    action: Action
    trial: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the controller did, in a sentence, or why it refused."""

    text: str
    is_refused: bool = False


class Requests:
    """The requests of a study."""

    def __init__(self, directory: StudyDirectory) -> None:
        self._directory = directory
        self._files = NumberedFiles(files.join(directory.job.url, "requests"))
        self._next = 1

    def ask(self, action: str, number: int) -> None:
        """Ask something of a trial; raise an InvalidValueError if that makes no sense, or nobody is there to do it."""
        name = self._directory.job.name
        if problem := refusal(self._directory.trial(number), action):
            raise InvalidValueError(problem)
        status = status_of(self._directory.job)
        if status.state in (*FINAL, "CANCELLING"):
            raise InvalidValueError(
                f"study {name} is {status.state}, so that no controller is there to {action.lower()} trial {number}"
                f"{'.' if status.state == 'SUCCEEDED' else f'; jobs resume {name} starts one.'}"
            )
        files.makedirs(self._files.url)
        self._files.add(Request(action=cast(Action, action), trial=number, time=time.time()))

    def all(self, last: int = 0) -> list[tuple[Request, Answer | None]]:
        """Return all requests and the answers to them, the oldest first; of many only the `last` ones, if not 0."""
        numbers = self._files.numbers()[-last:]
        found = ((self._request(number).read(), self.answer_file(number).read()) for number in numbers)
        return [(request, answer) for request, answer in found if request is not None]

    def unanswered(self) -> Iterator[tuple[int, Request]]:
        """Yield number and content of what is to be answered. Where nothing is new, this is one look at the disk."""
        while files.exists(self._request(self._next).path):
            number, self._next = self._next, self._next + 1
            if files.exists(self.answer_file(number).path):
                continue
            try:
                request = self._request(number).read()
            except UserError as error:
                self.answer_file(number).write(Answer(text=str(error), is_refused=True))
                continue
            if request is not None:
                yield number, request

    def answer_file(self, number: int) -> StateFile[Answer]:
        """Return the file of the answer to a request."""
        return StateFile(self._files.path(number, ".answer"), Answer, error=InvalidValueError)

    def _request(self, number: int) -> StateFile[Request]:
        return StateFile(self._files.path(number), Request, error=InvalidValueError)


def refusal(trial: Trial, action: str) -> str:
    """Return why something cannot be done with a trial as it is, in a sentence; empty if it can.

    >>> trial = Trial(number=3, parameters={}, job_dir="", compile=None, threads=1)
    >>> refusal(trial, "PROMOTE"), refusal(trial, "STOP")
    ('trial 3 runs already; only a paused trial can be promoted.', '')
    """
    if action not in ACTIONS:
        return f"a trial can be asked to {', '.join(ACTIONS)}, but not to {action!r}."
    if trial.state not in ("RUNNING", "PAUSED"):
        return f"trial {trial.number} has ended already: it is {trial.state}."
    if action == "PROMOTE" and trial.state == "RUNNING":
        return f"trial {trial.number} runs already; only a paused trial can be promoted."
    return ""
