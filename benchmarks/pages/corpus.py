"""A corpus as users have after a year: directories of runs with event files, and of jobs with logs of their roles.

    FOLDER/runs/run-0000/    a model directory; those of the last runs are of jobs
    FOLDER/jobs/job-000/     a job directory
    FOLDER/complete          how large it is, written last

All files are written by the package's own classes, but for logs, of which one is written and the others vary its dates.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pages import curves, timelines
from torch_estimator import files
from torch_estimator.checkpoint.index import INDEX_NAME
from torch_estimator.executors.evaluation_record import NAME as EVALUATOR_FILE
from torch_estimator.executors.evaluation_record import EvaluatorState, SpecRecord
from torch_estimator.jobs.directory import FINAL, JobDirectory, JobEvent, JobSpec, State
from torch_estimator.runs.state_file import StateFile, encoded
from torch_estimator.runs.training_status import TrainingStatus, write_status
from torch_estimator.summary.event_writer import EventWriter

ROLES = ("chief-0", "worker-0", "worker-1", "worker-2", "ps-0", "ps-1", "ps-2", "evaluator-0")
RESTARTS = (("worker-1", 600.0), ("ps-0", 1200.0))
"""Roles that are killed once, and after how many seconds."""

LAST_STEP = curves.POINTS * curves.STEPS_BETWEEN_POINTS
_RUN_SECS = curves.POINTS * curves.SECS_BETWEEN_POINTS
# Goes up when the corpus changes, so that one of before is not taken for it.
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Corpus:
    """Where the corpus is, and how large."""

    folder: Path
    runs: int
    jobs: int
    lines: int

    @property
    def logdir(self) -> Path:
        """The directory of the runs."""
        return self.folder / "runs"

    @property
    def jobs_dir(self) -> Path:
        """The directory of the jobs."""
        return self.folder / "jobs"

    def run(self, job: int) -> int:
        """The run of a job."""
        return self.runs - self.jobs + job

    def model_dir(self, job: int) -> Path:
        """The model directory of a job."""
        return self.logdir / curves.run_name(self.run(job))

    def job_name(self, job: int) -> str:
        """The name of a job."""
        return f"job-{job:03}"


def ready_corpus(folder: Path, *, quick: bool) -> Corpus:
    """Return the corpus in a folder, which is written where it is missing: 1,000 runs and 100 jobs, or a tenth."""
    part = 10 if quick else 1
    corpus = Corpus(folder / ("quick" if quick else "full"), 1000 // part, 100 // part, 10_000 // part)
    mark = corpus.folder / "complete"
    wanted = f"version {_VERSION}: {corpus.runs} runs, {corpus.jobs} jobs, {corpus.lines} lines\n"
    if not mark.is_file() or mark.read_text() != wanted:
        mark.unlink(missing_ok=True)
        for folder in (corpus.logdir, corpus.jobs_dir):
            shutil.rmtree(folder, ignore_errors=True)
        corpus.jobs_dir.mkdir(parents=True)
        for run in range(corpus.runs):
            write_run(corpus.logdir / curves.run_name(run), run)
        logs = logs_of(corpus.lines)
        for job in range(corpus.jobs):
            write_job(corpus, job, logs)
        mark.write_text(wanted)
    return corpus


def write_run(directory: Path, run: int) -> None:
    """Write the event file of a run."""
    began = curves.began(run)
    times = iter(range(began, began + _RUN_SECS + 60, curves.SECS_BETWEEN_POINTS))
    with EventWriter(directory, clock=lambda: float(next(times))) as writer:
        for point, row in enumerate(curves.values(run).tolist(), 1):
            writer.scalars(dict(zip(curves.TAGS, row, strict=True)), point * curves.STEPS_BETWEEN_POINTS)


def write_job(corpus: Corpus, job: int, logs: dict[str, bytes]) -> None:
    """Write the directories of a job and what it left in its model directory."""
    state = state_of(job)
    run = corpus.run(job)
    began = curves.began(run)
    write_job_directory(corpus, corpus.job_name(job), corpus.model_dir(job), began, state, logs)
    _write_model_dir(corpus.model_dir(job), run, state)
    timelines.write(corpus.model_dir(job), ROLES, RESTARTS, began, _RUN_SECS, has_ended=state in FINAL)


def write_job_directory(
    corpus: Corpus, name: str, model_dir: Path, began: float, state: State, logs: dict[str, bytes]
) -> JobDirectory:
    """Write the directory of a job."""
    directory = JobDirectory(str(corpus.jobs_dir), name)
    directory.make()
    directory.write(
        JobSpec(
            name=name,
            created=began - 5.0,
            target="local",
            module_name="trainer.task",
            folder="/home/user/project",
            arguments=[f"--{key}={value:g}" for key, value in curves.parameters(int(began)).items()],
            job_dir=str(model_dir),
            tier="CUSTOM",
            is_cluster=True,
            worker_count=3,
            parameter_server_count=3,
            evaluator=True,
            settings={"kind": "local"},
            labels={"team": f"team-{int(began) % 7}"},
        )
    )
    for number, event in enumerate(_events(began, state), 1):
        Path(directory.url, "events", f"{number:08}.json").write_bytes(encoded(event))
    date = time.strftime("%Y-%m-%d", time.gmtime(began)).encode()
    for role, lines in logs.items():
        Path(directory.logs, f"{role}.log").write_bytes(lines.replace(b"DDDD-DD-DD", date))
    return directory


def state_of(job: int) -> State:
    """The state of a job. One in ten runs, the newest among them; of the others most have succeeded."""
    if job % 10 == 9:
        return "RUNNING"
    return {0: "FAILED", 5: "CANCELLED"}.get(job % 10, "SUCCEEDED")  # type: ignore[return-value]


def _events(began: float, state: State) -> list[JobEvent]:
    """Return what happened to a job: its start, restarts of two roles, its end."""
    elsewhere = {"pid": 4711, "host": "node-7", "place": "0-kernel 0-namespace"}
    events = [
        JobEvent(kind="submitted", time=began - 5, state="QUEUED"),
        JobEvent(kind="launched", time=began - 4, state="PREPARING", **elsewhere),  # type: ignore[arg-type]
        *(JobEvent(kind="started", time=began - 2, state="RUNNING", role=role, pid=5000) for role in ROLES),
        *(
            JobEvent(kind="restarted", time=began + after, role=role, status=-9, reason="it was killed by signal 9.")
            for role, after in RESTARTS
        ),
    ]
    if state in FINAL:
        reason = {"FAILED": "worker-1 ended with status 2.", "CANCELLED": "it was cancelled."}.get(state, "")
        events.append(JobEvent(kind="ended", time=began + _RUN_SECS, state=state, reason=reason))
    return events


def _write_model_dir(model_dir: Path, run: int, state: State) -> None:
    """Write the files of a training beside its summaries."""
    began = curves.began(run)
    over = began + _RUN_SECS if state == "SUCCEEDED" else None
    last = LAST_STEP if over else LAST_STEP // 2
    status = TrainingStatus(
        run=f"{run:016x}",
        max_steps=LAST_STEP,
        began=began,
        over_at=over,
        ended=over is not None,
        failed=state == "FAILED",
    )
    write_status(str(model_dir), status)
    (model_dir / INDEX_NAME).write_bytes(encoded({"model_checkpoint_path": f"model.ckpt-{last}"}))
    metrics = dict(zip(curves.TAGS[1:4], curves.values(run)[-1, 1:4].tolist(), strict=True))
    record = SpecRecord(last, f"model.ckpt-{last}", metrics, 100, over is not None, [])
    evaluated = EvaluatorState(evaluator=f"{run:016x}", finished=status.run if over else None, specs={"": record})
    StateFile(files.join(str(model_dir), EVALUATOR_FILE), EvaluatorState).write(evaluated)


def logs_of(lines: int) -> dict[str, bytes]:
    """Return logs, by role, whose lines have ``DDDD-DD-DD`` for a date, from midnight on, over the time of a run."""
    return {role: _log(role, lines) for role in ROLES}


def _log(role: str, lines: int) -> bytes:
    written = []
    for line in range(lines):
        ms = int(line / lines * _RUN_SECS * 1000)
        clock = f"{ms // 3600000:02}:{ms // 60000 % 60:02}:{ms // 1000 % 60:02}.{ms % 1000:03}+0000"
        words = f"INFO:torch_estimator:step {line}, loss {1000 / (line + 10):.4f}, {role} at work on its part"
        written.append(f"DDDD-DD-DDT{clock} {words}\n")
    return "".join(written).encode()
