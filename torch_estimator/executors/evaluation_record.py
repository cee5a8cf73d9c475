"""File in which an evaluator records its work, so that a restarted evaluator does not repeat finished work."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from torch_estimator import files
from torch_estimator.checkpoint.index import checkpoint_in
from torch_estimator.errors import CheckpointError, ClusterError
from torch_estimator.json_text import parse_json

NAME = "evaluator.json"


@dataclass(slots=True)
class SpecRecord:
    """Record of the last evaluation for one `EvalSpec`, and of its exports so far.

    Attributes:
        step: Global step of the checkpoint.
        checkpoint_path: The checkpoint.
        metrics: The metrics.
        batches: Number of batches that the metrics were computed from.
        final: Whether exporters are called with ``is_the_final_export=True``.
        exports: What the first exporters have returned; the other exporters are still to be called.
    """

    step: int
    checkpoint_path: str
    metrics: dict[str, Any]
    batches: int
    final: bool
    exports: list[str | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Record that an evaluation has begun and is not known to be complete.

    Attributes:
        name: Name of its `EvalSpec`.
        checkpoint_path: The checkpoint.
        at: Time at which it began, in seconds since 1970.
    """

    name: str
    checkpoint_path: str
    at: float


class EvaluationRecord:
    """Record of an evaluator's work in ``evaluator.json``, written before and after each evaluation and each export.

    One evaluator owns the file at a time. After another evaluator has taken over the file, the next `claim` or write of
    the first evaluator raises `ClusterError`. Each write replaces the file atomically.

    Args:
        model_dir: Directory of the training.

    Attributes:
        followed: Id of the last training that was followed, and the max_steps that the evaluator itself was given; or
            None.
        finished: Id of the training whose last checkpoint has been evaluated, or None.
        finished_at: Time of that evaluation, in seconds since 1970.
        begun: An evaluation that was begun and is not known to be complete, or None.

    Raises:
        CheckpointError: The file is damaged.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._path = files.join(model_dir, NAME)
        self._owner = secrets.token_hex(8)
        self._is_claimed = False
        self.followed: tuple[str, float | None] | None = None
        self.finished: str | None = None
        self.finished_at = 0.0
        self.begun: Begun | None = None
        self._specs: dict[str, SpecRecord] = {}
        try:
            content = parse_json(files.read_text(self._path))
            self.finished = content["finished"]
            self.finished_at = float(content.get("finished_at", 0.0))
            self.followed = tuple(content["followed"]) if content.get("followed") else None
            self.begun = Begun(**content["begun"]) if content.get("begun") else None
            self._specs = {name: SpecRecord(**record) for name, record in content["specs"].items()}
            self._keep_in_model_dir()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self._path} is damaged: {files.reason(error)}; remove it, and the latest checkpoint is evaluated."
            ) from error

    def _keep_in_model_dir(self) -> None:
        for record in self._specs.values():
            record.checkpoint_path = checkpoint_in(self._model_dir, record.checkpoint_path)
        if self.begun is not None:
            self.begun = replace(self.begun, checkpoint_path=checkpoint_in(self._model_dir, self.begun.checkpoint_path))

    def of(self, name: str | None) -> SpecRecord | None:
        """Return the record for the `EvalSpec` with this name, or None if there is none."""
        return self._specs.get(name or "")

    def claim(self) -> None:
        """Make this evaluator the owner of the file. If it is the owner already, check that no other has taken over.

        The call does nothing while the model directory does not exist.

        Raises:
            ClusterError: Another evaluator has become the owner.
        """
        if self._is_claimed:
            self._check_owner()
        elif files.exists(self._model_dir):
            self._write()

    def follow(self, run: str, max_steps: float | None) -> None:
        """Record which training this evaluator follows."""
        if self.followed != (run, max_steps):
            self.followed = run, max_steps
            self._write()

    def begin(self, name: str | None, path: str) -> None:
        """Record that an evaluation of the checkpoint `path` begins."""
        self.begun = Begun(name=name or "", checkpoint_path=path, at=time.time())
        self._write()

    def evaluated(self, name: str | None, path: str, metrics: Mapping[str, Any], *, final: bool) -> None:
        """Record the metrics of an evaluation. Called before its exports."""
        self._specs[name or ""] = SpecRecord(
            step=int(metrics["global_step"]),
            checkpoint_path=path,
            metrics={key: np.asarray(value).tolist() for key, value in metrics.items()},
            batches=getattr(metrics, "batches", 1),
            final=final,
        )
        self.begun = None
        self._write()

    def exported(self, name: str | None, exports: list[str | None], *, final: bool) -> None:
        """Record what the exporters called so far have returned."""
        record = self._specs[name or ""]
        record.exports, record.final = list(exports), final
        self._write()

    def finish(self, run: str) -> None:
        """Record that the last checkpoint of the training `run` has been evaluated."""
        self.finished, self.finished_at = run, time.time()
        self._write()

    def _write(self) -> None:
        if self._is_claimed:
            self._check_owner()
        self._is_claimed = True
        content = {
            "evaluator": self._owner,
            "followed": self.followed,
            "finished": self.finished,
            "finished_at": self.finished_at,
            "begun": None if self.begun is None else asdict(self.begun),
            "specs": {name: asdict(record) for name, record in self._specs.items()},
        }
        files.write_atomic(self._path, json.dumps(content, indent=2).encode() + b"\n")

    def _check_owner(self) -> None:
        there = self._owner
        # If the file cannot be read, this evaluator remains the owner: the user may have removed the file or the whole
        # directory. The next write creates the file again.
        with suppress(OSError, ValueError, AttributeError):
            there = parse_json(files.read_text(self._path)).get("evaluator")
        if there != self._owner:
            raise ClusterError(
                f"Another evaluator has taken over from this one, as {self._path} says; see whether two "
                "processes have the same TF_CONFIG."
            )
