"""Makes compiled steps: from the cache where they are there, by compiling where they are not."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import Tensor

from torch_estimator.compile.cache import StepCache, key_of
from torch_estimator.compile.cache_key import Fingerprint, environment_digest, machine_digest
from torch_estimator.compile.compilation import Compilation
from torch_estimator.compile.leaves import Shapes
from torch_estimator.compile.program import NotThisStep, StepProgram
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.step import TrainStep

logger = logging.getLogger("torch_estimator")


class StepMaker:
    """Makes the compiled steps of one training.

    Args:
        step: What to compile.
        fingerprint: Of all that the step depends on, as it is when called.
        cache: Where compiled steps are kept.
    """

    def __init__(self, step: TrainStep, fingerprint: Callable[[], Fingerprint], cache: StepCache) -> None:
        self._step = step
        self._compute = fingerprint
        self._cache = cache
        self._fingerprint = fingerprint()
        self._state: list[Tensor] = [*(tensor for _, tensor in self._fingerprint.tensors), *step.scratch()]
        self._numbers = sum(len(group.numbers()) for group in step.groups)
        if not self._fingerprint.portable:
            logger.debug("The compiled step cannot be kept for later runs because of %s.", self._fingerprint.obstacle)

    @property
    def tensors(self) -> list[Tensor]:
        """All that a step depends on but for the state of optimizers."""
        return [tensor for path, tensor in self._fingerprint.tensors if not path.startswith("optimizers")]

    def is_outdated(self) -> bool:
        """Whether the step computes something else than when this was made."""
        now = self._compute()
        same_tensors = [id(tensor) for _, tensor in now.tensors] == [id(t) for _, t in self._fingerprint.tensors]
        return now.digest != self._fingerprint.digest or not same_tensors

    def load(self, shapes: Shapes, threads: int) -> StepProgram | None:
        """The step of these shapes that an earlier run has compiled, if there is one."""
        folder = self._cache.folder(self._key(shapes, threads)) if self._fingerprint.portable else None
        if folder is None:
            return None
        try:
            return self._program(folder, shapes)
        except NotThisStep:
            self._cache.remove(folder)
            return None

    def start(
        self, batch: TensorBatch, shapes: Shapes, threads: int, *, is_background: bool = False
    ) -> Compilation | None:
        """Start to compile for batches like this one, of these shapes; None where another process is at it.

        Where it runs in the background the training comes first: the compiler has a lower priority.
        """
        key = self._key(shapes, threads) if self._fingerprint.portable else None
        reserved = self._cache.reserve(key) if key is not None else Path(os.devnull).open("rb")  # noqa: SIM115
        if reserved is None:
            return None
        folder = self._cache.workplace()
        keep = partial(self._cache.keep, key=key) if key is not None and self._cache.can_keep(folder) else None
        return Compilation(
            self._step,
            self._state,
            batch,
            folder,
            machine=self._cache.of_machine(machine_digest()),
            reserved=reserved,
            keep=keep,
            fingerprint=self._compute,
            threads=threads,
            is_background=is_background,
        )

    def finish(self, compilation: Compilation, shapes: Shapes) -> StepProgram | str:
        """Takes over what was compiled, or says why there is nothing."""
        result = compilation.result()
        try:
            return result if isinstance(result, str) else self._program(result, shapes)
        except NotThisStep:
            return "what was compiled cannot be loaded"
        finally:
            compilation.remove()

    def _program(self, folder: Path, shapes: Shapes) -> StepProgram:
        return StepProgram(folder, self._state, self._numbers, shapes.layouts)

    def _key(self, shapes: Shapes, threads: int) -> str:
        return key_of((environment_digest(threads), self._fingerprint.digest, json.dumps(shapes.as_json())))
