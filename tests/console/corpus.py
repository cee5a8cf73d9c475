"""Jobs and runs on disk, as programs and launchers leave them, without running any."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch_estimator import files
from torch_estimator.activity.timeline import FOLDER, HEAD_BYTES, Change, Spent
from torch_estimator.jobs.directory import JobDirectory, JobEvent, JobSpec
from torch_estimator.log import time_text
from torch_estimator.runs.locks import Holder
from torch_estimator.runs.state_file import encoded
from torch_estimator.summary.event_writer import EventWriter


class Corpus:
    """A directory of jobs, and their output beside it, all as of a time `now`."""

    def __init__(self, base: Path, now: float) -> None:
        self.base, self.now = base, now
        self.jobs = base / "jobs"
        self.jobs.mkdir(parents=True, exist_ok=True)

    def output(self, name: str) -> Path:
        return self.base / "output" / name

    def job(
        self,
        name: str,
        *,
        ago: float = 3600.0,
        events: Sequence[dict[str, Any]] = (),
        **spec: Any,
    ) -> JobDirectory:
        """Write a job that was submitted so many seconds ago; the times of its events are seconds after that."""
        job = JobDirectory(str(self.jobs), name)
        # Without a sync of each file, which a busy disk makes slow.
        for folder in ("events", "logs"):
            Path(job.url, folder).mkdir(parents=True, exist_ok=True)
        began = self.now - ago
        asked: dict[str, Any] = {
            "name": name,
            "created": began,
            "target": "local",
            "module_name": "trainer.task",
            "folder": str(self.base),
            "job_dir": str(self.output(name)),
            "settings": {"kind": "local"},
            **spec,
        }
        Path(job.url, "job.json").write_bytes(encoded(JobSpec(**asked)))
        for number, event in enumerate(events, 1):
            content = JobEvent(**{**event, "time": began + event["time"]})
            Path(job.url, "events", f"{number:08}.json").write_bytes(encoded(content))
        os.utime(job.url, (began, began))
        return job

    def launched(self, at: float = 0.0) -> dict[str, Any]:
        """The event of a launcher that lives: this process."""
        here = Holder.this_process()
        return {
            "kind": "launched",
            "time": at,
            "state": "PREPARING",
            "pid": here.pid,
            "host": here.host,
            "place": here.place,
        }

    def log(self, job: JobDirectory, role: str, lines: Sequence[tuple[float, str]]) -> None:
        """Append lines to the log of a role, each with its time."""
        with open(files.join(job.logs, f"{role}.log"), "ab") as file:
            file.writelines(f"{time_text(time)} {text}\n".encode(errors="surrogatepass") for time, text in lines)

    def curves(
        self,
        folder: Path,
        curves: dict[str, Callable[[int], float]],
        *,
        steps: Sequence[int],
        began: float,
        secs_per_step: float,
        resumed_at: int | None = None,
    ) -> None:
        """Write an event file in which all curves have a point at each step."""
        now = began

        def clock() -> float:
            return now

        with EventWriter(folder, clock=clock) as writer:
            if resumed_at is not None:
                writer.session_start(resumed_at)
            for step in steps:
                now = began + (step - steps[0]) * secs_per_step
                writer.scalars({tag: curve(step) for tag, curve in curves.items()}, step)

    def timeline(
        self, name: str, role: str, pid: int, changes: Sequence[Change], spent: Sequence[Spent], host: str = "node-1"
    ) -> None:
        """Write what a process of a role noted."""
        folder = self.output(name) / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        began = changes[0].time
        head = {"role": role, "pid": pid, "host": host, "began": began, "spent": asdict(spent[-1])}
        lines = [json.dumps(head).ljust(HEAD_BYTES - 1)]
        lines += [json.dumps(_set(asdict(one))) for one in (*changes, *spent[:-1])]
        (folder / f"{role}.{began * 1000:.0f}-{pid}.jsonl").write_text("\n".join(lines) + "\n")

    def checkpoints(self, name: str, saved: dict[int, float], max_steps: int | None = None) -> None:
        """Write the index of checkpoints, and the status of the training."""
        folder = self.output(name)
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"model.ckpt-{step}" for step in saved]
        index = {
            "model_checkpoint_path": names[-1],
            "all_model_checkpoint_paths": names,
            "all_model_checkpoint_timestamps": list(saved.values()),
        }
        (folder / "checkpoint").write_text(json.dumps(index))
        if max_steps is not None:
            (folder / "training.json").write_text(json.dumps({"run": "x", "max_steps": max_steps}))


def _set(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if value not in ("", (), None, False)}


def write_census(corpus: Corpus, name: str = "census_7", *, is_running: bool = True) -> JobDirectory:
    """Write a job with a chief, two workers, a server and an evaluator, of which one worker was killed."""
    choice = random.Random(7)
    ago, rate, total = 2400.0, 4.0, 12_000
    began = corpus.now - ago
    killed_at, back_after = 1100.0, 21.0
    events: list[dict[str, Any]] = [
        {"kind": "submitted", "time": 0.0, "state": "QUEUED"},
        corpus.launched(0.5),
    ]
    roles = ["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"]
    for place, role in enumerate(roles):
        events.append(
            {"kind": "started", "time": 1.0 + place / 10, "state": "RUNNING", "role": role, "pid": 100 + place}
        )
    events.append({"kind": "exited", "time": killed_at, "role": "worker-1", "pid": 102, "status": -9})
    events.append({"kind": "restarted", "time": killed_at + 1, "state": "RUNNING", "role": "worker-1", "pid": 202})
    if not is_running:
        events.append({"kind": "ended", "time": ago, "state": "SUCCEEDED", "status": 0})
    job = corpus.job(
        name,
        ago=ago,
        events=events,
        tier="STANDARD_1",
        is_cluster=True,
        worker_count=2,
        parameter_server_count=1,
        evaluator=True,
        arguments=[
            "--train-steps",
            str(total),
            "--learning-rate=0.05",
            "--api-token",
            "s3cret",
            "--hidden-units",
            "128,64",
        ],
        labels={"team": "growth"},
    )
    now = corpus.now
    for place, role in enumerate(roles[:3]):
        changes = [Change(time=began + 2, state="starting"), Change(time=began + 9, state="compiling", step=0)]
        changes.append(Change(time=began + 31, state="training", step=0))
        spent: list[Spent] = []
        saves = [began + 31 + 300 * count for count in range(1, 8)] if place == 0 else []
        waits = [(began + 500 + 37 * place, 14.0, ("ps-0",)), (began + 1700 + 10 * place, 6.0, ("input",))]
        if place != 2:
            waits.append((began + killed_at + 2, back_after - 3, ("worker-1",)))
        parts = [(at, 3.0, "saving", ()) for at in saves] + [(at, secs, "waiting", names) for at, secs, names in waits]
        for at, secs, state, names in sorted(parts):
            step = int((at - began - 31) * rate)
            changes.append(Change(time=at, state=state, waits_for=names, step=step))
            changes.append(Change(time=at + secs, state="training", step=step))
        for at in range(40, int(ago), 60):
            done = at - 31
            spent.append(
                Spent(
                    time=began + at,
                    step=int(done * rate),
                    computing=0.68 * done,
                    input=0.04 * done,
                    servers=0.2 * done,
                    others=0.05 * done,
                    saving=0.03 * done,
                    starting=29,
                )
            )
        if place == 2:
            before = [one for one in changes if one.time < began + killed_at]
            last = Spent(**{**asdict(spent[17]), "time": began + killed_at - 0.4, "step": int((killed_at - 31) * rate)})
            corpus.timeline(name, role, 102, before, [*(one for one in spent if one.time < began + killed_at), last])
            again = began + killed_at + 1
            changes = [
                Change(time=again, state="starting"),
                Change(time=began + killed_at + back_after, state="training", step=int((killed_at - 31) * rate) - 60),
                *(one for one in changes if one.time > began + killed_at + back_after),
            ]
            spent = [one for one in spent if one.time > again]
        last = Spent(**{**asdict(spent[-1]), "time": now})
        corpus.timeline(name, role, 202 if place == 2 else 100 + place, changes, [*spent, last])
    corpus.timeline(
        name,
        "ps-0",
        103,
        [Change(time=began + 2, state="starting"), Change(time=began + 6, state="serving")],
        [Spent(time=now)],
    )
    evaluations = [began + 40 + 300 * count for count in range(1, 8)]
    changes = [
        Change(time=began + 3, state="starting"),
        Change(time=began + 8, state="waiting", waits_for=("chief-0",)),
    ]
    for count, at in enumerate(evaluations):
        step = int(300 * (count + 1) * rate)
        changes.append(Change(time=at, state="evaluating", step=step))
        if count % 3 == 2:
            changes.append(Change(time=at + 30, state="exporting", step=step))
        changes.append(Change(time=at + 42, state="waiting", waits_for=("chief-0",), step=step))
    corpus.timeline(name, "evaluator-0", 104, changes, [Spent(time=now)])
    output = corpus.output(name)
    steps = range(0, int((ago - 31) * rate), 20)
    corpus.curves(
        output,
        {
            "loss": lambda step: 0.28 + 0.4 * math.exp(-step / 1500) + choice.gauss(0, 0.02),
            "global_step/sec": lambda step: 4 + choice.gauss(0, 0.15) - (1.8 if 4250 < step < 4420 else 0),
            "learning_rate": lambda step: 0.05 * (1 - step / total),
            "gradient_norm": lambda step: 1.2 + math.exp(-step / 800) + abs(choice.gauss(0, 0.2)),
        },
        steps=steps,
        began=began + 31,
        secs_per_step=1 / rate,
    )
    corpus.curves(
        output / "eval",
        {
            "loss": lambda step: 0.3 + 0.36 * math.exp(-step / 1500),
            "auc": lambda step: 0.905 - 0.12 * math.exp(-step / 1800),
            "accuracy": lambda step: 0.857 - 0.07 * math.exp(-step / 1500),
        },
        steps=[int(300 * (count + 1) * rate) for count in range(7)],
        began=evaluations[0] + 42,
        secs_per_step=1 / rate,
    )
    corpus.checkpoints(name, {int(300 * count * rate): began + 34 + 300 * count for count in range(3, 8)}, total)
    for at in evaluations[2::3]:
        (output / "export" / "best" / str(int(at + 35))).mkdir(parents=True)
    for role in roles:
        lines = [(began + 2, f"INFO:torch_estimator:{role} starts.")]
        if role.startswith(("chief", "worker")):
            lines += [
                (began + 31 + step / rate, f"INFO:torch_estimator:loss = {0.3 + 300 / (step + 900):.4f}, step = {step}")
                for step in range(0, steps[-1], 100)
                if not (role == "worker-1" and killed_at < 31 + step / rate < killed_at + back_after)
            ]
        if role == "evaluator-0":
            lines += [
                (
                    at + 42,
                    f"INFO:torch_estimator:Evaluated step {int(300 * (count + 1) * rate)}: auc = 0.9, loss = 0.31",
                )
                for count, at in enumerate(evaluations)
            ]
        corpus.log(job, role, lines)
    corpus.log(
        job,
        "launcher",
        [
            (began + 0.6, "Started chief-0, worker-0, worker-1, ps-0, evaluator-0."),
            (began + killed_at, "worker-1 was killed by SIGKILL; starting it again (1 of 3 restarts)."),
        ],
    )
    return job
