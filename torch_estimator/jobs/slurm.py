"""Jobs on Slurm: one allocation, whose batch script is the launcher, and in which each process of a role is a step.

Before the time limit Slurm sends SIGTERM to the launcher, which has all roles save and submits the job again, to run
after the end of this allocation. After ``scontrol requeue`` Slurm would hold it for two minutes, and nobody would be
left who could shorten that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_estimator import files
from torch_estimator.cluster.task import Task
from torch_estimator.errors import RESTART_ME, ClusterError, InvalidValueError, UserError
from torch_estimator.jobs.directory import JobDirectory, JobEvent, JobSpec, role_of
from torch_estimator.jobs.targets import Target, check_runs, layout_of, machines_of, settings_of
from torch_estimator.launch.layout import Program
from torch_estimator.launch.lines import WriteLine
from torch_estimator.launch.process import ChildProcess, Start

_PLACE = "Slurm job "
_BATCH_SCRIPT = '#!/bin/sh\nexec "$@"\n'
_LOOK = 'cd "$0" && cd "$1" && command -v "$2" >/dev/null'
# At the end of a process by a signal Slurm drops the lines that it has not yet passed on. So a shell runs the process,
# stays at SIGTERM, which all processes of the step get, and ends with the process, with the status of a shell.
_RUN = """\
trap : TERM
exec 3>&2 2>/dev/null
"$@" 2>&3 3>&- &
while :; do
    wait $!
    status=$?
    kill -0 $! || exit $status
