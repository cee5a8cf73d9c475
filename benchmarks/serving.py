"""Our server and others with the same export: `scripts/bench serving`.

The census model (1,020,251 wide weights, hidden layers of 100, 70, 48 and 34) is trained for a few steps, exported, and
served by each. wrk sends requests with one instance over 1, 16 and 64 connections and counts answers; h2load sends them
at a fixed rate, half of what our server can answer, for latencies that waiting in wrk would hide. All processes of a
server share one core, and the load comes from the other (`--cores 2` leaves both to everybody).

Then our server alone: requests of 1,024 instances over onnxruntime alone with the same rows, gRPC with the messages of
TensorFlow Serving and of Open Inference, and a server that has no node. Last, `estimator predict-batch` on a Parquet
file beside `Estimator.predict`, on both cores. Its output lies in memory where the machine has /dev/shm, since the disk
is not what is measured.

Debian's packages wrk and nghttp2-client are needed, and haproxy for Ray Serve.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.census.parquet import write_parquet
from benchmarks.census.setup import TRAIN_FILE, check_data
from benchmarks.peers import environment
from benchmarks.peers.grpc_requests import grpc_requests
from benchmarks.protocol import (
    ROOT,
    Measured,
    SideError,
    Table,
    Verdict,
    alternate,
    at_least,
    at_most,
    conclude,
    free_ports,
    show,
    show_machine,
    table,
)

if TYPE_CHECKING:
    import torch_estimator as te

DATA = ROOT.parent / "shared" / "data" / "census"
INSTANCES = ROOT / "examples" / "census" / "test.json"
CONNECTIONS = (1, 16, 64)
LARGE = 1024
# Requests and instances per second, milliseconds, seconds, MB and ratios that are promised.
REQUESTS_AT_16, REQUESTS_AT_1 = 10_000, 2_500
OVER_PEERS = {"litserve": 8.0, "mlserver": 8.0, "kserve": 5.0, "triton": 1.0, "ray": 1.0}
P50_MS, P99_MS = 1.5, 20.0
OF_ONNXRUNTIME = 0.5
OF_OPEN_INFERENCE = 0.9
READY_SECS, MEMORY_MB = 1.5, 200.0
FROM_ZERO_SECS, IDLE_MB = 1.5, 30.0
BATCH_OF_PREDICT = {1: 1.0, 2: 1.8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server to measure.

    `environment` is a folder of `.bench/`, or None for the interpreter of this process. `path` is where it takes
    predictions: with `tensors`, those of the Open Inference Protocol instead of TensorFlow Serving's instances.
    """

    name: str
    environment: str | None
    path: str
    tensors: bool = False
    variables: tuple[tuple[str, str], ...] = ()

    def command(self, key: str, export: str, port: int) -> list[str]:
        """The command line that starts it."""
        if key == "ours":
            model = f"census={export}"
            return [sys.executable, "-m", "torch_estimator.cli", "serve", "--model", model, "--port", str(port)]
        python = sys.executable if self.environment is None else str(environment.python_of(self.environment))
        return [python, "-m", f"benchmarks.peers.serve_{key}", export, str(port)]


# What makes Ray Serve's own way fast, by its makers: HAProxy in front, and gRPC between its parts.
_RAY = (("RAY_SERVE_ENABLE_HA_PROXY", "1"), ("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1"), ("RAY_USAGE_STATS_ENABLED", "0"))
SERVERS: Mapping[str, Server] = {
    "ours": Server(name="estimator serve", environment=None, path="/v1/models/census:predict"),
    "litserve": Server(name="LitServe", environment="litserve", path="/predict"),
    "mlserver": Server(name="MLServer", environment="mlserver", path="/v2/models/census/infer", tensors=True),
    "kserve": Server(name="KServe's SDK", environment="kserve", path="/v1/models/census:predict"),
    "triton": Server(name="Triton", environment="triton", path="/v2/models/census/infer", tensors=True),
    "ray": Server(name="Ray Serve", environment="ray", path="/predict", variables=_RAY),
}
PEERS = tuple(key for key in SERVERS if key != "ours")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder with adult.data.csv")
    add("--export", help="export to serve instead of one that is made from --data")
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="whom to compare with; by default all")
    add("--rounds", type=int, default=3, help="how often every server runs")
    add("--secs", type=int, default=8, help="seconds of load with each number of connections")
    add("--batch-rows", type=int, default=3_000_000, help="rows of the Parquet file for predict-batch")
    add("--cores", type=int, choices=(1, 2), default=1, help="cores of every server")
    add("--quick", action="store_true", help="one short round, to see that it runs; installs nothing")
    args = parser.parse_args(arguments)
    check_data(parser, args.data, (TRAIN_FILE,))
    for program in ("wrk", "h2load"):
        if shutil.which(program) is None:
            parser.error(f"{program} is not installed (on Debian: apt-get install wrk nghttp2-client)")
    if args.quick:
        args.rounds, args.secs, args.batch_rows = 1, 1, 20_000
    return args


