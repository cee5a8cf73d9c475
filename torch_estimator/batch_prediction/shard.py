"""One shard of the output: its chunks are predicted in order, and what is done is committed from time to time.

A shard is written into two unfinished files, of predictions and of rejected rows. A small state file says how many
chunks are committed and how long the files were then. A process that is killed leaves more in the files than the state
says; the next one cuts them to these lengths and goes on with the next chunk. So no row is lost and none written twice.

On object stores, which cannot append, a shard is written into local files and uploaded at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from torch_estimator import files
from torch_estimator.batch_prediction.encoded_model import EncodedModel
from torch_estimator.batch_prediction.inputs import Chunk, InputFile, Reader
from torch_estimator.batch_prediction.json_lines import json_lines
from torch_estimator.batch_prediction.rows import Column, Rows, Texts, taken
from torch_estimator.data.columns import Array
from torch_estimator.errors import ExportError, InvalidValueError, UserError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.feeds import problem_of_row
from torch_estimator.export.nan_predictions import NanPredictionError
from torch_estimator.json_text import sentence
from torch_estimator.runs.locks import FileLock
from torch_estimator.runs.state_file import StateFile

_COMMIT_SECS = 2.0
# When the command runs again, a killed process may still hold the lock for a moment.
_LOCK_SECS = 20.0


@dataclass(slots=True)
class ShardState:
    """What is committed of a shard.

    `lengths` has the number of lines, or rows of Parquet, in each finished chunk; the sizes are those of the unfinished
    files. `ignored` is the number of names in rows that the model does not read.
    """

    chunks: int = 0
    results_bytes: int = 0
    errors_bytes: int = 0
    predicted: int = 0
    rejected: int = 0
    ignored: int = 0
    lengths: list[int] = field(default_factory=list)
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The files of shard `number` of `count` in the directory or URL of the output."""

    directory: str
    number: int
    count: int

    @property
    def results(self) -> str:
        """File of predictions."""
        return self._named("prediction.results")

    @property
    def errors(self) -> str:
        """File of rejected rows."""
        return self._named("prediction.errors_stats")

    @property
    def unfinished_results(self) -> str:
        """File of predictions while the shard is unfinished."""
        return self._named(f"{files.TEMPORARY_PREFIX}results")

    @property
    def unfinished_errors(self) -> str:
        """File of rejected rows until all shards are finished: ``[chunk, place in the chunk, reason]`` a line."""
        return self._named(f"{files.TEMPORARY_PREFIX}errors_stats")

    @property
    def state(self) -> str:
        """File of the `ShardState`."""
        return self._named(f"{files.TEMPORARY_PREFIX}state")

    def _named(self, kind: str) -> str:
        return files.join(self.directory, f"{kind}-{self.number:05d}-of-{self.count:05d}")

    def read_state(self) -> ShardState:
        """Return what is committed."""
        try:
            return self._state_file.read() or ShardState()
        except OSError as error:
            raise InvalidValueError(f"{self.state} cannot be read: {files.reason(error)}.") from error

    def write_state(self, state: ShardState) -> None:
        """Write the state file, which commits what it describes."""
        self._state_file.write(state)

    @property
    def _state_file(self) -> StateFile[ShardState]:
        cure = f"remove {self.directory} and begin again"
        return StateFile(self.state, ShardState, error=InvalidValueError, cure=cure)


