"""Saving checkpoints in a background thread, so that a kill at any instant leaves a readable one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import (
    SLOTS_NAME,
    STATE_NAME,
    VARIABLES_NAME,
    check_some_named,
    is_complete,
    names_by_step,
    read_state,
    shard_name,
    state_document,
)
from torch_estimator.checkpoint.index import (
    INDEX_NAME,
    CheckpointIndex,
    checkpoint_step,
    held_checkpoint,
    note_unnamed,
    noted_unnamed,
    read_index,
    write_index,
)
from torch_estimator.checkpoint.retention import RetentionPolicy, SavedCheckpoint
from torch_estimator.checkpoint.snapshot import HostSnapshot
from torch_estimator.errors import CheckpointError

_logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Saves checkpoints of one model directory.

    The order makes it safe: a new directory beside, synced, renamed (in place on a remote file system, which
    cannot rename at one stroke); then ``checkpoint``, which names it; only then the removal of old ones.

    Making a writer removes what a killed process left behind: unfinished directories, and the checkpoints that it was
    about to name or to remove, which are written down before. Other complete checkpoints stay, also where
    ``checkpoint`` does not name them: a user may have copied them there, or may have named an older one.

    Args:
        model_dir: The model directory, made where it is absent; a path or an fsspec URL.
        keep_checkpoint_max: See `RetentionPolicy`.
        keep_checkpoint_every_n_hours: See `RetentionPolicy`.
        clock: Gives the time of a save, in seconds since 1970.

    Raises:
        CheckpointError: `model_dir` cannot be made or read, its ``checkpoint`` is damaged or foreign, or it holds
            checkpoints, but no ``checkpoint``.
    """

    def __init__(
        self,
        model_dir: files.PathLike,
        *,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = 10_000.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._model_dir = files.as_url(model_dir)
        self._policy = RetentionPolicy(
            keep_checkpoint_max=keep_checkpoint_max,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
        )
        self._clock = clock
        self._variables = HostSnapshot()
        self._slots = HostSnapshot()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._preparing: concurrent.futures.Future[None] | None = None
        self._pending: concurrent.futures.Future[None] | None = None
        self._reserved: str | None = None
        self._shards = 1
        entries = self._make_model_dir()
        self._index = read_index(self._model_dir)
        self._remove_leftovers(entries)

    def prepare(self, variables: Mapping[str, torch.Tensor], slots: Mapping[str, torch.Tensor] | None = None) -> None:
        """Starts to get the memory that saving these takes, so that the save only has to copy."""
        self._preparing = self._thread.submit(self._prepare, variables, slots or {})

    def reserve(self, step: int) -> str:
        """Makes the directory into which other processes write their shards of what is saved next; returns its path.

        Raises:
            CheckpointError: The previous save failed, or the directory cannot be made.
        """
        self.wait()
        self._reserved = self._free_name(step)
        try:
            return self._make_directory(self._reserved)
        except OSError as error:
            path = files.join(self._model_dir, self._reserved)
            raise CheckpointError(
                f"checkpoint {path} cannot be saved: {files.reason(error)}; make room or permit writing."
            ) from error

    def save(
        self,
        step: int,
        variables: Mapping[str, torch.Tensor],
        slots: Mapping[str, torch.Tensor] | None = None,
        state: Mapping[str, Any] | None = None,
        *,
        shards: int = 1,
    ) -> str:
        """Copies everything to host memory, starts to write it and returns the path it will have.

        Waits first where the previous save still runs. Step ``n`` saved once more becomes ``model.ckpt-n.1``,
        so that the first stays readable until the second is whole. With several shards these are the first of them; the
        others are in the directory that `reserve` has made.

        Raises:
            CheckpointError: The previous save failed.
            InvalidTypeError: A value is not a tensor that can be saved, or `state` is not JSON.
        """
        self.wait()
        self._shards = shards
        document = state_document(step, state or {}, shards)
        if self._preparing is not None:
            # What may be wrong with the tensors is told below.
            concurrent.futures.wait([self._preparing])
            self._preparing = None
        self._variables.fill(variables)
        self._slots.fill(slots or {})
        name, self._reserved = self._reserved, None
        saved = SavedCheckpoint(name=name or self._free_name(step), timestamp=self._clock())
        self._pending = self._thread.submit(self._write, saved, document, made=name is not None)
        return files.join(self._model_dir, saved.name)

    def amend(self, step: int, state: Mapping[str, Any]) -> None:
        """Replaces the state in the latest checkpoint, which is that of `step`; its tensors stay.

        Raises:
            CheckpointError: It cannot be written; the checkpoint stays as it was.
            InvalidTypeError: `state` is not JSON.
        """
        self.wait()
        assert self._index is not None
        path = files.join(self._model_dir, self._index.latest)
        document = state_document(step, state, read_state(path)["shards"])
        try:
            files.write_atomic(files.join(path, STATE_NAME), document)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be amended: {files.reason(error)}; make room or permit writing."
            ) from error

    def wait(self) -> None:
        """Waits until the save that runs, if any, has ended.

        Raises:
            CheckpointError: It failed; the checkpoint before it stays.
        """
        if self._pending is None:
            return
        # Not result() at once: interrupted by Ctrl-C, the save must still count as running.
        concurrent.futures.wait([self._pending])
        pending, self._pending = self._pending, None
        pending.result()

    def settle(self) -> None:
        """Waits as `wait` does, but leaves an error to the next save; for readers of the checkpoint."""
        if self._pending is not None:
            concurrent.futures.wait([self._pending])

    def close(self) -> None:
        """Waits as `wait` does and ends the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, variables: Mapping[str, torch.Tensor], slots: Mapping[str, torch.Tensor]) -> None:
        self._variables.prepare(variables)
        self._slots.prepare(slots)

    def _make_model_dir(self) -> list[str]:
        try:
            files.makedirs(self._model_dir)
            return files.listdir(self._model_dir)
        except OSError as error:
            raise CheckpointError(
                f"model_dir {self._model_dir} cannot be made: {files.reason(error)}; use another model_dir."
            ) from error

    def _remove_leftovers(self, entries: list[str]) -> None:
        named = self._index.names if self._index is not None else []
        noted = noted_unnamed(self._model_dir)
        unnamed = []
        for entry in entries:
            if entry.startswith((f"{files.TEMPORARY_PREFIX}model.ckpt-", f"{files.TEMPORARY_PREFIX}{INDEX_NAME}-")):
                self._remove(entry)
            elif checkpoint_step(entry) is None or entry in named:
                continue
            elif entry in noted:
                self._remove(entry)
            elif is_complete(files.join(self._model_dir, entry)):
                unnamed.append(entry)
            elif self._index is not None and files.is_dir(files.join(self._model_dir, entry)):
                self._remove(entry)
        if noted:
            note_unnamed(self._model_dir, [])
        if self._index is None:
            check_some_named(self._model_dir)
        elif unnamed:
            _logger.warning(
                "%s holds %s, which %r does not name: training neither uses nor removes them.",
                self._model_dir,
                names_by_step(unnamed),
                INDEX_NAME,
            )

    def _free_name(self, step: int) -> str:
        taken = self._index.names if self._index is not None else []
        names = (f"model.ckpt-{step}" + (f".{again}" if again else "") for again in itertools.count())
        return next(name for name in names if name not in taken and not is_complete(files.join(self._model_dir, name)))

    def _write(self, saved: SavedCheckpoint, document: bytes, *, made: bool) -> None:
        try:
            target = self._write_tensors(saved.name, made=made)
            index, dropped = self._next_index(saved)
            note_unnamed(self._model_dir, [saved.name, *dropped])
            files.write_file(files.join(target, STATE_NAME), [document])
            final = files.join(self._model_dir, saved.name)
            if target != final:
                files.commit_dir(target, final)
            write_index(self._model_dir, index)
        except Exception as error:
            self._discard(saved.name)
            path = files.join(self._model_dir, saved.name)
            raise CheckpointError(
                f"checkpoint {path} cannot be saved: {files.reason(error)}; the checkpoint before it stays, "
                "so make room or permit writing and train again."
            ) from error
        self._index = index
        for name in dropped:
            self._remove(name)
        with contextlib.suppress(OSError):
            note_unnamed(self._model_dir, [])

    def _make_directory(self, name: str) -> str:
        final = files.join(self._model_dir, name)
        target = self._temporary(name) if files.is_local(final) else final
        # Left over by a killed process and not named in `checkpoint`: nobody reads it.
        files.remove_tree(final)
        files.remove_tree(target)
        files.makedirs(target)
        return target

    def _write_tensors(self, name: str, *, made: bool) -> str:
        """Write all but the state, which makes a checkpoint complete; return the directory."""
        final = files.join(self._model_dir, name)
        local = files.is_local(final)
        target = self._make_directory(name) if not made else self._temporary(name) if local else final
        for file, snapshot in ((VARIABLES_NAME, self._variables), (SLOTS_NAME, self._slots)):
            files.write_file(files.join(target, shard_name(file, 0, self._shards)), snapshot.chunks())
        return target

    def _next_index(self, saved: SavedCheckpoint) -> tuple[CheckpointIndex, list[str]]:
        before = self._index
        step = checkpoint_step(saved.name)
        others = [other for other in before.saved if checkpoint_step(other.name) != step] if before else []
        last = before.last_preserved_timestamp if before else None
        last = saved.timestamp if last is None else last
        retained = self._policy.apply([*others, saved], last_preserved_timestamp=last)
        held = held_checkpoint(self._model_dir) if retained.dropped else None
        index = CheckpointIndex(
            latest=saved.name,
            saved=(*(dropped for dropped in retained.dropped if dropped.name == held), *retained.kept),
            last_preserved_timestamp=retained.last_preserved_timestamp,
        )
        return index, [name for name in (before.names if before else []) if name not in index.names]

    def _discard(self, name: str) -> None:
        with contextlib.suppress(Exception):
            files.remove_tree(self._temporary(name))
            index = read_index(self._model_dir)
            if index is None or name not in index.names:
                files.remove_tree(files.join(self._model_dir, name))
            note_unnamed(self._model_dir, [])

    def _remove(self, name: str) -> None:
        path = files.join(self._model_dir, name)
        try:
            if checkpoint_step(name) is not None:
                # A kill in between leaves what is not complete any more.
                files.remove_tree(files.join(path, STATE_NAME))
            files.remove_tree(path)
        except OSError as error:
            _logger.warning("%s cannot be removed: %s.", path, files.reason(error))

    def _temporary(self, name: str) -> str:
        return files.join(self._model_dir, f"{files.TEMPORARY_PREFIX}{name}-{os.getpid()}")
