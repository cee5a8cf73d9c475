"""Writing of checkpoints in a background thread. If the process is killed, the last complete checkpoint remains."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import check_some_named, is_complete, names_by_step
from torch_estimator.checkpoint.format import (
    SLOTS_NAME,
    STATE_NAME,
    VARIABLES_NAME,
    read_state,
    shard_name,
    state_document,
    with_row_files,
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
from torch_estimator.checkpoint.row_file import RowFileName
from torch_estimator.checkpoint.sharded_tensors import part_to_save
from torch_estimator.checkpoint.snapshot import HostSnapshot
from torch_estimator.errors import CheckpointError, ClusterError

_logger = logging.getLogger(__name__)


class NotWhole(Exception):
    """Error: another process that writes a part of a checkpoint was lost."""


class CheckpointWriter:
    """Writer of the checkpoints of one model directory, which is created if it does not exist.

    The order of the steps makes a save safe: (1) write a new directory under a temporary name, sync it, and rename it
    (a remote file system cannot rename atomically, so there it has its final name from the start); (2) replace the
    index, from which moment the checkpoint counts; (3) remove old checkpoints.

    A new writer first removes what a killed process left behind: unfinished directories, and the checkpoints that it
    was about to add to the index or to remove, which are noted in a file before. Other complete checkpoints stay, even
    if the index does not name them: a user may have copied them there, or may have named an older one.

    `clock` returns seconds since 1970. For the other arguments see `RetentionPolicy`.
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
        # The checkpoint to which `go_back` returns, which is kept until then.
        self.trusted: str | None = None
        self._remove_leftovers(entries)

    def prepare(self, variables: Mapping[str, torch.Tensor], slots: Mapping[str, torch.Tensor] | None = None) -> None:
        """Allocate in the background the CPU memory that a save of these tensors needs, so that `save` only copies."""
        self._preparing = self._thread.submit(self._prepare, variables, slots or {})

    def reserve(self, step: int) -> str:
        """Create and return the directory of the next checkpoint, so that other processes can write their shards."""
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
        row_files: Callable[[], Sequence[RowFileName]] | None = None,
    ) -> str:
        """Copy the state to CPU memory, start to write the checkpoint in the background, and return its path.

        If the previous save is still running, this waits for it; if that failed, its error is raised. A second
        checkpoint of step ``n`` is called ``model.ckpt-n.1``, so that the first stays readable until the second is
        complete.

        `state` is everything that is not a tensor, as values that JSON can represent. `shards` processes write. This
        one writes the first shard; the others have written theirs into the directory that `reserve` returned.
        `row_files` waits for files that others write into that directory meanwhile. If it raises `NotWhole`, there is
        no checkpoint, and training goes on without.
        """
        self.wait()
        self._shards = shards
        document = state_document(step, state or {}, shards)
        if self._preparing is not None:
            # An error of `prepare` is ignored here, because `fill` raises the same error.
            concurrent.futures.wait([self._preparing])
            self._preparing = None
        self._variables.fill(variables)
        self._slots.fill(slots or {})
        name, self._reserved = self._reserved, None
        saved = SavedCheckpoint(name=name or self._free_name(step), timestamp=self._clock())
        self._pending = self._thread.submit(
            self._write,
            saved,
            lambda: document if row_files is None else with_row_files(document, row_files()),
            made=name is not None,
        )
        return files.join(self._model_dir, saved.name)

    def amend(self, step: int, state: Mapping[str, Any]) -> None:
        """Replace ``state.json`` of the latest checkpoint, whose step must be `step`; the tensors do not change.

        If the state cannot be written, the checkpoint stays as it was.
        """
        self.wait()
        assert self._index is not None
        path = files.join(self._model_dir, self._index.latest)
        before = read_state(path)
        document = state_document(step, state, before["shards"], before["row_files"])
        try:
            files.write_atomic(files.join(path, STATE_NAME), document)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be amended: {files.reason(error)}; make room or permit writing."
            ) from error

    @property
    def latest(self) -> str | None:
        """Name of the latest checkpoint; None if there is none."""
        return None if self._index is None else self._index.latest

    def go_back(self) -> str | None:
        """Make the `trusted` checkpoint, if it is there, the latest one; return the latest one's path or None.

        Later checkpoints stay, and the index does not name them any more.
        """
        self.wait()
        index, trusted = self._index, self.trusted
        if index is None:
            return None
        if trusted is not None and trusted in index.names:
            kept = index.saved[: index.names.index(trusted) + 1]
            self._index = index = dataclasses.replace(index, latest=trusted, saved=kept)
            write_index(self._model_dir, index)
        return files.join(self._model_dir, index.latest)

    def wait(self) -> None:
        """Wait until the running save, if any, has ended.

        If it failed, raise its error; the previous checkpoint stays.
        """
        if self._pending is None:
            return
        # Wait before `_pending` is cleared. If Ctrl-C interrupts the wait, the save still counts as running.
        concurrent.futures.wait([self._pending])
        pending, self._pending = self._pending, None
        pending.result()

    def settle(self) -> None:
        """Wait until the running save, if any, has ended. If it failed, the next save raises the error, not this call.

        Call this before reading the checkpoint in code that should not fail because of a save.
        """
        if self._pending is not None:
            concurrent.futures.wait([self._pending])

    def close(self) -> None:
        """Wait until the running save, if any, has ended, and end the writing thread."""
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

    def _write(self, saved: SavedCheckpoint, make_document: Callable[[], bytes], *, made: bool) -> None:
        try:
            target = self._write_tensors(saved.name, made=made)
            document = make_document()
            index, dropped = self._next_index(saved)
            note_unnamed(self._model_dir, [saved.name, *dropped])
            files.write_file(files.join(target, STATE_NAME), [document], synced=False)
            final = files.join(self._model_dir, saved.name)
            if target != final:
                files.commit_dir(target, final)
            write_index(self._model_dir, index)
        except NotWhole as error:
            self._discard(saved.name)
            _logger.warning("%s is not saved: %s", saved.name, error)
            return
        except ClusterError:
            # Another process could not write its part, and the error says why.
            self._discard(saved.name)
            raise
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
        # Remove what a killed process left under this name. No process reads a checkpoint that the index does not name.
        files.remove_tree(final)
        files.remove_tree(target)
        files.makedirs(target)
        return target

    def _write_tensors(self, name: str, *, made: bool) -> str:
        """Write a checkpoint's tensors and return its directory. The caller must still write ``state.json``."""
        final = files.join(self._model_dir, name)
        local = files.is_local(final)
        target = self._make_directory(name) if not made else self._temporary(name) if local else final
        for file, snapshot in ((VARIABLES_NAME, self._variables), (SLOTS_NAME, self._slots)):
            # `commit_dir` syncs all files of a local checkpoint.
            path = files.join(target, shard_name(file, 0, self._shards))
            files.write_file(path, snapshot.chunks(), synced=False)
        return target

    def _next_index(self, saved: SavedCheckpoint) -> tuple[CheckpointIndex, list[str]]:
        before = self._index
        step = checkpoint_step(saved.name)
        others = [other for other in before.saved if checkpoint_step(other.name) != step] if before else []
        last = before.last_preserved_timestamp if before else None
        last = saved.timestamp if last is None else last
        retained = self._policy.apply([*others, saved], last_preserved_timestamp=last)
        held = (held_checkpoint(self._model_dir), self.trusted) if retained.dropped else ()
        index = CheckpointIndex(
            latest=saved.name,
            saved=(*(dropped for dropped in retained.dropped if dropped.name in held), *retained.kept),
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
                # Remove the state first, so that a partly removed directory does not count as a complete checkpoint.
                files.remove_tree(files.join(path, STATE_NAME))
            files.remove_tree(path)
        except OSError as error:
            _logger.warning("%s cannot be removed: %s.", path, files.reason(error))

    def _temporary(self, name: str) -> str:
        return files.join(self._model_dir, f"{files.TEMPORARY_PREFIX}{name}-{os.getpid()}")


class ShardWriter:
    """Writer of the shard of rank `rank` (not the chief), one of `size` shards of a checkpoint."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._snapshot = HostSnapshot()

    def write(self, directory: str, variables: Mapping[str, torch.Tensor], slots: Mapping[str, torch.Tensor]) -> None:
        """Write this process's rows of the variables and optimizer state as one shard, and sync it to the disk.

        `directory` is what the chief's `CheckpointWriter.reserve` returned.
        """
        for name, tensors in ((VARIABLES_NAME, variables), (SLOTS_NAME, slots)):
            self._snapshot.fill(part_to_save(tensors, is_chief=False))
            files.write_file(files.join(directory, shard_name(name, self._rank, self._size)), self._snapshot.chunks())
