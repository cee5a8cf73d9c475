"""Provider of compiled steps: loads a step from the cache, or starts a process that compiles the step."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import Tensor

from torch_estimator.code_cache import CodeCache, entry_key
from torch_estimator.compile.batch_layout import BatchLayout
from torch_estimator.compile.compilation import Compilation
from torch_estimator.compile.compiled_step import CompiledStep, StepMismatch
from torch_estimator.compile.environment import environment_digest, machine
from torch_estimator.compile.key import CacheKey
from torch_estimator.compile.precompiled_headers import PrecompiledHeaders
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.step import TrainStep

logger = logging.getLogger("torch_estimator")


class StepCompiler:
    """Provider of the compiled step of one training. It loads or compiles the step for each layout of batches.

    Everything that is compiled depends on the state of the model when this object is made. After a change
    (`is_outdated`), make another one.
    """

    def __init__(self, step: TrainStep, compute_key: Callable[[], CacheKey], cache: CodeCache) -> None:
        self._step = step
        self._compute_key = compute_key
        self._cache = cache
        self._key = compute_key()
        # The tensors that are inputs of every compiled step. The cache key determines their order. Those on the device
        # "meta" have no memory: they are tables on parameter servers, whose rows are in the scratch.
        self._state: list[Tensor] = [*(tensor for _, tensor in self.changing), *step.scratch()]
        self._settings = sum(len(group.numbers()) for group in step.groups)
        if not self._key.portable:
            logger.debug("The compiled step cannot be kept for later runs because of %s.", self._key.obstacle)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that a step depends on, except the state of optimizers."""
        return [tensor for path, tensor in self.changing if not path.startswith("optimizers")]

    @property
    def changing(self) -> list[tuple[str, Tensor]]:
        """All tensors that a step may change, with their paths."""
        return [(path, tensor) for path, tensor in self._key.tensors if not tensor.is_meta]

    def identity(self, layout: BatchLayout, threads: int) -> tuple[str, bool]:
        """Return the key of a step in the cache, and whether an earlier run has left the step there."""
        key = self._entry_key(layout, threads)
        return key, self._key.portable and self._cache.find(key) is not None

    def refuse(self, layout: BatchLayout, threads: int) -> None:
        """Remove a compiled step from the cache, and let later runs not compile it, because it computes wrongly."""
        if self._key.portable:
            self._cache.refuse(self._entry_key(layout, threads))

    def remove(self, layout: BatchLayout, threads: int) -> None:
        """Remove a compiled step from the cache."""
        if (folder := self._cache.find(self._entry_key(layout, threads)) if self._key.portable else None) is not None:
            self._cache.remove(folder)

    def is_refused(self, layout: BatchLayout, threads: int) -> bool:
        """Return whether an earlier run has refused the compiled step."""
        return self._key.portable and self._cache.is_refused(self._entry_key(layout, threads))

    def is_outdated(self) -> bool:
        """Return whether the model or the step has changed since this object was made.

        Replaced tensors count as well: a compiled step holds the addresses of the old ones.
        """
        now = self._compute_key()
        same_tensors = [id(tensor) for _, tensor in now.tensors] == [id(tensor) for _, tensor in self._key.tensors]
        return now.digest != self._key.digest or not same_tensors

    def load(self, layout: BatchLayout, threads: int) -> CompiledStep | None:
        """Return the compiled step of an earlier run from the cache, or None if there is none."""
        folder = self._cache.find(self._entry_key(layout, threads)) if self._key.portable else None
        if folder is None:
            return None
        try:
            return self._loaded(folder, layout)
        except StepMismatch:
            self._cache.remove(folder)
            return None

    def start(
        self, batch: TensorBatch, layout: BatchLayout, threads: int, *, is_background: bool = False
    ) -> Compilation | CompiledStep | None:
        """Start to compile the step in another process, which has lower priority if training goes on meanwhile.

        Return None if another process is compiling the same step already, or the step if another process has just
        ended.
        """
        key = self._entry_key(layout, threads) if self._key.portable else None
        # No other process can use a key that is not portable. Then do not reserve the key, but open the null device.
        reserved = self._cache.reserve(key) if key is not None else Path(os.devnull).open("rb")  # noqa: SIM115
        if reserved is None:
            return None
        # Another process may have compiled the step after the last search of the cache.
        if (compiled := self.load(layout, threads)) is not None:
            reserved.close()
            return compiled
        folder = self._cache.make_build_folder(key)
        keep = partial(self._cache.keep, key=key) if key is not None and self._cache.can_keep(folder) else None
        return Compilation(
            self._step,
            self._state,
            batch,
            folder,
            reserved=reserved,
            keep=keep,
            compute_key=self._compute_key,
            threads=threads,
            headers=PrecompiledHeaders(machine()),
            is_background=is_background,
        )

    def finish(self, compilation: Compilation, layout: BatchLayout) -> CompiledStep | str:
        """Load the step that a finished compilation has built, and remove its temporary files.

        Return the reason, in words that fit after "because", if there is none.
        """
        result = compilation.result()
        try:
            return result if isinstance(result, str) else self._loaded(result, layout)
        except StepMismatch:
            return "what was compiled cannot be loaded"
        finally:
            compilation.remove()

    def _loaded(self, folder: Path, layout: BatchLayout) -> CompiledStep:
        return CompiledStep(folder, self._state, self._settings, layout.tensors)

    def _entry_key(self, layout: BatchLayout, threads: int) -> str:
        return entry_key((environment_digest(threads), self._key.digest, json.dumps(layout.as_json())))
