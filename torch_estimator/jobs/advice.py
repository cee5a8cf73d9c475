"""What bounds a training, and what one more worker, server or reader would bring, from what its processes recorded.

`throughput` has the formulas. The error of a gain is the difference between the assumptions that fit the records, by
how much the formula misses the recorded steps per second, and twice the standard error of the gains that parts of the
recorded time give.
"""

from __future__ import annotations

import bisect
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from torch_estimator import files
from torch_estimator.activity.timeline import Run, Spent
from torch_estimator.cluster.task import CHIEFS, PARAMETER_SERVER, WORKER
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import JobDirectory
from torch_estimator.jobs.throughput import (
    PARTS,
    Change,
    Model,
    Part,
    StepTimes,
    models_in_step,
    models_with_servers,
)

# Share of the steps that are left out: the first ones fill caches.
_WARM_UP = 0.2
_LEAST_STEPS = 20
_MOST_BLOCKS = 10
# By how much a part is made shorter to see how much depends on it.
_SHORTER = 0.9
_LEAST_GAIN = 0.05
# A process that waits for a larger share of the time for others is not alone.
_ALONE = 0.01

_NUMBERS = [one.name for one in fields(Spent) if one.name != "step"]

# By global step.
Samples = Sequence[tuple[int, Spent]]
_TYPES = (*CHIEFS, WORKER, PARAMETER_SERVER)

