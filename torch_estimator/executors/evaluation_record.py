"""What an evaluator has done, for the one that comes after it where it is killed."""

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
    """How far the last evaluation by one spec has come.

    Attributes:
        step: Of the checkpoint.
        checkpoint_path: What was evaluated.
        metrics: What came out.
        batches: From how many batches.
        final: Whether exporters are told that it is the final export.
        exports: What the first exporters have returned; the others are still to come.
    """

    step: int
    checkpoint_path: str
    metrics: dict[str, Any]
    batches: int
    final: bool
    exports: list[str | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """An evaluation that was begun.

    Attributes:
        name: Of its spec.
        checkpoint_path: What is evaluated.
        at: When, in seconds since 1970.
    """

    name: str
    checkpoint_path: str
    at: float


class EvaluationRecord:
    """The file that says so, written at one stroke before and after each evaluation and after each export.

    One evaluator writes it at a time: who takes the place of another has that one's `keep_place` and writes fail.

    Args:
        model_dir: Where it lies.

    Attributes:
        followed: The training that was followed last, if any, and the max_steps that the evaluator itself was given.
        finished: The training to whose end has been seen, if any.
        finished_at: When that was, in seconds since 1970.
        begun: The evaluation that is not known to have come to its end, if any.

    Raises:
        CheckpointError: It is damaged.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._path = files.join(model_dir, NAME)
        self._life = secrets.token_hex(8)
        self._has_place = False
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
        """What is known of the spec called so."""
        return self._specs.get(name or "")

    def keep_place(self) -> None:
        """Takes the place of an evaluator before, as soon as there is a model directory; later, looks who has it.

        Raises:
            ClusterError: Another evaluator has come since.
        """
        if self._has_place:
            self._check_place()
        elif files.exists(self._model_dir):
            self._write()

    def follow(self, run: str, max_steps: float | None) -> None:
        """Where a training is found to go on."""
        if self.followed != (run, max_steps):
            self.followed = run, max_steps
            self._write()

    def begin(self, name: str | None, path: str) -> None:
        """Before an evaluation."""
        self.begun = Begun(name=name or "", checkpoint_path=path, at=time.time())
        self._write()

    def evaluated(self, name: str | None, path: str, metrics: Mapping[str, Any], *, final: bool) -> None:
        """After an evaluation, before its exports."""
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
        """After an export."""
        record = self._specs[name or ""]
        record.exports, record.final = list(exports), final
        self._write()

    def finish(self, run: str) -> None:
        """After the last evaluation of a training."""
        self.finished, self.finished_at = run, time.time()
        self._write()

    def _write(self) -> None:
        if self._has_place:
            self._check_place()
        self._has_place = True
        content = {
            "evaluator": self._life,
            "followed": self.followed,
            "finished": self.finished,
            "finished_at": self.finished_at,
            "begun": None if self.begun is None else asdict(self.begun),
            "specs": {name: asdict(record) for name, record in self._specs.items()},
        }
        files.write_atomic(self._path, json.dumps(content, indent=2).encode() + b"\n")

    def _check_place(self) -> None:
        there = self._life
        # Somebody may have removed the file, or the whole directory; what cannot be read for once is written anew.
        with suppress(OSError, ValueError, AttributeError):
            there = parse_json(files.read_text(self._path)).get("evaluator")
        if there != self._life:
            raise ClusterError(
                f"Another evaluator has come in the place of this one, as {self._path} says; see whether two "
                "processes have the same TF_CONFIG."
            )