def make_estimator(folder: str) -> tuple[te.Estimator, list[Any]]:
    """The census model, whose training lies in a folder, and its columns."""
    import torch_estimator as te
    from examples.census.trainer import featurizer, model

    config = te.RunConfig(model_dir=f"{folder}/model", compile=False)
    units = model.hidden_units(100, 4, 0.7)
    wide, deep = featurizer.wide_and_deep_columns(8)
    return model.build_estimator(config, embedding_size=8, units=units), [*wide, *deep]


def make_export(data: Path, folder: str) -> str:
    """An export of the census model after a few steps; its directory."""
    from examples.census.trainer import input as census_input

    estimator, columns = make_estimator(folder)
    estimator.train(lambda: census_input.read_csv(str(data / TRAIN_FILE), batch_size=40), max_steps=400)
    return str(estimator.export_saved_model(f"{folder}/export", census_input.json_serving_input(columns)))


def instances(count: int) -> list[dict[str, Any]]:
    """So many instances of the census example."""
    known = [json.loads(line) for line in INSTANCES.read_text().splitlines()]
    return [known[number % len(known)] for number in range(count)]


def body_of(server: Server) -> str:
    """A request with one instance, as a server takes it."""
    (one,) = instances(1)
    if not server.tensors:
        return json.dumps({"instances": [one]})
    inputs = [
        {
            "name": name,
            "shape": [1, 1],
            "datatype": "BYTES" if isinstance(value, str) else "FP32",
            "data": [value if isinstance(value, str) else float(value)],
        }
        for name, value in one.items()
    ]
    return json.dumps({"inputs": inputs})


@contextmanager
def running(key: str, export: str, cores: int, *options: str) -> Iterator[tuple[int, int, float]]:
    """A server that answers, in the body: its process group, its port, and the seconds until it answered."""
    server = SERVERS[key]
    (port,) = free_ports(1)
    command = ["taskset", "-c", "0" if cores == 1 else "0,1", *server.command(key, export, port), *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **dict(server.variables)}
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not answers(server, port):
            if process.poll() is not None or time.perf_counter() > began + 90:
                raise SideError(f"{server.name} does not answer: {' '.join(command)}")
            time.sleep(0.02)
        yield process.pid, port, time.perf_counter() - began
    finally:
        # A server ends its own processes, of which some are in groups of their own (HAProxy in Ray's).
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(server: Server, port: int) -> bool:
    """Whether a server predicts."""
    url = f"http://127.0.0.1:{port}{server.path}"
    request = urllib.request.Request(url, body_of(server).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200 and answer.read())
    except OSError:
        return False


def wrk(url: str, body: str, connections: int, secs: int, folder: str) -> dict[str, float]:
    """Return requests per second, and milliseconds at the 50th and 99th percentile, under as much load as wrk makes.

    Raise a SideError if an answer was an error.
    """
    script = Path(folder) / "request.lua"
    script.write_text(
        f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = [==[{body}]==]\n'
    )
    command = ["wrk", "-t1", f"-c{connections}", f"-d{secs}s", "--latency", "-s", str(script), url]
    text = subprocess.run(["taskset", "-c", "1", *command], check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in text:
        raise SideError(f"some answers of {url} were errors:\n{text}")
    milliseconds = {
        percentile: float(number) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]
        for percentile, number, unit in re.findall(r"(50|99)%\s+([\d.]+)(us|ms|s)\b", text)
    }
    (requests,) = re.findall(r"Requests/sec:\s+([\d.]+)", text)
    return {"requests": float(requests), "p50": milliseconds["50"], "p99": milliseconds["99"]}