done
"""
# What Slurm says of an end. The reason for it is what the role has said before.
_SAYS_THE_END = re.compile(rb"srun: error: \S+: task 0: |slurmstepd\S* error: \*\*\* STEP ")
# Each job has its own range of ports, in which the roles are numbered.
_FIRST_PORT, _RANGES, _PORTS = 12_000, 200, 100
# Status of srun where a signal ended the process, less the signal's number.
_SIGNALLED = 128
_RETRY_SECS = 0.2
_NO_SUCH_JOB = "Invalid job id"
_ENDED = re.compile("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|TIMEOUT")
_SCANCEL_SECS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a target of this kind has in ``estimator.toml``. `options` are further ones of sbatch, which win."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    nodes: int = 0
    options: list[str] = dataclasses.field(default_factory=list)


class Slurm(Target):
    """A Slurm cluster, whose commands this machine has."""

    SETTINGS = tuple(one.name for one in dataclasses.fields(Settings))

    def check(self, spec: JobSpec, url: str, package: Path | None = None) -> None:
        """Raise a UserError if Slurm says that it could never run the job."""
        if not files.is_local(url):
            raise InvalidValueError(f"on Slurm, --jobs must be a path that all nodes see, but got {url!r}.")
        _ask(_sbatch(spec, url, "--test-only"), _BATCH_SCRIPT)

    def submit(self, job: JobDirectory, spec: JobSpec, environ: Mapping[str, str], *options: str) -> None:
        # Slurm would let others read a file that it makes.
        os.close(os.open(_output(job.url), os.O_WRONLY | os.O_CREAT, 0o600))
        # It is held until the event is written, so that the launcher's own events come later.
        said = _ask(_sbatch(spec, job.url, "--parsable", "--hold", *options), _BATCH_SCRIPT, environ)
        number = said.partition(";")[0]
        job.add("launched", "QUEUED", place=f"{_PLACE}{number}")
        _ask(["scontrol", "release", number])

    def plan(self, spec: JobSpec, url: str, package: Path) -> str:
        return shlex.join(_sbatch(spec, url))

    def check_cancel(self, job: JobDirectory, launched: JobEvent) -> None:
        about = _ask(["scontrol", "show", "job", _number(launched)])
        output = next((line for line in map(str.strip, about.splitlines()) if line.startswith("StdOut=")), "")
        check_runs(files.parent(files.parent(output.removeprefix("StdOut=").replace("%%", "%"))), job)

    def cancel(self, job: JobDirectory, launched: JobEvent) -> None:
        """Cancel a job that waits. Send SIGTERM to the launcher of one that runs; the launcher then ends the roles."""
        _ask(["scancel", "--state=PENDING", _number(launched)])
        with contextlib.suppress(ClusterError):
            _ask(["scancel", "--batch", "--signal=TERM", _number(launched)])

    def ended(self, job: JobDirectory, launched: JobEvent) -> str | None:
        """Return that Slurm has no such job any more; None where it has, or cannot be asked."""
        state = ""
        try:
            state = _ask(["squeue", "--noheader", "--states=all", "--format=%T", "--jobs", _number(launched)])
        except UserError as error:
            # Slurm forgets a job five minutes after its end.
            if _NO_SUCH_JOB not in str(error):
                return None
        if state and not _ENDED.fullmatch(state):
            return None
        return (
            f"{launched.place} has ended{f' as {state}' if state else ''}, but its launcher has not said so: it was "
            "killed, or the node did not see the directory of the job or the interpreter; logs/launcher.stderr may tell"
        )

    def requeue(self, job: JobDirectory, spec: JobSpec, environ: Mapping[str, str]) -> bool:
        """Submit the job again, unless its allocation was cancelled."""
        number = os.environ["SLURM_JOB_ID"]
        if not _goes_on(number):
            job.add("cancelling", "CANCELLING", reason=f"{_PLACE}{number} was cancelled.")
            return False
        job.add("requeued", "QUEUED", reason=f"{_PLACE}{number} was about to reach its time limit.")
        # Slurm's own variables describe this allocation.
        kept = {key: value for key, value in environ.items() if key == "SLURM_CONF" or not key.startswith("SLURM_")}
        self.submit(job, spec, kept, f"--dependency=afterany:{number}")
        return True

    @contextlib.contextmanager
    def start(self, job: JobDirectory, spec: JobSpec, program: Program) -> Iterator[tuple[list[str], Start]]:
        """Find the nodes of this allocation, which has a task for each role, and see that they have what is needed."""
        number = int(os.environ["SLURM_JOB_ID"])
        names = _ask(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]).split()
        counts = _counts(os.environ["SLURM_TASKS_PER_NODE"])
        nodes = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
        _check_nodes(names, (spec.folder, job.package, spec.interpreter))
        first = _FIRST_PORT + number % _RANGES * _PORTS
        addressed = len(layout_of(spec).addressed) if spec.is_cluster else 0
        addresses = [f"{node}:{port}" for port, node in enumerate(nodes[:addressed], first)]
        places = dict(zip(machines_of(spec), nodes, strict=False))
        yield addresses, functools.partial(_start, str(number), spec, program, places, itertools.count(1))


class Step(ChildProcess):
    """Process of a role as a step of an allocation. The child of the launcher is srun, which passes on its lines.

    Args:
        number: Number of the Slurm job.
        name: Name of the step, which no other step of the job has.
        command: The command line, which runs srun.
        environ: Complete environment of the command, which srun gives to the process.
        write: As for `Start`.
        on_exit: As for `Start`.
    """

    def __init__(
        self,
        number: str,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        write: WriteLine,
        on_exit: Callable[[int], None],
    ) -> None:
        self._number, self._name = number, name
        super().__init__(
            command, environ, lambda line, is_stderr: write(line, is_stderr and not _SAYS_THE_END.match(line)), on_exit
        )

    @property
    def pid(self) -> None:
        """None, since the process may be on another node."""

    def send(self, number: int) -> None:
        """Send a signal to the process. If srun got it, Slurm would kill the process at once."""
        threading.Thread(target=self._send, args=(number,), daemon=True).start()

    def _send(self, number: int) -> None:
        while self._child.process.returncode is None:
            try:
                steps = _ask(["squeue", "--noheader", "--steps", "--format=%j %i", "--jobs", self._number])
                step = dict(line.split(" ", 1) for line in steps.splitlines()).get(self._name)
                if step is not None:
                    _ask(["scancel", f"--signal={number}", step])
                else:
                    # srun still waits for the step, or has just heard of its end.
                    super().send(number)
                return
            except ClusterError as error:
                # Slurm 22.05 says this, too, where it has sent the signal to a step on some of the job's nodes.
                if _NO_SUCH_JOB in str(error):
                    return
            # Slurm may answer later.
            time.sleep(_RETRY_SECS)

    def _report(self, status: int) -> None:
        with contextlib.suppress(ClusterError):
            if status and not _goes_on(self._number):
                # scancel sends SIGTERM to the roles and to the launcher. Without its own, the launcher would start this
                # role again.
                time.sleep(_SCANCEL_SECS)
        is_signal = status > _SIGNALLED and status != RESTART_ME
        super()._report(_SIGNALLED - status if is_signal else status)


def _start(
    number: str,
    spec: JobSpec,
    program: Program,
    places: Mapping[str, str],
    counter: Iterator[int],
    task: Task,
    write: WriteLine,
    on_exit: Callable[[int], None],
) -> Step:
    role, machines = role_of(task), machines_of(spec)
    node, machine, name = places[role], machines[role], f"{role}.{next(counter)}"
    options = [f"--nodelist={node}", f"--job-name={name}", "--ntasks=1", "--nodes=1", "--export=ALL", "--mpi=none"]
    if machine.cpus:
        options += ["--exact", f"--cpus-per-task={machine.cpus}"]
    if any(one.gpus for one in machines.values()):
        # Steps that overlap would share the GPUs.
        options.append(f"--gpus-per-task={machine.gpus}" if machine.gpus else "--gres=none")
    else:
        options.append("--overlap")
    environ = program.environ(task)
    share = int(os.environ["SLURM_CPUS_ON_NODE"]) // list(places.values()).count(node)
    environ.setdefault("OMP_NUM_THREADS", str(machine.cpus or max(1, share)))
    command = ["srun", *options, "sh", "-c", _RUN, name, *program.command(task)]
    return Step(number, name, command, environ, write, on_exit)


def _goes_on(number: str) -> bool:
    """Return whether the job runs, or was ended by its time limit, and not by scancel."""
    state = _ask(["squeue", "--noheader", "--format=%T %r", "--jobs", number])
    return state.startswith("RUNNING") or "TimeLimit" in state


def _number(launched: JobEvent) -> str:
    return (launched.place or "").removeprefix(_PLACE)


def _output(url: str) -> str:
    return files.join(files.join(url, "logs"), "launcher.stderr")


def _counts(text: str) -> Iterator[int]:
    """Yield the number of tasks of each node from Slurm's short form.

    >>> list(_counts("2(x3),1"))
    [2, 2, 2, 1]
    """
    for part in text.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        yield from [int(count)] * int(times or 1)


def _check_nodes(names: Sequence[str], seen: Sequence[str]) -> None:
    """Raise a ClusterError if a node lacks one of the folders, or the interpreter."""
    options = [f"--ntasks={len(names)}", f"--nodes={len(names)}", "--ntasks-per-node=1", "--mpi=none", "--overlap"]
    done = subprocess.run(["srun", *options, "sh", "-c", _LOOK, *seen], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise ClusterError(
            f"not all nodes of the allocation have {', '.join(seen)}, which must be there under one name: "
            f"{'; '.join(done.stderr.splitlines())}."
        )


def _sbatch(spec: JobSpec, url: str, *options: str) -> list[str]:
    settings = settings_of(Settings, spec)
    named = {name: getattr(settings, name) for name in Slurm.SETTINGS if name != "options"}
    machines = machines_of(spec).values()
    cpus = max(1, *(machine.cpus for machine in machines))
    gpus = max(machine.gpus for machine in machines)
    memory = max(machine.memory_bytes for machine in machines)
    return [
        "sbatch",
        *options,
        f"--job-name={spec.name}",
        f"--ntasks={len(machines)}",
        f"--cpus-per-task={cpus}",
        *([f"--gpus-per-task={gpus}"] if gpus else []),
        *([f"--mem-per-cpu={-(-memory // (cpus * 2**20))}M"] if memory else []),
        # Slurm would start the job again beside the one that the launcher has submitted.
        "--no-requeue",
        "--signal=B:TERM@90",
        "--export=ALL",
        f"--chdir={spec.folder}",
        "--open-mode=append",
        # Slurm replaces what follows a %.
        f"--output={_output(url).replace('%', '%%')}",
        *(f"--{name}={value}" for name, value in named.items() if value),
        *settings.options,
        # A constant script, which is told what to run: no text of the user is in it.
        "/dev/stdin",
        *(spec.interpreter, "-P", "-m", spec.launcher, url),
    ]


def _ask(command: Sequence[str], script: str = "", environ: Mapping[str, str] | None = None) -> str:
    """Run a command of Slurm; return what it printed."""
    try:
        done = subprocess.run(command, input=script, env=environ, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise InvalidValueError(
            f"there is no Slurm here: {command[0]} was not found; use a machine that has Slurm's commands."
        ) from error
    if done.returncode:
        said = "; ".join(re.sub(r"^\w+: error: ", "", line) for line in done.stderr.splitlines())
        raise ClusterError(f"Slurm's {command[0]} says: {said.rstrip('.')}.")
    return done.stdout.strip()