_CHANGES = {"worker": Change(worker=True), "server": Change(server=True), "reader": Change(part="input", factor=0.5)}
_BOUNDS: dict[Part, str] = {
    "computing": "Computing bounds this training",
    "input": "The input bounds this training",
    "servers": "The parameter servers bound this training",
    "network": "Exchanging messages bounds this training",
    "others": "The slowest process, {slowest}, bounds this training",
    "saving": "Saving and evaluating bound this training",
}
_CURES: dict[Part, str] = {"input": "reader", "servers": "server"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """By how much the examples per second grow with one more `of`: 0.5 is half as many again.

    With `is_limit` it is what there is to gain at most: what the change costs was never recorded.
    """

    of: str
    gain: float
    low: float
    high: float
    is_limit: bool = False

    def __str__(self) -> str:
        if self.is_limit:
            return f"{self.gain:.0%} at most, less what the exchange of gradients costs"
        low, gain, high = (f"{number:z.0%}" for number in (self.low, self.gain, self.high))
        if low == high:
            return f"{gain} (error below 1%)"
        if self.low < 0 <= self.gain:
            return f"{gain} ({high} at most, perhaps nothing)"
        return f"{gain} ({low} to {high})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What bounds a training and what would help.

    Attributes:
        sentence: All of this in words.
        bound: The part of the time that the training gains most from if it becomes shorter.
        steps_per_sec: Steps per second of all processes together, each with a batch of its own.
        shares: Shares of the time of the processes that train, by part.
        gains: What one more worker, server and reader would bring each.
    """

    sentence: str
    bound: Part
    steps_per_sec: float
    shares: dict[Part, float]
    gains: list[Gain]


def advise(runs: Sequence[Run]) -> Advice:
    """Return what bounds the training of these runs.

    Raise an InvalidValueError if its processes have recorded too little.
    """
    recorded = _recorded(runs)
    trainers = {role: samples for role, samples in recorded.items() if _type(role) != PARAMETER_SERVER}
    servers = {role: samples for role, samples in recorded.items() if _type(role) == PARAMETER_SERVER}
    # Windows of global steps need no common clock.
    begin = max((samples[0][0] for samples in recorded.values()), default=0)
    last = min((samples[-1][0] for samples in recorded.values()), default=0)
    first = begin + _WARM_UP * (last - begin)
    count = min([_MOST_BLOCKS, *(sum(step >= first for step, _ in samples) for samples in recorded.values())])
    # The error needs several blocks.
    if not trainers or last - first < _LEAST_STEPS or count < 2:
        raise InvalidValueError(
            f"there is no advice yet: its processes have recorded fewer than {_LEAST_STEPS} steps together after the "
            "first ones; let it train for half a minute."
        )
    steps = [first + (last - first) * number / count for number in range(count + 1)]
    whole = _Measured(trainers, servers, first, last)
    blocks = [_Measured(trainers, servers, *ends) for ends in pairwise(steps)]
    gains = [gain for of in _CHANGES if (gain := _gain(of, whole, blocks)) is not None]
    bound = max(PARTS, key=lambda part: whole.gains(Change(part=part, factor=_SHORTER))[0])
    return Advice(
        sentence=_sentence(bound, gains, whole),
        bound=bound,
        steps_per_sec=whole.steps_per_sec,
        shares=whole.shares(),
        gains=gains,
    )


class _Measured:
    """Mean times of the steps from `first` to `last`, and the models under which these times are possible."""

    def __init__(
        self, trainers: Mapping[str, Samples], servers: Mapping[str, Samples], first: float, last: float
    ) -> None:
        windows = {role: (_at(samples, first), _at(samples, last)) for role, samples in trainers.items()}
        secs = statistics.fmean(_secs(*window) for window in windows.values())
        # In step, each process takes every step. With servers, each takes some of them.
        own_steps = (last - first) / (len(trainers) if servers else 1)
        self.steps_per_sec = own_steps * len(trainers) / secs
        self.times = {role: _step_times(*window, own_steps) for role, window in windows.items()}
        self.mean = _mean(list(self.times.values()))
        self.services = [
            (_at(samples, last).computing - _at(samples, first).computing) / (last - first)
            for samples in servers.values()
        ]
        if servers:
            self.models: Sequence[Model] = models_with_servers(len(trainers), self.mean, self.services)
        else:
            self.models = models_in_step(list(self.times.values()))

    def gains(self, change: Change) -> list[float]:
        """Return by how much the rate grows with a change, for each model, the likeliest first."""
        return [model.rate(change) / model.rate() - 1 for model in self.models]

    def shares(self) -> dict[Part, float]:
        """Return the shares of the time of all processes."""
        mean, network = self.mean, max(0.0, self.models[0].network)
        secs: dict[Part, float] = {
            "computing": mean.computing,
            "input": mean.input,
            "servers": max(0.0, mean.servers - network) if self.services else 0.0,
            "network": network,
            "others": mean.others if self.services else max(0.0, mean.others - network),
            "saving": mean.saving,
        }
        return {part: secs[part] / mean.total for part in PARTS}


def _gain(of: str, whole: _Measured, blocks: Sequence[_Measured]) -> Gain | None:
    is_limit = of == "worker" and len(whole.times) == 1 and not whole.services
    # Replicas of `MirroredStrategy` record nothing, so that nothing is known of one more.
    if (of == "server" and not whole.services) or (is_limit and whole.mean.others > _ALONE * whole.mean.total):
        return None
    gains = whole.gains(_CHANGES[of])
    # How far the formula is from the steps per second that were recorded.
    error = (1 + gains[0]) * abs(whole.models[0].rate() / whole.steps_per_sec - 1)
    error += 2 * statistics.stdev(block.gains(_CHANGES[of])[0] for block in blocks) / math.sqrt(len(blocks))
    low = 0.0 if is_limit else min(gains) - error
    return Gain(of=of, gain=gains[0], low=low, high=max(gains) + error, is_limit=is_limit)


def _sentence(bound: Part, gains: Sequence[Gain], measured: _Measured) -> str:
    share = f"{measured.shares()[bound]:.0%} of the time"
    if bound == "servers":
        how = f"the busiest one works for {min(1.0, measured.steps_per_sec * max(measured.services)):.0%} of the time"
    elif bound in ("computing", "saving"):
        how = f"{share} goes into it"
    else:
        how = f"processes wait for it for {share}"
    # The process for which the others wait is the one that waits least.
    slowest = min(measured.times, key=lambda role: measured.times[role].others)
    helpful = [gain for gain in gains if gain.gain >= _LEAST_GAIN]
    best = max(helpful, key=lambda gain: (gain.of == _CURES.get(bound), gain.gain), default=None)
    of, by = (best.of, best) if best else (" or ".join(gain.of for gain in gains), f"less than {_LEAST_GAIN:.0%}")
    helps = f"One more {of} would raise the examples per second by {by}"
    return f"{_BOUNDS[bound].format(slowest=slowest)}: {how}. {helps}."


def _type(role: str) -> str:
    return role.rpartition("-")[0]


def _recorded(runs: Sequence[Run]) -> dict[str, Samples]:
    """Return the samples of the last process of each role that trains or is a server."""
    found: dict[str, Samples] = {}
    for run in sorted(runs, key=lambda run: run.began):
        samples = [(one.step, one) for one in run.spent if one.step is not None]
        # Steps go back where a server was restored from a checkpoint.
        back = [number for number, ((step, _), (after, _)) in enumerate(pairwise(samples), 1) if after < step]
        if samples and _type(run.role) in _TYPES:
            found[run.role] = samples[back[-1] if back else 0 :]
    # A role that was gone early is one that the training was not started again with.
    furthest = max(found.values(), key=lambda samples: samples[-1][0], default=[])
    return {role: one for role, one in found.items() if 2 * one[-1][0] >= furthest[0][0] + furthest[-1][0]}


def _at(samples: Samples, step: float) -> Spent:
    """Return how the time was spent up to a step, in proportion between two samples."""
    number = min(bisect.bisect_left(samples, step, key=lambda one: one[0]), len(samples) - 1)
    (step_before, before), (step_after, after) = samples[max(0, number - 1)], samples[number]
    part = (step - step_before) / (step_after - step_before) if step_after > step_before else 1.0
    secs = {name: getattr(before, name) + part * (getattr(after, name) - getattr(before, name)) for name in _NUMBERS}
    return Spent(**secs)


def _secs(first: Spent, last: Spent) -> float:
    # Clocks may be set back.
    return max(last.time - first.time - (last.starting - first.starting), 1e-9)


def _step_times(first: Spent, last: Spent, steps: float) -> StepTimes:
    names = ("reading", "input", "servers", "others", "saving", "evaluating")
    secs = {name: max(0.0, getattr(last, name) - getattr(first, name)) / steps for name in names}
    # What is none of these is computing.
    computing = max(0.0, _secs(first, last) / steps - sum(secs.values()) + secs["reading"])
    return StepTimes(computing=computing, saving=secs.pop("saving") + secs.pop("evaluating"), **secs)


def _mean(times: Sequence[StepTimes]) -> StepTimes:
    names = [one.name for one in fields(StepTimes)]
    return StepTimes(**{name: statistics.fmean(getattr(one, name) for one in times) for name in names})


def model_dir_of(job: JobDirectory) -> str:
    """Return the model directory of a job. Raise an InvalidValueError if it is not known which it is."""
    spec = job.spec()
    if spec.study is not None:
        raise InvalidValueError(
            f"job {job.name} is a study of several trainings; name the model directory of a trial with --model-dir."
        )
    if spec.job_dir is None:
        raise InvalidValueError(
            f"job {job.name} was submitted without --job-dir, so that its model directory is not known; name it with "
            "--model-dir."
        )
    return spec.job_dir if not files.is_local(spec.job_dir) else os.path.join(spec.folder, spec.job_dir)