def at_fixed_rate(url: str, body: str, rate: int, secs: int, folder: str) -> dict[str, float]:
    """Milliseconds at the 50th and the 99th percentile at a fixed number of requests per second, 16 connections."""
    content, log = Path(folder) / "body.json", Path(folder) / "h2load.log"
    content.write_text(body)
    log.unlink(missing_ok=True)
    command = ["h2load", "--h1", "-c16", "-t1", f"--rps={max(1, rate // 16)}", f"-D{secs}", f"-d{content}"]
    command += ["-Hcontent-type: application/json", f"--log-file={log}", url]
    subprocess.run(["taskset", "-c", "1", *command], check=True, capture_output=True)
    microseconds = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())
    middle, high = (microseconds[int(len(microseconds) * part)] for part in (0.5, 0.99))
    return {"fixed_p50": middle / 1000, "fixed_p99": high / 1000}


def cpu_secs(group: int) -> float:
    """CPU time of all processes of a session, in seconds."""
    return sum(ticks for ticks, _ in _processes(group)) / os.sysconf("SC_CLK_TCK")


def memory_mb(group: int) -> float:
    """Proportional set size of all processes of a session, in MB."""
    return sum(memory for _, memory in _processes(group)) / 1e6


def _processes(group: int) -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == group:
                memory = re.search(r"^Pss:\s+(\d+) kB", (folder / "smaps_rollup").read_text(), re.MULTILINE)
                yield int(fields[11]) + int(fields[12]), 1024 * int(memory[1]) if memory else 0
        except (OSError, ValueError, IndexError):
            continue


