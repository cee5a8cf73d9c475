"""The places in which a storm submits jobs: this machine, and Slurm, Ray and Kubernetes that are started on it."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.fake_kubernetes import fake_kubernetes
from scripts.storms.common import ROOT, StormError

# Ends with its stdin, and so with the process that starts it.
_RAY = """
import sys, ray
print(ray.init(num_cpus={cpus}, object_store_memory=80 * 2**20).address_info["address"], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Place:
    """Where jobs run: with `environ`, and ``--on storm``, which `table` has in ``estimator.toml``.

    `left` returns what the place itself has of jobs that have ended: allocations, actors.
    """

    table: str
    environ: Mapping[str, str] = field(default_factory=dict)
    left: Callable[[], list[str]] = list


@contextlib.contextmanager
def local() -> Iterator[Place]:
    """Jobs on this machine."""
    yield Place('[targets.storm]\nkind = "local"\n')


@contextlib.contextmanager
def slurm() -> Iterator[Place]:
    """Jobs on a Slurm of four nodes."""
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, slurm_cluster(Path(folder) / "cluster") as cluster:
        environ = {"PATH": f"{cluster}/bin{os.pathsep}{os.environ['PATH']}"}

        def left() -> list[str]:
            queue = subprocess.check_output([cluster / "bin/squeue", "--noheader", "--format=%i %j %T"], text=True)
            return [f"Slurm job {line}" for line in queue.splitlines()]

        yield Place('[targets.storm]\nkind = "slurm"\nnodes = 4\n', environ, left)


@contextlib.contextmanager
def ray() -> Iterator[Place]:
    """Jobs on a Ray cluster of one node."""
    # For its first driver Ray starts a process for each CPU beforehand, and for eight roles eight would be too many.
    with ray_cluster(cpus=2) as environ:
        yield Place('[targets.storm]\nkind = "ray"\ncpus = 0.2\n', environ, actors)


@contextlib.contextmanager
def kubernetes() -> Iterator[Place]:
    """Jobs on a fake Kubernetes, whose pods see all files of this machine."""
    with tempfile.TemporaryDirectory(prefix="kubernetes") as folder, fake_kubernetes(Path(folder)) as fake:
        table = '[targets.storm]\nkind = "kubernetes"\nimage = "storm"\nclaim = "jobs"\nmount = "/"\ncpus = 0.2\n'
        yield Place(table, {"KUBECONFIG": str(fake.kubeconfig)}, lambda: [f"pod {name}" for name in fake.pods()])


PLACES = {"local": local, "slurm": slurm, "ray": ray, "kubernetes": kubernetes}


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[Path]:
    """Start a Slurm of four nodes; yield the folder with its commands. Raise a StormError that says why it cannot."""
    command = [str(ROOT / "scripts" / "slurm-cluster"), "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None and started.stderr is not None
        if "4 nodes are idle" not in started.stdout.readline():
            raise StormError(started.stderr.read().strip())
        try:
            yield folder
        finally:
            started.terminate()
    assert not folder.exists()


@contextlib.contextmanager
def ray_cluster(*, cpus: int) -> Iterator[dict[str, str]]:
    """Start a Ray cluster; yield the environment of those who use it."""
    # Paths of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        environ = {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        with subprocess.Popen(
            [sys.executable, "-c", _RAY.format(cpus=cpus)],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise StormError("Ray did not start; is it installed (pip install -c constraints.txt -e '.[ray]')?")
            yield {**environ, "RAY_ADDRESS": address}


def actors() -> list[str]:
    """Return the processes in which the Ray cluster of this environment runs an actor of a role."""
    mine = f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes come and go.
        with contextlib.suppress(OSError):
            is_actor = (folder / "cmdline").read_bytes().startswith(b"ray::Role")
            if is_actor and mine in (folder / "environ").read_bytes().split(b"\0"):
                found.append(f"actor {folder.name}")
    return found
