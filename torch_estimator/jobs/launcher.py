"""The launcher of a job: runs all roles, writes the job's events and logs, and says how it ended.

``python -m torch_estimator.jobs.launcher JOBS/NAME`` is started by a target (`torch_estimator.jobs.targets`), where the
job runs. The rules for restarts are those of `torch_estimator.launch.job.Job`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from torch_estimator import files
from torch_estimator.activity import Records
from torch_estimator.errors import RESTART_ME, ClusterError, InvalidValueError, UserError
from torch_estimator.jobs.directory import JobDirectory, JobSpec, State, role_of
from torch_estimator.jobs.kinds import KINDS
from torch_estimator.jobs.logs import RoleLogs
from torch_estimator.jobs.package import local_package
from torch_estimator.jobs.request import SECRETS, with_secrets
from torch_estimator.jobs.targets import tasks_of
from torch_estimator.json_text import sentence
from torch_estimator.launch.job import Event, Job, Limits, describe_status
from torch_estimator.launch.layout import Program

Body = Callable[[JobDirectory, JobSpec, list[str]], tuple[int, str, bool]]
"""Function that runs a job with the values of its secret arguments: ``status, reason, was_interrupted = body(…)``.

It returns the exit status, the reason for it, and whether a signal to the launcher was the reason.
"""


class _Ended(BaseException):
    """The job was cancelled, or its launcher got SIGTERM, before a role was started."""


def run(job: JobDirectory, body: Body) -> int:
    """Run a job to its end; return its exit status."""
    spec = job.spec()
    environ = dict(os.environ)
    secrets = json.loads(os.environ.pop(SECRETS, "[]"))
    target = KINDS[spec.settings["kind"]]
    status, reason, was_requeued = 1, "", False
    try:
        with ended_by_sigterm(_Ended()):
            # Slurm passes no signal on to a batch script that it is about to start.
            if _final_state(job, status) == "CANCELLED":
                raise _Ended
            status, reason, was_interrupted = body(job, spec, secrets)
        if was_interrupted and _final_state(job, status) != "CANCELLED":
            was_requeued = target.requeue(job, spec, environ)
    except _Ended:
        status, reason = RESTART_ME, "it was ended before a role had started."
        was_requeued = target.leaves(job)
    except UserError as error:
        status, reason = error.exit_status, str(error)
    except BaseException as error:
        reason = f"its launcher failed: {type(error).__name__}: {error}"
        raise
    finally:
        if not was_requeued:
            reason = " ".join(filter(None, [reason, target.clean(job, spec)]))
            try:
                job.add("ended", _final_state(job, status), status=status, reason=reason)
            except OSError as error:
                # Not even the end can be written, so say it where the command that looks for it looks.
                why = f"the end of the job could not be written: {files.reason(error)}"
                print(f"{why}; the job ended with status {status}. {reason}".rstrip(), file=sys.stderr)
                status = status or 1
    return status


def _run_roles(job: JobDirectory, spec: JobSpec, secrets: list[str]) -> tuple[int, str, bool]:
    """Run all roles. It implements `Body`."""
    with contextlib.ExitStack() as stack:
        package = stack.enter_context(local_package(job))
        records = Records(job.activity, spec.hang_secs) if spec.hang_secs else None
        job_dir = () if spec.job_dir is None else ("--job-dir", spec.job_dir)
        program = Program(
            module_name=spec.module_name,
            package_path=str(package / spec.package),
            arguments=(*with_secrets(spec.arguments, spec.secret_arguments, secrets), *job_dir),
            interpreter=spec.interpreter,
            records=records,
        )
        stack.enter_context(_key(job, spec))
        target = KINDS[spec.settings["kind"]]
        addresses, start = stack.enter_context(target.start(job, spec, program))
        tasks = tasks_of(spec, addresses)
        logs = RoleLogs(job.logs, tasks, secrets, have_times=target.HAS_TIMES)
        stack.callback(logs.close)
        observer = _Observer(job, spec, logs)
        limits = Limits(
            max_restarts=spec.max_restarts,
            finish_secs=spec.finish_secs,
            stop_secs=spec.stop_secs,
            hang_secs=spec.hang_secs,
        )
        if spec.evaluator:
            logs.write(
                None, b"An evaluator was added, which evaluates and exports; the chief of a cluster does not.", True
            )
        stack.enter_context(ended_after(spec.max_running_secs, observer.time_is_over))
        supervisor = Job(
            *(start, tasks, limits),
            lines=logs,
            observe=observer,
            records=records,
            leaves=lambda: target.leaves(job) and not observer.is_time_over,
        )
        try:
            status = supervisor.run()
        except ClusterError as error:
            raise ClusterError(" ".join(filter(None, [str(error), observer.said]))) from error
    was_interrupted = supervisor.was_interrupted and not observer.is_time_over
    return status, "" if status == 0 else observer.reason, was_interrupted


class _Observer:
    """Turns what happens to the roles into events of the job."""

    def __init__(self, job: JobDirectory, spec: JobSpec, logs: RoleLogs) -> None:
        self.reason = ""
        self.is_time_over = False
        self._job, self._spec, self._logs = job, spec, logs
        self._started: set[str] = set()
        self.said = ""

    def __call__(self, event: Event) -> None:
        role = "" if event.task is None else role_of(event.task)
        try:
            if event.kind == "started":
                kind = "restarted" if role in self._started else "started"
                self._started.add(role)
                self._job.add(kind, "RUNNING", role=role, pid=event.pid)
            elif event.kind == "exited":
                said = self._logs.last_error.get(role, "") if event.status else ""
                self.said = f"{role} said: {said}" if said else self.said
                if event.reason:
                    said = self.said = f"{role} {event.reason}; it was ended."
                self._job.add("exited", role=role, pid=event.pid, status=event.status, reason=said)
                if event.status and not self.reason:
                    self.reason = " ".join(filter(None, [f"{role} {describe_status(event.status)}.", self.said]))
            else:
                self.reason = " ".join(filter(None, [sentence(event.reason), self.said]))
                self._job.add("ending", status=event.status, reason=self.reason)
        except OSError as error:
            # A store that does not answer is no reason to end a training.
            problem = f"an event of the job could not be written: {files.reason(error)}."
            with contextlib.suppress(OSError):
                self._logs.write(None, problem.encode(), True)

    def time_is_over(self) -> None:
        """Say why the job ends."""
        self.is_time_over = True
        self.said = f"it has run for its scheduling.maxRunningTime of {self._spec.max_running_secs:g} s."


def _final_state(job: JobDirectory, status: int) -> State:
    return "CANCELLED" if job.is_cancelled() else "FAILED" if status else "SUCCEEDED"


@contextlib.contextmanager
def ended_by_sigterm(error: BaseException) -> Iterator[None]:
    """Raise an error for a SIGTERM during the body, in the main thread. While roles run, the job handles the signal."""

    def end(number: int, frame: object) -> None:
        raise error

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def ended_after(secs: float, time_is_over: Callable[[], object]) -> Iterator[None]:
    """Have the job end after a time, as for a SIGTERM, and call a function before; 0 is no limit."""

    def end() -> None:
        time_is_over()
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(secs, end)
    timer.daemon = True
    if secs:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _key(job: JobDirectory, spec: JobSpec) -> Iterator[None]:
    """Give the roles a key for parameter servers of this job alone, unless the user has set one."""
    from torch_estimator.parameter_server.encryption import KEY_FILE, make_key_file

    if not spec.parameter_server_count or KEY_FILE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(files.as_url(job.key)) if job.is_local else Path(folder) / "key"
        if not path.exists():
            make_key_file(str(path))
        os.environ[KEY_FILE] = str(path)
        try:
            yield
        finally:
            del os.environ[KEY_FILE]


def main(arguments: list[str], body: Body = _run_roles) -> int:
    """Run the job in the directory that the command line names."""
    if len(arguments) != 1:
        raise InvalidValueError(f"the launcher takes the directory of a job, but got {arguments}.")
    # The process that starts the launcher may have an event to write first; it then closes the pipe.
    sys.stdin.read()
    url = files.as_url(arguments[0])
    return run(JobDirectory(files.parent(url), files.basename(url)), body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
