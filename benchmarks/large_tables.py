"""Training with tables that only parameter servers hold: `scripts/bench large_tables`.

A classifier with one table, batches of 512 examples of 20 ids, all different; a chief and two servers on this machine,
each a process of its own (`benchmarks/peers/ours_large_table.py`). Memory is private memory (RssAnon), sampled from
/proc. Parts:

`memory`: worker and chief of a table of 3,000,000 x 64, over those of the same job with 1,000 rows.
`speed`: steps per second with 60,000,000 x 16 and Adagrad, over those with 100,000 rows, which the worker holds; while
a checkpoint is written, over those while none is; and the longest pause between two steps.
`huge`: one job with that table from its first step to the answer of a server of predictions: a parameter server is
killed, the job goes on later, is evaluated and exported.
`tensorflow`: steps per second with 3,000,000 x 64 over TensorFlow 2.15's, whose variable has a part on each of two
servers; beside them a loop in one process with ``nn.Embedding(sparse=True)``.

`huge` and `speed` need 25 GB on the disk of --dir: three checkpoints of 7.7 GB, the last one being written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch_estimator as te
from benchmarks.census.setup import Part, empty_cache
from benchmarks.checkpoint_stall import disk_lacks
from benchmarks.peers import large_table
from benchmarks.peers.ours_large_table import saves
from benchmarks.protocol import (
    ROLE,
    ROOT,
    MemoryWatch,
    Side,
    SideError,
    alternate,
    at_least,
    at_most,
    conclude,
    free_ports,
    ready,
    run_cluster,
    show,
    show_machine,
    table,
)
from torch_estimator.checkpoint.index import checkpoint_step


@dataclass(frozen=True, slots=True)
class Shape:
    """A table of float32 with Adagrad."""

    rows: int
    dim: int

    @property
    def table_bytes(self) -> int:
        """Bytes of its values."""
        return 4 * self.rows * self.dim

    @property
    def state_bytes(self) -> int:
        """Bytes of its values and of Adagrad's sums: those of a checkpoint."""
        return 2 * self.table_bytes

    def __str__(self) -> str:
        return f"{self.rows:,} x {self.dim}"


OURS = Side(name="torch-estimator", script="ours_large_table")
PEERS = {
    "tensorflow": Side(name="TF 2.15, partitioned variable", script="tensorflow_large_table", environment="tensorflow"),
    "loop": Side(name="loop with nn.Embedding(sparse=True), no servers", script="loop_large_table"),
}
SERVERS = 2
LARGE, HUGE = Shape(3_000_000, 64), Shape(60_000_000, 16)
# Just above the size from which a table is on servers only, for --quick.
QUICK_LARGE, QUICK_HUGE = Shape(300_000, 64), Shape(1_200_000, 16)
SMALL_ROWS, TWIN_ROWS = 100_000, 1_000

MEMORY_RATIO = 1.2
PROCESS_MB, OF_PART, OF_PART_SAVING = 1000.0, 1.2, 1.4
OVER_SMALL, WHILE_SAVING, PAUSE_SECS = 0.8, 0.6, 0.2
TIMES_OF_FILES, MORE_SECS, SERVING_SECS = 1.5, 3.0, 0.5
OVER_TENSORFLOW = 1.0

_PROCESSES = ("chief 0", "worker 0", "evaluator 0", "evaluate", "export", "serving")
_BLOCK = 1 << 22
_WAIT_SECS = 900.0


def arguments_of(shape: Shape, steps: int, warmup: int, *more: object) -> list[object]:
    """Arguments of a side."""
    return ["--rows", shape.rows, "--dim", shape.dim, "--steps", steps, "--warmup", warmup, *more]


