"""A batch prediction from its options to its summary: plan, go on, divide among processes, finish."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from torch_estimator import files
from torch_estimator.batch_prediction.inputs import Chunk, CsvOptions, InputFile, find_files, format_of, reader_for
from torch_estimator.batch_prediction.shard import ShardFiles, ShardWriter, locked, writing
from torch_estimator.errors import InvalidValueError, UserError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.processes.die_with_parent import die_with_parent
from torch_estimator.runs.state_file import StateFile

logger = logging.getLogger("torch_estimator")

JOB_FILE = "prediction.job.json"
"""File in the output directory that says what is predicted, and in the end how many rows were."""

_VERSION = 1
_CHUNKS_OF_A_SHARD = 16
_LEAST_SHARDS = 8
_LOG_SECS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What to predict, and how: the options of ``estimator predict-batch``.

    `model` is a directory of an export or of numbered exports. Without `format`, the names of the files tell it;
    without `shards`, the size of the input tells how many files of predictions there are. `csv` says how CSV files are
    written. `batch` is the number of rows that the model is run on at once. With `ignore_unknown`, names that the model
    does not read are left out of rows of JSON.
    """

    model: str
    inputs: tuple[str, ...]
    output: str
    format: str | None = None
    signature: str = "serving_default"
    keys: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    csv: CsvOptions = field(default_factory=CsvOptions)
    batch: int = 4096
    workers: int = 1
    shards: int | None = None
    ignore_unknown: bool = False

    def __post_init__(self) -> None:
        for name, most in (("batch", 2**20), ("workers", 1024), ("shards", 99_999)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise InvalidValueError(f"--{name} must be from 1 to {most}, but got {value}.")
        for name in ("keys", "columns"):
            given = getattr(self, name)
            for one in given:
                if given.count(one) > 1:
                    raise InvalidValueError(f"--{'key' if name == 'keys' else name} names {one!r} twice.")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a process needs to know of a job: the export that was found, the format of the input, the shards' chunks."""

    options: BatchOptions
    export: str
    format: str
    inputs: tuple[InputFile, ...]
    shards: tuple[tuple[Chunk, ...], ...]

    @property
    def is_text(self) -> bool:
        """Whether the input files consist of lines."""
        return self.format in ("csv", "jsonl")

    def files_of(self, number: int) -> ShardFiles:
        """Return the files of a shard."""
        return ShardFiles(files.as_url(self.options.output), number, len(self.shards))

    def command(self) -> dict[str, Any]:
        """Return what must be the same when the command is run again."""
        names = ("signature", "keys", "columns", "shards")
        given = {name: getattr(self.options, name) for name in names}
        content = {
            "version": _VERSION,
            "model": self.export,
            "input": [[file.url, file.version] for file in self.inputs],
            "format": self.format,
            **given,
            # Commands of earlier versions know neither.
            **({} if self.options.csv == CsvOptions() else {"csv": asdict(self.options.csv)}),
            **({"ignore_unknown": True} if self.options.ignore_unknown else {}),
        }
        return dict(json.loads(json.dumps(content)))


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers of rows of a whole job, of those that earlier runs had done, and the time that the last run took.

    `ignored` is the number of names in rows that the model does not read.
    """

    predicted: int
    rejected: int
    seconds: float
    was_complete: bool = False
    before: int = 0
    ignored: int = 0

    @property
    def rows(self) -> int:
        """Number of all rows."""
        return self.predicted + self.rejected

    @property
    def rows_per_sec(self) -> float:
        """Rows per second of the last run."""
        return (self.rows - self.before) / max(self.seconds, 1e-9)


def predict_files(options: BatchOptions) -> Summary:
    """Predict the rows of files, or go on with what an earlier call has begun.

    The output directory gets ``prediction.results-00000-of-00004`` with one JSON object per row, in the order of the
    input, and ``prediction.errors_stats-00000-of-00004`` with the rejected rows and the reasons. Raise a UserError if a
    file cannot be read or written, a column is missing, or the output directory has the output of another command.
    """
    started = time.monotonic()
    output = files.as_url(options.output)
    with _Workers(options.workers if options.workers > 1 else 0) as workers, _locked_directory(output):
        model = ExportedModel.load(options.model, ignore_unknown=options.ignore_unknown)
        plan = _planned(options, model)
        found = _known(plan, output)
        if found.finished is not None:
            _sweep(plan, output)
            return Summary(**found.finished, seconds=0.0, was_complete=True)
        states = [plan.files_of(number).read_state() for number in range(len(plan.shards))]
        before = sum(state.predicted + state.rejected for state in states)
        todo = [number for number, state in enumerate(states) if not state.is_finished]
        with _Progress(plan) as progress:
            for number, state in enumerate(states):
                for chunk in plan.shards[number][: state.chunks]:
                    progress.skip(chunk)
            if todo:
                _run(plan, model, todo, progress, workers)
        with writing(output):
            predicted, rejected, ignored = _finish(plan, output)
    return Summary(predicted, rejected, time.monotonic() - started, before=before, ignored=ignored)


def _planned(options: BatchOptions, model: ExportedModel) -> Plan:
    """Look at the input files, and divide them."""
    signature = model.signature(options.signature)
    for key in options.keys:
        if key in signature.outputs:
            raise InvalidValueError(
                f"--key {key} has the name of an output of the model; leave --key out if the model hands this column "
                "through, or rename the column."
            )
    urls = find_files(options.inputs)
    form = options.format or format_of(urls)
    reader = reader_for(form, signature, options.keys, options.columns, options.csv, model.unknown)
    inputs: list[InputFile] = []
    chunks: list[Chunk] = []
    for number, url in enumerate(urls):
        file, parts = reader.plan(number, url)
        inputs.append(file)
        chunks += parts
    count = options.shards or max(-(-len(chunks) // _CHUNKS_OF_A_SHARD), min(len(chunks), _LEAST_SHARDS), 1)
    ends = [len(chunks) * number // count for number in range(count + 1)]
    shards = tuple(tuple(chunks[start:stop]) for start, stop in itertools.pairwise(ends))
    return Plan(options, model.directory, form, tuple(inputs), shards)


@dataclass(frozen=True, slots=True)
class _Job:
    """What the output directory says of its job: the command, and once it has ended, the numbers of rows."""

    command: dict[str, Any]
    finished: dict[str, int] | None = None


def _job_file(output: str) -> StateFile[_Job]:
    return StateFile(files.join(output, JOB_FILE), _Job, error=InvalidValueError, cure=f"remove {output}")


def _known(plan: Plan, output: str) -> _Job:
    """Return what the output directory says of this job; begin it if there is nothing.

    Raise an InvalidValueError if the directory has the output of another command.
    """
    found, command = _job_file(output).read(), plan.command()
    if found is not None:
        if found.command != command:
            raise InvalidValueError(
                f"{output} has the output of another command: {_difference(found.command, command)}. Give another "
                "--output, or remove the directory."
            )
        return found
    taken = [name for name in files.listdir(output) if name.startswith("prediction.")]
    if taken:
        raise InvalidValueError(
            f"{output} has {taken[0]}, which another program wrote; give another --output, or remove the file."
        )
    job = _Job(command)
    with writing(output):
        _job_file(output).write(job)
    return job


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return a clause that says in what two commands differ."""
    name = next(name for name in {**now, **before} if before.get(name) != now.get(name))
    if name != "input":
        return f"its {name} is {json.dumps(before.get(name))}, not {json.dumps(now.get(name))}"
    old, new = (dict(one["input"]) for one in (before, now))
    for url in {**old, **new}:
        if url not in new:
            return f"its input has {url}"
        if url not in old:
            return f"its input lacks {url}"
        if old[url] != new[url]:
            return f"{url} has changed since"
    return "its input files have another order"


def _run(plan: Plan, model: ExportedModel, todo: Sequence[int], progress: _Progress, workers: _Workers) -> None:
    """Predict shards in this process, or in several others."""
    wanted = plan.options.workers
    count = min(wanted, len(todo))
    if count < wanted:
        logger.info("Only %d of %d workers have a shard to write; more --shards keep more busy.", count, wanted)
    if count == 1:
        write = _writer(plan, model).write
        for number in todo:
            write(plan.files_of(number), plan.shards[number], progress.add)
        return
    workers.run(plan, todo, progress)


def _writer(plan: Plan, model: ExportedModel) -> ShardWriter:
    options = plan.options
    signature = model.signature(options.signature)
    reader = reader_for(plan.format, signature, options.keys, options.columns, options.csv, model.unknown)
    return ShardWriter(model, options.signature, reader, plan.inputs, options.batch)


class _Workers:
    """Processes that predict shards, each with a pipe, whose other end is closed when the process dies.

    They are started first of all, so that they are ready when the plan is. A process asks for the next shard when it
    has written one.
    """

    def __init__(self, count: int) -> None:
        # A forked process need not import anything, which takes half a second. But it would inherit locks that threads
        # hold: those of the program, of onnxruntime, or of torch.
        can_fork = sys.platform == "linux" and threading.active_count() == 1
        can_fork = can_fork and not {"onnxruntime", "torch"} & sys.modules.keys()
        context: Any = multiprocessing.get_context("fork" if can_fork else "spawn")
        self._processes: dict[Connection, Any] = {}
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
            with warnings.catch_warnings():
                # From Python 3.12 on, about numpy's own threads, which survive a fork.
                warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
                process.start()
            theirs.close()
            self._processes[ours] = process

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join()

    def run(self, plan: Plan, todo: Sequence[int], progress: _Progress) -> None:
        """Predict shards, or raise a UserError if a process fails."""
        left = list(reversed(todo))
        busy = set(itertools.islice(self._processes, len(todo)))
        for one in busy:
            # A process that has died is noticed below.
            with contextlib.suppress(ConnectionError):
                one.send(plan)
        while busy:
            for pipe in wait(list(busy), timeout=1.0):
                assert isinstance(pipe, Connection)
                try:
                    kind, *content = pipe.recv()
                except (EOFError, ConnectionError) as error:
                    process = self._processes[pipe]
                    process.join()
                    raise UserError(
                        f"a worker ended with status {process.exitcode}; run the same command again to go on "
                        "(with fewer --workers if memory is short)."
                    ) from error
                if kind == "failed":
                    raise InvalidValueError(content[0])
                if kind == "chunk":
                    progress.add(*content)
                elif left:
                    pipe.send(left.pop())
                else:
                    pipe.send(None)
                    busy.remove(pipe)
            progress.show()


def _work(pipe: Connection, parent: int) -> None:
    """Predict the shards that the pipe names after the plan; the body of a worker process."""
    die_with_parent(parent)
    # Ctrl-C goes to all processes of a terminal; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Where the kernel does not end this process with the first one, its pipe does. Nobody needs an error then.
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            plan = pipe.recv()
            writer = _writer(plan, ExportedModel.load(plan.export, ignore_unknown=plan.options.ignore_unknown))
            pipe.send(("ready",))
            while (number := pipe.recv()) is not None:
                writer.write(
                    plan.files_of(number),
                    plan.shards[number],
                    lambda chunk, predicted, rejected: pipe.send(("chunk", chunk, predicted, rejected)),
                )
                pipe.send(("ready",))
        except UserError as error:
            pipe.send(("failed", str(error)))


def _finish(plan: Plan, output: str) -> tuple[int, int, int]:
    """Give the files their names; return the number of predicted and rejected rows, and of names that were left out.

    Every step can be repeated, since the process may be killed between two of them.
    """
    states = [plan.files_of(number).read_state() for number in range(len(plan.shards))]
    # Files are divided by bytes, except Parquet, so that only now the number of a chunk's first line or row is known.
    begins = [file.line if plan.is_text else 0 for file in plan.inputs]
    for number, state in enumerate(states):
        firsts = []
        for chunk, length in zip(plan.shards[number], state.lengths, strict=True):
            firsts.append(chunk.first if plan.format == "parquet" else begins[chunk.file])
            begins[chunk.file] += length
        shard = plan.files_of(number)
        if not files.exists(shard.unfinished_errors):
            continue
        lines = []
        for line in files.read_bytes(shard.unfinished_errors).splitlines():
            index, place, reason = json.loads(line)
            url = plan.inputs[plan.shards[number][index].file].url
            entry = {"file": url, "line" if plan.is_text else "row": firsts[index] + place, "reason": reason}
            lines.append(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        files.write_atomic(shard.errors, b"".join(lines))
        _rename(shard.unfinished_results, shard.results)
        files.remove_tree(shard.unfinished_errors)
    predicted, rejected = sum(state.predicted for state in states), sum(state.rejected for state in states)
    ignored = sum(state.ignored for state in states)
    finished = {"predicted": predicted, "rejected": rejected, "ignored": ignored}
    _job_file(output).write(_Job(plan.command(), finished))
    _sweep(plan, output)
    return predicted, rejected, ignored


def _sweep(plan: Plan, output: str) -> None:
    """Remove what a job has left beside its finished output, also if it was killed at its end."""
    for name in files.listdir(output):
        # A process that was killed while it replaced a file left the new file under another name.
        if name.startswith(files.TEMPORARY_PREFIX) and (f"-of-{len(plan.shards):05d}" in name or JOB_FILE in name):
            files.remove_tree(files.join(output, name))


def _rename(source: str, target: str) -> None:
    """Rename a file, unless it was renamed before."""
    if not files.exists(source):
        return
    if files.is_local(source):
        os.replace(source, target)
        return
    import fsspec.core

    filesystem, key = fsspec.core.url_to_fs(source)
    filesystem.mv(key, fsspec.core.url_to_fs(target)[1])


@contextlib.contextmanager
def _locked_directory(output: str) -> Iterator[None]:
    """Make the output directory, and lock it during the body.

    Raise an InvalidValueError if another process writes into it, or if it cannot be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            files.makedirs(output)
            if files.is_local(output):
                # Lock the directory itself, since a lock file could not be removed safely at the end.
                stack.enter_context(locked(output, directory=True))
        except OSError as error:
            raise InvalidValueError(f"{output} cannot be written: {files.reason(error)}.") from error
        yield


class _Progress:
    """Progress bar on a terminal, or a log line every ten seconds."""

    def __init__(self, plan: Plan) -> None:
        self._total = sum(chunk.length for chunks in plan.shards for chunk in chunks)
        self._done = 0
        self._rows = self._rejected = 0
        self._began = self._logged = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._total,
                unit={"parquet": "row", "tfrecord": "range"}.get(plan.format, "B"),
                unit_scale=True,
                dynamic_ncols=True,
            )

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def skip(self, chunk: Chunk) -> None:
        """Count a chunk that an earlier run has predicted."""
        self._done += chunk.length
        if self._bar is not None:
            self._bar.initial += chunk.length
            self._bar.update(chunk.length)

    def add(self, chunk: Chunk, predicted: int, rejected: int) -> None:
        """Count a chunk and show the progress."""
        self._done += chunk.length
        self._rows += predicted + rejected
        self._rejected += rejected
        if self._bar is not None:
            self._bar.set_postfix(rejected=self._rejected, refresh=False)
            self._bar.update(chunk.length)
        self.show()

    def show(self) -> None:
        """Log the progress if it is time."""
        now = time.monotonic()
        if self._bar is None and now >= self._logged + _LOG_SECS:
            self._logged = now
            share = self._done / max(self._total, 1)
            rate = self._rows / (now - self._began)
            logger.info(
                "Predicted %.0f %% of the input: %d rows in this run, %d of them rejected, %.0f rows/s.",
                *(100 * share, self._rows, self._rejected, rate),
            )