class ShardWriter:
    """Predicts the chunks of shards, at most `batch` rows at once."""

    def __init__(
        self, model: ExportedModel, signature: str, reader: Reader, inputs: Sequence[InputFile], batch: int
    ) -> None:
        self._model = model
        try:
            self._encoded: EncodedModel | None = EncodedModel(model, signature)
        except ExportError:
            self._encoded = None
        self._signature = signature
        self._reader = reader
        self._inputs = inputs
        self._batch = batch

    def write(self, shard: ShardFiles, chunks: Sequence[Chunk], report: Callable[[Chunk, int, int], None]) -> None:
        """Predict the chunks of a shard that are not committed yet.

        After each chunk, call `report` with the numbers of its rows that were predicted and rejected. Raise a UserError
        if a file cannot be read or written, or if another process writes into the shard.
        """
        if files.is_local(shard.directory):
            self._write(shard, shard, chunks, report)
            return
        with tempfile.TemporaryDirectory(prefix="torch-estimator-predict-") as folder:
            local = ShardFiles(folder, shard.number, shard.count)
            if not shard.read_state().is_finished:
                self._write(shard, local, chunks, report)

    def _write(
        self,
        shard: ShardFiles,
        local: ShardFiles,
        chunks: Sequence[Chunk],
        report: Callable[[Chunk, int, int], None],
    ) -> None:
        with (
            writing(local.directory),
            _appended(local.unfinished_results) as results,
            _appended(local.unfinished_errors) as errors,
        ):
            state = local.read_state()
            if state.is_finished:
                return
            for file, length in ((results, state.results_bytes), (errors, state.errors_bytes)):
                if os.fstat(file.fileno()).st_size < length:
                    raise InvalidValueError(
                        f"{shard.directory} is damaged: {file.name} is shorter than what was committed; remove the "
                        "directory and begin again."
                    )
                file.truncate(length)
                file.seek(length)
            committed = time.monotonic()
            for number in range(state.chunks, len(chunks)):
                chunk = chunks[number]
                ignored = self._reader.unknown.count
                rows = self._reader.read(self._inputs[chunk.file], chunk)
                state.ignored += self._reader.unknown.count - ignored
                lines, rejected = self._predicted(rows)
                results.write(lines)
                for place, reason in rejected:
                    errors.write(json.dumps([number, place, reason], ensure_ascii=False).encode() + b"\n")
                predicted = len(rows) + len(rows.rejected) - len(rejected)
                state.chunks += 1
                state.predicted += predicted
                state.rejected += len(rejected)
                state.lengths.append(rows.length)
                if time.monotonic() >= committed + _COMMIT_SECS and number + 1 < len(chunks):
                    _commit(local, state, results, errors)
                    committed = time.monotonic()
                report(chunk, predicted, len(rejected))
            if local is shard:
                state.is_finished = True
                _commit(local, state, results, errors)
                return
            results.flush()
            errors.flush()
            state.is_finished = True
            files.write_file(shard.unfinished_results, _blocks(local.unfinished_results))
            files.write_file(shard.unfinished_errors, _blocks(local.unfinished_errors))
            shard.write_state(state)

    def _predicted(self, rows: Rows) -> tuple[Any, list[tuple[int, str]]]:
        """Return the predictions for rows as JSON lines, and the rejected rows in order."""
        reasons: dict[int, str] = {}
        parts: list[Mapping[str, Array | Texts]] = []
        for start in range(0, len(rows), self._batch):
            stop = min(start + self._batch, len(rows))
            columns = {name: taken(column, slice(start, stop)) for name, column in rows.columns.items()}
            try:
                parts.append(self._run(columns, stop - start))
            except UserError as error:
                if isinstance(error, NanPredictionError):
                    wrong, is_broken = {row: sentence(one) for row, one in error.problems.items()}, False
                else:
                    wrong, is_broken = self._wrong_rows(columns, stop - start)
                if not wrong or is_broken:
                    raise
                kept = np.setdiff1d(np.arange(stop - start), np.fromiter(wrong, np.int64))
                if len(kept):
                    parts.append(self._run({name: taken(column, kept) for name, column in columns.items()}, len(kept)))
                reasons |= {start + row: reason for row, reason in wrong.items()}
        rows = rows.reject(reasons)
        if not len(rows):
            return b"", sorted(rows.rejected)
        outputs = {name: _joined([part[name] for part in parts]) for name in parts[0]}
        return json_lines(rows.keys, outputs), sorted(rows.rejected)

    def _run(self, columns: Mapping[str, Column], rows: int) -> Mapping[str, Array | Texts]:
        if self._encoded is not None and any(isinstance(column, Texts) for column in columns.values()):
            # The export itself decides about rows on which the changed graph fails, and gives the message.
            with contextlib.suppress(ExportError):
                return self._encoded.predict(columns, rows)
        values = {name: column.values() if isinstance(column, Texts) else column for name, column in columns.items()}
        return self._model.predict(values, self._signature)

    def _wrong_rows(self, columns: Mapping[str, Column], rows: int) -> tuple[dict[int, str], bool]:
        """Return why rows of a batch cannot be predicted, by row, and whether the model cannot be run on any row."""
        wrong: dict[int, str] = {}
        failures = 0
        for row in range(rows):
            try:
                self._run({name: taken(column, slice(row, row + 1)) for name, column in columns.items()}, 1)
            except InvalidValueError as error:
                wrong[row] = sentence(problem_of_row(error))
            except ExportError as error:
                failures += 1
                wrong[row] = f"The model cannot be run on this row: {error}"
        return wrong, rows > 1 and failures == rows


def _joined(parts: Sequence[Array | Texts]) -> Array | Texts:
    """Return the batches of an output as one."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Texts) for part in parts):
        return Texts(parts[0].distinct, np.concatenate([part.codes for part in parts]))  # type: ignore[union-attr]
    return np.concatenate([part.values() if isinstance(part, Texts) else part for part in parts])


def _commit(shard: ShardFiles, state: ShardState, results: BinaryIO, errors: BinaryIO) -> None:
    """Sync the files, and only then record in the state how much of them is complete."""
    for file in (results, errors):
        file.flush()
        os.fsync(file.fileno())
    state.results_bytes, state.errors_bytes = results.tell(), errors.tell()
    shard.write_state(state)


def _blocks(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(2**22):
            yield block


@contextlib.contextmanager
def writing(directory: str) -> Iterator[None]:
    """Convert errors of the file system to an `InvalidValueError` that names the directory of the output."""
    try:
        yield
    except OSError as error:
        raise InvalidValueError(f"{directory} cannot be written: {files.reason(error)}.") from error


@contextlib.contextmanager
def _appended(path: str) -> Iterator[BinaryIO]:
    """Open a file for writing at its end, locked against other processes."""
    with locked(path, wait_secs=_LOCK_SECS), open(path, "r+b" if os.path.exists(path) else "w+b") as file:
        yield file


@contextlib.contextmanager
def locked(path: str, *, directory: bool = False, wait_secs: float = 0.0) -> Iterator[None]:
    """Hold the lock of a path during the body, if its file system has locks; refuse if another process holds it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(path, directory=directory, wait_secs=wait_secs))
        except BlockingIOError:
            raise InvalidValueError(f"another process writes into {path}; wait for its end, or stop it.") from None
        except NotImplementedError:
            # On Windows and on some network file systems, two commands at the same time go unnoticed.
            pass
        yield