def measure(key: str, export: str, args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """One round of a server."""
    server = SERVERS[key]
    body = body_of(server)
    found: dict[str, Any] = {}
    with running(key, export, args.cores) as (group, port, ready):
        url = f"http://127.0.0.1:{port}{server.path}"
        wrk(url, body, 16, 1, folder)
        for connections in CONNECTIONS:
            before = cpu_secs(group)
            one = wrk(url, body, connections, args.secs, folder)
            spent = (cpu_secs(group) - before) * 1e6 / (one["requests"] * args.secs)
            found |= {f"{name}_{connections}": value for name, value in one.items()} | {f"cpu_{connections}": spent}
        if key == "ours":
            found |= at_fixed_rate(url, body, int(found["requests_16"] / 2), args.secs, folder)
        found |= {"ready": ready, "memory": memory_mb(group)}
    return found


def measure_large(export: str, args: argparse.Namespace, folder: str) -> dict[str, float]:
    """Instances per second in requests of 1,024, over onnxruntime alone with the same rows."""
    import numpy as np

    from benchmarks.peers.serving_model import HandwrittenModel

    rows = instances(LARGE)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    model = HandwrittenModel(export)
    arrays = {
        tensor: np.asarray(columns[name], dtype).reshape(-1, *shape[1:])
        for name, (tensor, dtype, shape) in model.inputs.items()
    }
    tensors = list(model.outputs.values())
    ratios, speeds = [], []
    with running("ours", export, 1) as (_, port, _):
        url = f"http://127.0.0.1:{port}{SERVERS['ours'].path}"
        body = json.dumps({"inputs": columns})
        for _ in range(args.rounds):
            served = wrk(url, body, 4, args.secs, folder)["requests"] * LARGE
            alone = calls_per_sec(lambda: model.session.run(tensors, arrays), args.secs) * LARGE
            speeds.append(served)
            ratios.append(served / alone)
    return {"instances": statistics.median(speeds), "ratio": statistics.median(ratios)}


def measure_grpc(export: str, args: argparse.Namespace, folder: str) -> dict[str, float]:
    """Requests per second over gRPC in two protocols, one instance each, 16 connections; and the one over the other."""
    import grpc

    (port,) = free_ports(1)
    speeds: dict[str, list[float]] = {"tensorflow": [], "inference": []}
    with running("ours", export, 1, "--tf-serving-grpc-port", str(port)):
        files = {}
        for path, content in grpc_requests(export, "census", instances(1)).items():
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                # An error has an HTTP status of 200, so that h2load would not notice.
                channel.unary_unary(path)(content, timeout=30)
            files[path] = Path(folder) / f"{path[1:].replace('/', '.')}.message"
            files[path].write_bytes(struct.pack(">?I", False, len(content)) + content)
        for _ in range(args.rounds):
            for path, file in files.items():
                command = ["h2load", "-c16", "-m1", "-t1", f"-D{args.secs}", "--warm-up-time=1", f"-d{file}"]
                command += ["-Hcontent-type: application/grpc", "-Hte: trailers", f"http://127.0.0.1:{port}{path}"]
                text = subprocess.run(
                    ["taskset", "-c", "1", *command], check=True, capture_output=True, text=True
                ).stdout
                (requests,) = re.findall(r"finished in .*, ([\d.]+) req/s", text)
                speeds[path[1:].partition(".")[0]].append(float(requests))
    ratios = [one / other for one, other in zip(speeds["tensorflow"], speeds["inference"], strict=True)]
    found = {f"grpc_{name}": statistics.median(values) for name, values in speeds.items()}
    return {**found, "grpc_ratio": statistics.median(ratios)}


def calls_per_sec(call: Callable[[], object], secs: float) -> float:
    """How often a function can be called in a second, on core 0 alone."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    try:
        call()
        began, count = time.perf_counter(), 0
        while time.perf_counter() < began + secs:
            call()
            count += 1
        return count / (time.perf_counter() - began)
    finally:
        os.sched_setaffinity(0, cores)


def measure_from_zero(export: str) -> dict[str, float]:
    """Seconds until the first request is answered where no node runs, and MB that the parent held before it."""
    (port,) = free_ports(1)
    command = [*SERVERS["ours"].command("ours", export, port), "--min-nodes", "0", "--max-nodes", "1"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SideError(f"it did not start: {' '.join(command)}")
            time.sleep(1)
            memory, began = memory_mb(process.pid), time.perf_counter()
            if not answers(SERVERS["ours"], port):
                raise SideError("the first request to a server without nodes was not answered")
            return {"from_zero": time.perf_counter() - began, "idle_memory": memory}
        finally:
            process.terminate()


def measure_batch(args: argparse.Namespace, folder: str) -> dict[str, float]:
    """Rows per second of `estimator predict-batch`, whole command, over those of `Estimator.predict`, by processes."""
    import torch_estimator as te

    rows = Path(folder) / "rows.parquet"
    write_parquet(args.data / TRAIN_FILE, rows, args.batch_rows)
    export = make_export(args.data, folder)
    estimator, _ = make_estimator(folder)
    speeds: dict[int, list[float]] = {0: [], 1: [], 2: []}

    def predict() -> None:
        for _ in estimator.predict(lambda: te.data.Dataset.from_parquet(str(rows)).batch(512)):
            pass

    def predict_batch(workers: int) -> None:
        memory = Path("/dev/shm")
        with TemporaryDirectory(dir=memory if memory.is_dir() else None) as output:
            command = [sys.executable, "-m", "torch_estimator.cli", "predict-batch", "--model", export]
            command += ["--input", str(rows), "--output", f"{output}/predictions", "--workers", str(workers)]
            environ = {**os.environ, "PYTHONPATH": str(ROOT)}
            subprocess.run(command, cwd=ROOT, env=environ, check=True, capture_output=True)

    for _ in range(args.rounds):
        for workers, run in ((0, predict), (1, partial(predict_batch, 1)), (2, partial(predict_batch, 2))):
            began = time.perf_counter()
            run()
            speeds[workers].append(args.batch_rows / (time.perf_counter() - began))
    found = {"predict": statistics.median(speeds[0])}
    for workers in BATCH_OF_PREDICT:
        ratios = [one / other for one, other in zip(speeds[workers], speeds[0], strict=True)]
        found |= {f"rows_{workers}": statistics.median(speeds[workers]), f"ratio_{workers}": statistics.median(ratios)}
    return found


def report(measured: Measured) -> None:
    """Prints the table of all servers."""
    rows: list[list[object]] = []
    for key, server in SERVERS.items():
        if key not in measured.results:
            continue
        values = [
            measured.median(key, f"{what}_{connections}")
            for connections in CONNECTIONS
            for what in ("requests", "p50", "p99", "cpu")
        ]
        rows.append([server.name, *values, measured.median(key, "ready"), measured.median(key, "memory")])
    header = [""]
    for connections in CONNECTIONS:
        header += [f"{connections}: {what}" for what in ("req/s", "p50 ms", "p99 ms", "CPU us")]
    show("servers", "Serving the census export, one instance a request", table([*header, "ready s", "PSS MB"], rows))


def table_of(alone: Mapping[str, float]) -> Table:
    """The table of what is measured without peers."""
    names = {
        "instances": f"instances/s in requests of {LARGE}, by column",
        "ratio": "the same over onnxruntime alone",
        "grpc_tensorflow": "requests/s over gRPC at 16 connections, TensorFlow Serving's messages",
        "grpc_inference": "the same with those of Open Inference",
        "from_zero": "seconds from no node to the first answer",
        "idle_memory": "MB of the parent without nodes",
        "predict": "rows/s of Estimator.predict from Parquet",
        **{f"rows_{workers}": f"rows/s of predict-batch with {workers} processes" for workers in BATCH_OF_PREDICT},
    }
    return table(["", "measured"], [[words, alone[key]] for key, words in names.items()])


def verdicts_of(measured: Measured, alone: Mapping[str, float]) -> list[Verdict]:
    """What is promised, and whether it holds."""
    found = [
        at_least("requests/s at 16 connections", REQUESTS_AT_16, measured.median("ours", "requests_16")),
        at_least("requests/s at 1 connection", REQUESTS_AT_1, measured.median("ours", "requests_1")),
        at_most("p50 at 16 connections, ms", P50_MS, measured.median("ours", "p50_16")),
        at_most("p99 at 16 connections, ms", P99_MS, measured.median("ours", "p99_16")),
        at_most("p99 at half of that rate, fixed, ms", P99_MS, measured.median("ours", "fixed_p99")),
        at_least(f"instances/s in requests of {LARGE}, over onnxruntime alone", OF_ONNXRUNTIME, alone.get("ratio")),
        at_least(
            "requests/s of TensorFlow Serving's gRPC over Open Inference's", OF_OPEN_INFERENCE, alone.get("grpc_ratio")
        ),
        at_most("seconds from the start to the first answer", READY_SECS, measured.median("ours", "ready")),
        at_most("memory, MB", MEMORY_MB, measured.median("ours", "memory")),
        at_most("seconds from no node to the first answer", FROM_ZERO_SECS, alone.get("from_zero")),
        at_most("memory of the parent without nodes, MB", IDLE_MB, alone.get("idle_memory")),
        *(
            at_least(
                f"rows/s of predict-batch with {workers} over Estimator.predict",
                least,
                alone.get(f"ratio_{workers}"),
            )
            for workers, least in BATCH_OF_PREDICT.items()
        ),
    ]
    for key, ratio in OVER_PEERS.items():
        if key in measured.results:
            what = f"requests/s at 16 connections over {SERVERS[key].name}"
            found.append(at_least(what, ratio, measured.ratio("requests_16", over="ours", under=key)))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables and the verdicts; gives the exit status."""
    args = parse(arguments)
    peers = []
    for key in args.peers:
        name = SERVERS[key].environment
        if name is not None and args.quick and not environment.is_installed(name):
            print(f"{SERVERS[key].name} is left out: its environment is not installed.", file=sys.stderr)
        else:
            peers.append(key)
    with TemporaryDirectory() as folder:
        export = args.export or make_export(args.data, folder)
        sides = {key: partial(measure, key, export, args, folder) for key in ("ours", *peers)}
        measured = alternate(sides, args.rounds, "serving")
        alone = {}
        if "ours" in measured.results:
            alone = measure_large(export, args, folder) | measure_grpc(export, args, folder)
            alone |= measure_from_zero(export) | measure_batch(args, folder)
    report(measured)
    if alone:
        show("alone", "Our server and predict-batch alone", table_of(alone))
    show_machine()
    return conclude(verdicts_of(measured, alone), failed=list(measured.failures), quick=args.quick)


if __name__ == "__main__":
    sys.exit(main())
