"""File in which an evaluator records its work, so that a restarted evaluator does not repeat finished work."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from torch_estimator import files
from torch_estimator.checkpoint.index import checkpoint_in
from torch_estimator.errors import CheckpointError, ClusterError
from torch_estimator.runs.state_file import StateFile

NAME = "evaluator.json"


# The keys of these classes, which are those of the file, are described in docs/reference/model_directory.md.


@dataclass(slots=True)
class SpecRecord:
    """Record of the last evaluation for one `EvalSpec`, and of its exports so far."""

    step: int
    checkpoint_path: str
    metrics: dict[str, Any]
    batches: int
    final: bool
    exports: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Record that an evaluation has begun and is not known to be complete."""

    name: str
    checkpoint_path: str
    at: float


@dataclass(slots=True, kw_only=True)
class EvaluatorState:
    """Content of ``evaluator.json``."""

    evaluator: str | None = None
    followed: tuple[str, float | None] | None = None
    finished: str | None
    finished_at: float = 0.0
    begun: Begun | None = None
    specs: dict[str, SpecRecord]


class EvaluationRecord:
    """Record of an evaluator's work in ``evaluator.json``, written before and after each evaluation and each export.

    One evaluator owns the file at a time. After another evaluator has taken over the file, the next `claim` or write of
    the first evaluator raises `ClusterError`. Each write replaces the file atomically.

    Raise a CheckpointError if the file is damaged.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        cure = "remove it, and the latest checkpoint is evaluated"
        self._file = StateFile(files.join(model_dir, NAME), EvaluatorState, cure=cure)
        self._is_claimed = False
        self.state = self._file.read() or EvaluatorState(finished=None, specs={})
        self.state.evaluator = self._owner = secrets.token_hex(8)
        try:
            for record in self.state.specs.values():
                record.checkpoint_path = checkpoint_in(model_dir, record.checkpoint_path)
            if self.state.begun is not None:
                path = checkpoint_in(model_dir, self.state.begun.checkpoint_path)
                self.state.begun = replace(self.state.begun, checkpoint_path=path)
        except ValueError as error:
            raise self._file.damaged(error) from error

    def of(self, name: str | None) -> SpecRecord | None:
        """Return the record for the `EvalSpec` with this name, or None if there is none."""
        return self.state.specs.get(name or "")

    def claim(self) -> None:
        """Make this evaluator the owner of the file. If it is the owner already, check that no other has taken over.

        The call does nothing while the model directory does not exist. Raise a ClusterError if another evaluator has
        taken over.
        """
        if self._is_claimed:
            self._check_owner()
        elif files.exists(self._model_dir):
            self._write()

    def follow(self, run: str, max_steps: float | None) -> None:
        """Record which training this evaluator follows."""
        if self.state.followed != (run, max_steps):
            self.state.followed = run, max_steps
            self._write()

    def begin(self, name: str | None, path: str) -> None:
        """Record that an evaluation of the checkpoint `path` begins."""
        self.state.begun = Begun(name=name or "", checkpoint_path=path, at=time.time())
        self._write()

    def evaluated(self, name: str | None, path: str, metrics: Mapping[str, Any], *, final: bool) -> None:
        """Record the metrics of an evaluation. Called before its exports."""
        self.state.specs[name or ""] = SpecRecord(
            step=int(metrics["global_step"]),
            checkpoint_path=path,
            metrics={key: np.asarray(value).tolist() for key, value in metrics.items()},
            batches=getattr(metrics, "batches", 1),
            final=final,
        )
        self.state.begun = None
        self._write()

    def exported(self, name: str | None, exports: list[str | None], *, final: bool) -> None:
        """Record what the exporters called so far have returned."""
        record = self.state.specs[name or ""]
        record.exports, record.final = list(exports), final
        self._write()

    def finish(self, run: str) -> None:
        """Record that the last checkpoint of the training `run` has been evaluated."""
        self.state.finished, self.state.finished_at = run, time.time()
        self._write()

    def _write(self) -> None:
        if self._is_claimed:
            self._check_owner()
        self._is_claimed = True
        self._file.write(self.state)

    def _check_owner(self) -> None:
        there: str | None = self._owner
        # If the file cannot be read, this evaluator remains the owner: the user may have removed the file or the whole
        # directory. The next write creates the file again.
        with suppress(OSError, CheckpointError):
            if (state := self._file.read()) is not None:
                there = state.evaluator
        if there != self._owner:
            raise ClusterError(
                f"Another evaluator has taken over from this one, as {self._file.path} says; see whether two "
                "processes have the same TF_CONFIG."
            )
