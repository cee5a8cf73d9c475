"""Samplers: who proposes the parameters of the next trial.

A proposal is a function of the study's seed, the trial's number, and what the sampler has been told. So a controller
that was killed makes a new sampler, repeats to it what it has on record, and gets the proposals that it would have got.
After trials of an earlier job the proposals are others, so that a study that goes on tries new points.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch_estimator.tuning.space import Parameter
from torch_estimator.tuning.study import Study

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger("torch_estimator")


class Sampler(Protocol):
    """Proposes trials, which are numbered from 0, and learns from their metrics."""

    def ask(self, known: Mapping[str, str] | None = None) -> dict[str, str] | None:
        """Return the texts of the next trial's parameters; None if all are tried.

        With `known` parameters, which are on record from before a crash, these are the next trial's.
        """

    def tell(self, number: int, value: float | None, step: int | None = None) -> None:
        """Take a trial's metric, None if it failed; with a `step`, the trial pauses there and may go on."""

    def add(self, parameters: Mapping[str, str], value: float, step: int | None = None) -> None:
        """Take an earlier job's trial, with a `step` one that was stopped there, before the first `ask`.

        Raise an InvalidValueError if its parameters are not in this study's space.
        """

    def close(self) -> None:
        """Say that the study is over."""


def sampler_of(study: Study, journal: str | None = None) -> Sampler:
    """Return the sampler of a study: where it leaves that open, Optuna's if that is installed."""
    if study.algorithm == "GRID":
        return Grid(study)
    if study.algorithm is None and importlib.util.find_spec("optuna") is not None:
        return Optuna(study, journal)
    if study.algorithm is None:
        logger.info(
            "Proposing random values; pip install 'torch-estimator[tune]' for Optuna, which learns from trials."
        )
    return Random(study)


class _Numbered:
    """A sampler whose proposals are a function of the trial's number alone."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._asked = 0
        self._added: list[dict[str, str]] = []

    def _proposal(self, number: int) -> dict[str, str] | None:
        raise NotImplementedError

    def ask(self, known: Mapping[str, str] | None = None) -> dict[str, str] | None:
        number, self._asked = self._asked, self._asked + 1
        return self._proposal(number) if known is None else dict(known)

    def tell(self, number: int, value: float | None, step: int | None = None) -> None:
        pass

    def add(self, parameters: Mapping[str, str], value: float, step: int | None = None) -> None:
        self._added.append(_spelled(self._study, parameters))

    def close(self) -> None:
        pass


class Grid(_Numbered):
    """All points of the grid that no earlier job has tried, one after the other."""

    @property
    def size(self) -> int:
        """Number of these points."""
        return self._study.space.size - len({tuple(one.items()) for one in self._added})

    def _proposal(self, number: int) -> dict[str, str] | None:
        points = (point for point in self._study.space.points() if point not in self._added)
        return next(itertools.islice(points, number, None), None)


class Random(_Numbered):
    """Independent random values on each parameter's scale."""

    def _proposal(self, number: int) -> dict[str, str] | None:
        seed = _seed(self._study, self._added)

        def choose(key: str, parameter: Parameter) -> str:
            return parameter.text((_bits(f"{seed}/{number}/{key}") >> 11) / (1 << 53))

        return self._study.space.texts(choose)


