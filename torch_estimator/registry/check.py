"""Check of an export: load it in a process of its own without torch, compare its predictions, measure it.

The process is this module, run with ``python -m``. It prints its report as one line of JSON. An export could make
onnxruntime crash, which ends that process only.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch_estimator import files
from torch_estimator.errors import ExportError, InvalidValueError, UserError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.instances import to_rows
from torch_estimator.export.warmup import WARMUP_FILE, batches_of, difference, read_warmup
from torch_estimator.json_text import parse_json

BATCHES = (1, 16, 256)

# Measure a batch size for this long, but call the export this many times at least and at most.
_MEASURE_SECS, _FEWEST_CALLS, _MOST_CALLS = 0.5, 20, 2000
_WITH_LATENCY = "--latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Time of one call of `ExportedModel.predict`, with one thread, in milliseconds."""

    median_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Result of a check.

    Attributes:
        directory: Directory of the export.
        bytes: Size of its files.
        start_secs: Seconds from the start of a process until the export was loaded.
        load_secs: Seconds of that for loading the export itself.
        onnxruntime: Version of onnxruntime.
        machine: The processor's architecture.
        instances: Number of recorded instances whose predictions were reproduced.
        signature: Signature whose latency was measured; None if none was.
        latency: Latency by batch size.
        has_manifest: Whether the files were compared with the checksums of a registry's manifest.
    """

    directory: str
    bytes: int
    start_secs: float
    load_secs: float
    onnxruntime: str
    machine: str
    instances: int
    signature: str | None = None
    latency: Mapping[int, Latency] = field(default_factory=dict)
    has_manifest: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


def check_export(directory: str, *, latency: bool = True) -> CheckReport:
    """Load an export in a new process without torch, and compare its predictions with those it has recorded.

    Raise an ExportError if the export does not load, does not reproduce its predictions, or differs from its manifest.
    Measuring the latency takes a few seconds.
    """
    with tempfile.TemporaryDirectory(prefix="torch-estimator-check-") as folder:
        local = directory
        if not files.is_local(directory):
            # Copy the files, because the stores that this process knows may be unknown in the new one.
            local = os.path.join(folder, files.basename(directory))
            for name in files.all_files(directory):
                files.makedirs(files.parent(files.join(local, name)))
                files.write_file(files.join(local, name), files.read_chunks(files.join(directory, name)))
        command = [sys.executable, "-m", __name__, local, directory, repr(time.monotonic())]
        # Let the new process import this very package.
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ended = subprocess.run(
            command + [_WITH_LATENCY] * latency,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    try:
        answer = parse_json(ended.stdout.rpartition("\n")[0].rpartition("\n")[2])
    except ValueError as error:
        lines = ended.stderr.strip().splitlines()
        raise ExportError(
            f"{directory} cannot be used: the process that loaded it ended with status {ended.returncode}"
            f"{f' ({lines[-1]})' if lines else ''}."
        ) from error
    if "error" in answer:
        raise ExportError(answer["error"])
    answer["latency"] = {int(size): Latency(**one) for size, one in answer["latency"].items()}
    return CheckReport(**answer)


def _main(local: str, directory: str, started: float, *, latency: bool) -> dict[str, Any]:
    """Check an export in this process; return the report, or the error.

    Args:
        local: Local directory with the files.
        directory: Path or URL of the export, for messages.
        started: Monotonic time at which this process was started.
        latency: Whether to measure the latency.
    """
    # Make an import of torch fail, because an export must do without.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        return replace(_report(local, started, latency=latency), directory=directory).to_json()
    except UserError as error:
        return {"error": str(error).replace(local, directory)}
    except OSError as error:
        return {"error": f"{directory} cannot be read: {files.reason(error)}."}


def _report(directory: str, started: float, *, latency: bool) -> CheckReport:
    before = time.monotonic()
    model = ExportedModel.load(directory)
    loaded = time.monotonic()
    # Import after measuring the start.
    import onnxruntime

    from torch_estimator.registry.manifest import check_files

    has_manifest = check_files(directory)
    instances = read_warmup(directory)
    try:
        batches = batches_of(instances, model.signatures)
        for name, (inputs, group) in batches.items():
            rows = to_rows(model.predict(inputs, name))
            for number, (one, row) in enumerate(zip(group, rows, strict=True), 1):
                _compare(one.predictions, row, f"{directory}, instance {number} of the signature {name!r}")
    except InvalidValueError as error:
        problem = str(error).rstrip(".")
        raise ExportError(
            f"{directory} does not take its own {WARMUP_FILE}: {problem}; export the model again."
        ) from error
    signature = next(iter(batches), None) if latency else None
    return CheckReport(
        directory=directory,
        bytes=sum(files.all_files(directory).values()),
        start_secs=loaded - started,
        load_secs=loaded - before,
        onnxruntime=onnxruntime.__version__,
        machine=platform.machine(),
        instances=len(instances),
        signature=signature,
        latency=_latencies(model, signature, batches[signature][0]) if signature is not None else {},
        has_manifest=has_manifest,
    )


def _compare(recorded: Mapping[str, Any], predicted: Mapping[str, Any], where: str) -> None:
    """Raise an `ExportError` if predictions differ from the recorded ones."""
    for name in sorted(recorded.keys() | predicted.keys()):
        if name not in recorded or name not in predicted:
            raise ExportError(f"{where}: the output {name!r} is {'new' if name in predicted else 'missing'}.")
        problem = difference(recorded[name], predicted[name])
        if problem is not None:
            raise ExportError(f"{where}: the output {name!r} {problem}; export the model again.")


def _latencies(model: ExportedModel, signature: str, inputs: Mapping[str, list[Any]]) -> dict[int, Latency]:
    """Return the latency by batch size. A batch repeats the given rows."""
    rows = len(next(iter(inputs.values())))
    found = {}
    for size in BATCHES:
        batch = {name: [values[row % rows] for row in range(size)] for name, values in inputs.items()}
        model.predict(batch, signature)
        times: list[float] = []
        ends = time.perf_counter() + _MEASURE_SECS
        while len(times) < _FEWEST_CALLS or (len(times) < _MOST_CALLS and time.perf_counter() < ends):
            before = time.perf_counter()
            model.predict(batch, signature)
            times.append(1000 * (time.perf_counter() - before))
        found[size] = Latency(median_ms=statistics.median(times), p99_ms=sorted(times)[len(times) * 99 // 100])
    return found


if __name__ == "__main__":
    report = _main(sys.argv[1], sys.argv[2], float(sys.argv[3]), latency=_WITH_LATENCY in sys.argv[4:])
    print(json.dumps(report))