def measure_memory(args: argparse.Namespace, sides: Mapping[str, Side]) -> Part:
    """Worker and chief of a table, over those with few rows."""
    large = QUICK_LARGE if args.quick else LARGE
    shapes = {str(shape): shape for shape in (Shape(TWIN_ROWS, large.dim), large)}
    steps = 60 if args.quick else 600

    def run(shape: Shape, variables: Mapping[str, str]) -> dict[str, Any]:
        with MemoryWatch() as watch:
            # A process beside each compiles, so that none holds the compiler by chance.
            given = arguments_of(shape, steps, steps // 3, "--save-every", steps // 3, "--compile", "auto")
            result = run_cluster(OURS, given, workers=1, servers=SERVERS, variables={**variables, **watch.variables})
        return {**result, **watch.peaks_mb()}

    with empty_cache() as variables:
        runs = {name: partial(run, shape, variables) for name, shape in shapes.items()}
        measured = alternate(runs, args.rounds, "memory")
    small, name = shapes
    roles = ("worker 0", "chief 0", "ps 0", "ps 1")
    ratios = {role: measured.ratio(f"{role} MB", over=name, under=small) for role in roles}
    rows = [[role, *(measured.median(key, f"{role} MB") for key in shapes), ratios[role]] for role in roles]
    return Part(
        title=f"The most private memory of each process, table of {name}",
        table=table(["", "1,000 rows MB", "MB", "ratio"], rows),
        verdicts=[
            at_most(f"private memory of the {role[:-2]}, {name} over {TWIN_ROWS:,} rows", MEMORY_RATIO, ratios[role])
            for role in roles[:2]
        ],
        measured=measured,
    )


def measure_speed(args: argparse.Namespace, sides: Mapping[str, Side]) -> Part:
    """Steps per second with a huge table over those with a small one, and while it is saved."""
    huge = QUICK_HUGE if args.quick else HUGE
    shapes = {str(shape): shape for shape in (Shape(SMALL_ROWS, huge.dim), huge)}
    steps, every = (400, 150) if args.quick else (9_500, 4_000)

    def run(shape: Shape, variables: Mapping[str, str]) -> dict[str, Any]:
        # The first checkpoint, of initial values, is written in the warm-up.
        return run_cluster(
            OURS, arguments_of(shape, steps, every // 2, "--save-every", every), servers=SERVERS, variables=variables
        )

    with empty_cache() as variables, in_folder(args.dir):
        runs = {name: partial(run, shape, variables) for name, shape in shapes.items()}
        measured = alternate(runs, args.rounds, "speed")
    small, name = shapes
    over = measured.ratio("steps_per_s", over=name, under=small)
    saving, calm, pause = (
        measured.median(name, key) for key in ("saving_steps_per_s", "steps_per_s", "longest_pause_s")
    )
    share = saving / calm if saving and calm else None
    rows = [
        [key, *(measured.median(key, value) for value in ("steps_per_s", "saving_steps_per_s", "longest_pause_s"))]
        for key in measured.results
    ]
    return Part(
        title=f"A chief and {SERVERS} servers, tables of which a batch reads 10,240 different rows",
        table=table(["rows", "steps/s", "while saving", "longest pause s"], rows),
        verdicts=[
            at_least(f"steps/s with {name} over {SMALL_ROWS:,} rows", OVER_SMALL, over),
            at_least(
                f"steps/s with {name} while a checkpoint is written, over those while none is", WHILE_SAVING, share
            ),
            at_most(f"longest pause between two steps with {name}, s", PAUSE_SECS, pause),
        ],
        measured=measured,
    )


def measure_tensorflow(args: argparse.Namespace, sides: Mapping[str, Side]) -> Part:
    """Steps per second over TensorFlow's servers."""
    large = QUICK_LARGE if args.quick else LARGE
    both = {"ours": OURS, **sides}

    def run(key: str, variables: Mapping[str, str]) -> dict[str, Any]:
        steps, warmup = (60, 20) if args.quick else (1_500, 500) if key == "ours" else (400, 100)
        if key == "loop":
            return both[key].run(arguments_of(large, steps, warmup))
        return run_cluster(both[key], arguments_of(large, steps, warmup), servers=SERVERS, variables=variables)

    with empty_cache() as variables, in_folder(args.dir):
        measured = alternate({key: partial(run, key, variables) for key in both}, args.rounds, "beside others")
    over = measured.ratio("steps_per_s", over="ours", under="tensorflow")
    rows = [
        [side.name, measured.median(key, "steps_per_s"), measured.ratio("steps_per_s", over="ours", under=key)]
        for key, side in both.items()
        if key in measured.results
    ]
    return Part(
        title=f"Steps per second with a table of {large}, {SERVERS} servers",
        table=table(["", "steps/s", "ours over it"], rows),
        verdicts=[at_least(f"steps/s with {large} over TF 2.15's servers", OVER_TENSORFLOW, over)],
        measured=measured,
    )


def measure_huge(args: argparse.Namespace, sides: Mapping[str, Side]) -> Part:
    """The life of a job."""
    shape = QUICK_HUGE if args.quick else HUGE
    measured = alternate({"huge": partial(live, shape, args)}, 1, f"a job with {shape}")
    result = measured.results.get("huge", [{}])[0]
    part_mb = shape.state_bytes / SERVERS / 1e6
    limits: list[tuple[str, str, float]] = [
        *((f"private memory, {role}, MB", f"{role} MB", PROCESS_MB) for role in _PROCESSES),
        *((f"private memory, ps {n}, MB", f"ps {n} MB", OF_PART_SAVING * part_mb) for n in range(SERVERS)),
        *((f"between saves, ps {n}, MB", f"ps {n} MB between saves", OF_PART * part_mb) for n in range(SERVERS)),
        (
            "from the kill of a server to the next step, s",
            "restart_s",
            TIMES_OF_FILES * result.get("read_s", 0.0) + MORE_SECS,
        ),
        ("export, s", "export_s", TIMES_OF_FILES * result.get("write_s", 0.0) + MORE_SECS),
        (f"first answer of a server of predictions, beyond {TWIN_ROWS:,} rows, s", "serve_s", SERVING_SECS),
    ]
    others = {
        "steps": "steps",
        "from the start of the job to its first step, s": "first_step_s",
        "from the start to go on to the next step, s": "resume_s",
        "evaluate, 20 batches, s": "evaluate_s",
        "reading a server's files, s": "read_s",
        "writing an export's bytes, s": "write_s",
    }
    return Part(
        title=f"A job with a table of {shape} and Adagrad, {SERVERS} servers that hold {part_mb:,.0f} MB each",
        table=table(
            ["", "measured", "at most"],
            [
                *([what, result.get(key), limit] for what, key, limit in limits),
                *([what, result.get(key), None] for what, key in others.items()),
            ],
        ),
        verdicts=[at_most(what, limit, result.get(key)) for what, key, limit in limits],
        measured=measured,
    )


def live(shape: Shape, args: argparse.Namespace) -> dict[str, Any]:
    """Train a table, kill a server, go on later, evaluate, export and serve; return what all that took."""
    # A checkpoint must be written long before the next one begins, so that a server can be killed between them.
    every = 100 if args.quick else 20_000
    steps = (3 if args.quick else 2) * every
    result: dict[str, Any] = {}
    with empty_cache() as variables, tempfile.TemporaryDirectory(dir=args.dir) as name:
        folder = Path(name)
        job = folder / "job"
        with MemoryWatch(lambda: saves(job)) as watch:
            environ = {**variables, **watch.variables}
            given = arguments_of(shape, steps, every // 2, "--save-every", every)
            # An evaluator would read all of the checkpoint from the disk that a restored server reads from.
            with launched(given, job, environ, folder / "train.log", []) as process:
                began = time.time()
                killed_at = kill_a_server(process, job, watch, every)
                said = chief_of(process, folder / "train.log")
            pauses = [
                (after - before, after) for (_, before), (_, after) in pairwise(said["ends"]) if after > killed_at
            ]
            if not pauses:
                raise SideError("The job ended before a parameter server was killed.")
            result |= {key: said[key] for key in ("peer", "version")}
            result |= {"first_step_s": said["ends"][0][1] - began, "restart_s": max(pauses)[1] - killed_at}
            more = arguments_of(shape, steps + every, 0, "--save-every", every)
            with launched(more, job, environ, folder / "resume.log", ["--evaluator"]) as process:
                began = time.time()
                said = chief_of(process, folder / "resume.log")
            latest = Path(str(te.latest_checkpoint(job)))
            afterwards = partial(train_nothing, shape, job, environ)
            if not said["ends"]:
                told = [one for one in (folder / "resume.log").read_text().splitlines() if "[launcher]" in one]
                raise SideError("The chief took no step after the job went on:\n" + "\n".join(told))
            result |= {"resume_s": said["ends"][0][1] - began, "steps": checkpoint_step(latest.name)}
            result["evaluate_s"] = afterwards("evaluate")["secs"]
            # In turns, as the pace of a disk drifts.
            pairs = [
                (afterwards("export"), secs_to_write(shape.table_bytes, folder)) for _ in range(1 if args.quick else 3)
            ]
            result["export_s"] = median(said["secs"] for said, _ in pairs)
            result["write_s"] = median(secs for _, secs in pairs)
            # Only now, since it empties the system's cache of these files, which an export finds as the job left them.
            result["read_s"] = secs_to_read(list(latest.glob("*-of-ps-1.safetensors")))
            export = str(pairs[-1][0]["export"])
            answer = secs_to_answer(export, {**environ, ROLE: "serving"})
            twin = Shape(TWIN_ROWS, shape.dim)
            small = arguments_of(twin, 10, 0, "--cluster", folder / "twin", "--compile", "no")
            OURS.run(small)
            said = OURS.run([*small, "--after", "export"])
            result["serve_s"] = answer - secs_to_answer(str(said["export"]), {})
        result |= watch.peaks_mb()
        result |= {f"{role} MB between saves": size / 1e6 for role, size in watch.peaks_between_saves.items()}
    return result


def train_nothing(shape: Shape, job: Path, environ: Mapping[str, str], what: str) -> dict[str, Any]:
    """Evaluate or export what a job has saved; return what the process said."""
    return OURS.run(arguments_of(shape, 0, 0, "--cluster", job, "--after", what), variables={**environ, ROLE: what})


@contextlib.contextmanager
def launched(
    arguments: Sequence[object], job_dir: Path, variables: Mapping[str, str], log: Path, more: Sequence[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The job in the body: a chief, a worker and servers under `estimator local train`, and `more` roles."""
    cluster = ["--distributed", "--worker-count", "1", "--parameter-server-count", str(SERVERS), *more]
    command = [
        sys.executable,
        "-m",
        "torch_estimator.cli",
        "local",
        "train",
        "--module-name",
        f"benchmarks.peers.{OURS.script}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *cluster, "--job-dir", str(job_dir), "--", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            # The launcher ends its processes, also where it is killed.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def kill_a_server(process: subprocess.Popen[bytes], job_dir: Path, watch: MemoryWatch, step: int) -> float:
    """Kill the last server after the checkpoint of a step; return when that was, in seconds since 1970."""
    deadline = time.monotonic() + _WAIT_SECS
    while True:
        latest = te.latest_checkpoint(job_dir)
        saved = checkpoint_step(Path(latest).name) if latest is not None else None
        if latest is not None and saved is not None and saved >= step and not saves(job_dir):
            break
        if process.poll() is not None or time.monotonic() > deadline:
            raise SideError(f"The job made no checkpoint of step {step}.")
        time.sleep(0.1)
    # So that the server reads from the disk, as on a machine of its own.
    for file in Path(latest).glob("*-of-ps-*.safetensors"):
        forget(file)
    killed_at = time.time()
    os.kill(watch.pids[f"ps {SERVERS - 1}"], signal.SIGKILL)
    return killed_at


def chief_of(process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """Wait for the end of a job; return what its chief said in the end."""
    try:
        status = process.wait(_WAIT_SECS)
    except subprocess.TimeoutExpired:
        raise SideError(f"The job did not end within {_WAIT_SECS:.0f} s.") from None
    lines = log.read_text(errors="replace").splitlines()
    said = [line.partition("] ")[2] for line in lines if line.startswith("[chief 0] {")]
    if status or not said:
        raise SideError(f"The job ended with {status}:\n" + "\n".join(lines[-15:]))
    return dict(json.loads(said[-1]))


def forget(file: Path) -> None:
    """Have the system drop what it keeps of a file in memory."""
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def secs_to_read(paths: Sequence[Path]) -> float:
    """Return the seconds that reading files from the disk takes."""
    for path in paths:
        forget(path)
    began = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(_BLOCK):
                pass
    return time.perf_counter() - began


def secs_to_write(size: int, folder: Path) -> float:
    """Return the seconds that writing so many bytes to the disk takes."""
    block = os.urandom(_BLOCK)
    path = folder / "bytes"
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // _BLOCK):
            file.write(block)
        os.fsync(file.fileno())
    secs = time.perf_counter() - began
    path.unlink()
    return secs


def secs_to_answer(export: str, variables: Mapping[str, str]) -> float:
    """Return the seconds from the start of a server of predictions to its first answer."""
    (port,) = free_ports(1)
    body = json.dumps({"instances": [{"ids": list(range(large_table.LOOKUPS))}]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/models/m:predict", body, {"Content-Type": "application/json"}
    )
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_estimator.cli", "serve", "--model", f"m={export}", "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while process.poll() is None and time.perf_counter() < began + _WAIT_SECS:
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=_WAIT_SECS) as answer:
                answer.read()
                secs = time.perf_counter() - began
                # Long enough for the memory of a server that has answered to be sampled.
                time.sleep(2.0)
                return secs
            time.sleep(0.02)
        raise SideError(f"No server of predictions answered for {export}.")
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def in_folder(folder: str) -> Iterator[None]:
    """Make temporary directories in a folder, such as that of `run_cluster`."""
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before


PARTS: dict[str, Callable[[argparse.Namespace, Mapping[str, Side]], Part]] = {
    "memory": measure_memory,
    "speed": measure_speed,
    "tensorflow": measure_tensorflow,
    "huge": measure_huge,
}
_OF_HUGE = {"speed", "huge"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and the verdicts; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench large_tables", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure; by default everything")
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="whom to compare with; by default all")
    add("--rounds", type=int, default=3, help="how often every side runs; the job of `huge` runs once")
    add("--dir", default=tempfile.gettempdir(), help="folder on the disk to write to; default %(default)s")
    add("--quick", action="store_true", help="one round with tables of 77 MB, to see that it runs; installs nothing")
    args = parser.parse_args(arguments)
    args.rounds = 1 if args.quick else args.rounds
    shape = (QUICK_HUGE if args.quick else HUGE) if _OF_HUGE.intersection(args.parts) else QUICK_LARGE
    if lacking := disk_lacks(args.dir, 1.07 * shape.state_bytes / 2**20):
        parser.error(lacking)
    peers = {key: PEERS[key] for key in args.peers} if "tensorflow" in args.parts else {}
    sides = ready(peers, install=not args.quick)
    parts = []
    for name in args.parts:
        part = PARTS[name](args, sides)
        show(name, part.title, part.table)
        parts.append(part)
    show_machine({peer: version for part in parts for peer, version in part.measured.versions().items()})
    failed = [side for part in parts for side in part.measured.failures]
    return conclude([one for part in parts for one in part.verdicts], failed=failed, quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