def _spelled(study: Study, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a trial as this study has them; raise an InvalidValueError if it has no such values."""
    study.space.values(parameters)
    return study.space.texts(lambda key, one: one.text_at(one.number_of(parameters[one.name])))


def _seed(study: Study, added: Sequence[Mapping[str, str]]) -> str:
    """Return a seed that is another one after other earlier trials."""
    return f"{study.seed}/{_bits(repr([sorted(one.items()) for one in added]))}" if added else str(study.seed)


def _bits(text: str) -> int:
    """Return 64 random bits, which are a function of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Optuna:
    """Optuna's TPE, which learns from trials. Optuna is asked for values only, and starts and stops nothing.

    For each proposal it gets a study in memory with all trials so far, and a seed for this proposal, so that nothing
    depends on how long this process has lived. Optuna sees a trial that has paused as a pruned one.

    The journal is a copy for ``optuna-dashboard``, to which only this process writes trials. What a kill has left there
    is settled: a torn line is cut off, a trial that the controller does not know becomes the next proposal, and what
    the controller repeats is written unless it is there.
    """

    def __init__(self, study: Study, journal: str | None = None) -> None:
        import optuna

        # It would report each study in memory.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = study
        # All trials in the order of the journal; earlier jobs' trials are among them.
        self._rows: list[optuna.trial.FrozenTrial] = []
        self._row_of: list[int] = []
        self._added: list[Mapping[str, str]] = []
        self._journal = None if journal is None else self._open(journal)

    def ask(self, known: Mapping[str, str] | None = None) -> dict[str, str] | None:
        row = len(self._rows)
        if known is None:
            known = next((one.user_attrs for one in self._written()[row:]), None)
        texts = self._sample(len(self._row_of)) if known is None else dict(known)
        self._row_of.append(row)
        self._append(self._trial(texts, "RUNNING"))
        return texts

    def tell(self, number: int, value: float | None, step: int | None = None) -> None:
        import optuna

        row = self._row_of[number]
        self._rows[row] = self._told(self._rows[row].user_attrs, value, step)
        for written in self._written()[row : row + 1]:
            if written.state.is_finished():
                continue
            if step is None or value is None:
                self._finish(row)
            elif step not in written.intermediate_values:
                optuna.trial.Trial(self._journal, written._trial_id).report(value, step)

    def add(self, parameters: Mapping[str, str], value: float, step: int | None = None) -> None:
        self._added.append(_spelled(self._study, parameters))
        self._append(self._told(parameters, value, step))

    def close(self) -> None:
        for row, written in enumerate(self._written()):
            if not written.state.is_finished():
                self._finish(row)

    def _open(self, path: str) -> optuna.Study:
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        with contextlib.suppress(FileNotFoundError), open(path, "rb+") as opened:
            # Optuna cannot read a line that follows a torn one.
            opened.truncate(opened.read().rfind(b"\n") + 1)
        # A killed writer leaves its lock, which is taken over after these seconds.
        backend = JournalFileBackend(path, lock_obj=JournalFileOpenLock(path, grace_period=3))
        storage = optuna.storages.JournalStorage(backend)
        return optuna.create_study(
            storage=storage, study_name=self._study.metric, direction=self._study.goal.lower(), load_if_exists=True
        )

    def _written(self) -> list[optuna.trial.FrozenTrial]:
        return [] if self._journal is None else self._journal.get_trials(deepcopy=False)

    def _append(self, trial: optuna.trial.FrozenTrial) -> None:
        if self._journal is not None and len(self._written()) == len(self._rows):
            self._journal.add_trial(trial)
        self._rows.append(trial)

    def _finish(self, row: int) -> None:
        import optuna

        assert self._journal is not None
        state, value = optuna.trial.TrialState.FAIL, None
        if row < len(self._rows) and self._rows[row].state.is_finished():
            state, value = self._rows[row].state, self._rows[row].value
        self._journal.tell(row, value, state=state)

    def _sample(self, number: int) -> dict[str, str]:
        import optuna

        seed = _bits(f"{_seed(self._study, self._added)}/{number}") % (1 << 32)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), direction=self._study.goal.lower())
        study.add_trials(self._rows)
        trial = study.ask()

        def choose(key: str, parameter: Parameter) -> str:
            axis = parameter.axis
            if not axis.is_ordered:
                return str(trial.suggest_categorical(key, list(parameter.grid())))
            suggest = trial.suggest_float if axis.size is None else trial.suggest_int
            return parameter.text_at(suggest(key, axis.low, axis.high, log=axis.is_log))

        return self._study.space.texts(choose)

    def _told(self, texts: Mapping[str, str], value: float | None, step: int | None = None) -> optuna.trial.FrozenTrial:
        if value is None:
            return self._trial(texts, "FAIL")
        if step is not None:
            return self._trial(texts, "PRUNED", intermediate_values={step: value})
        # Optuna takes no NaN as a value, and puts pruned trials without one behind all others.
        return self._trial(texts, "PRUNED") if math.isnan(value) else self._trial(texts, "COMPLETE", value=value)

    def _trial(self, texts: Mapping[str, str], state: str, **details: Any) -> optuna.trial.FrozenTrial:
        """Return a trial as Optuna has it; it is a function of the texts, and so the same when they are repeated."""
        import optuna
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        parameters: dict[str, Any] = {}
        distributions: dict[str, Any] = {}

        def take(key: str, parameter: Parameter) -> str:
            axis = parameter.axis
            number = parameter.number_of(texts[parameter.name])
            text = parameter.text_at(number)
            if axis.is_ordered:
                kind = FloatDistribution if axis.size is None else IntDistribution
                parameters[key], distributions[key] = number, kind(axis.low, axis.high, log=axis.is_log)
            else:
                parameters[key], distributions[key] = text, CategoricalDistribution(list(parameter.grid()))
            return text

        self._study.space.texts(take)
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState[state],
            params=parameters,
            distributions=distributions,
            user_attrs=dict(texts),
            **details,
        )
