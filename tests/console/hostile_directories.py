"""Directories of jobs and runs in which every field is hostile text, and every file may be damaged."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from torch_estimator.jobs.directory import JobDirectory, JobEvent, JobSpec
from torch_estimator.runs.state_file import encoded
from torch_estimator.summary.event_writer import EventWriter
from torch_estimator.tfrecord.records import masked_crc32c

MARKUP = (
    """</script></textarea></title></svg>--><script>window.hacked=1</script>'"><img src=x onerror=window.hacked=1>"""
)
"""Text that runs a script on a page that does not escape it, wherever in the page it is put."""

ESCAPES = "\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b]8;;javascript:window.hacked=1\x07link\x1b]8;;\x07"
"""What has a terminal clear itself, change its title, and show a link."""

BIDI = "\u202eevil\u2066\u200f\u061c"
"""Marks after which text is shown from right to left."""

HOSTILE = f"{MARKUP}{ESCAPES}{BIDI}\x00\x85\u2028{{{{7*7}}}}${{7*7}}"

MARKS = ("<script>window.hacked", "<img src=x")
"""What no page may have as it is."""

INVISIBLE = ("\x1b", "\x00", "\u202e", "\u2066", "\u2028")
"""What no answer may have as it is."""

LONG_LINE_BYTES = 10 * 2**20
_BEGAN = 1_750_000_000.0


def write_hostile(base: Path) -> tuple[Path, Path]:
    """Write all of it; return the directory of the jobs and that of the runs."""
    jobs, runs = base / "jobs", base / "runs"
    jobs.mkdir()
    _write_healthy(jobs, runs)
    _write_hostile_job(jobs, runs)
    _write_damaged_jobs(jobs, runs)
    _write_runs(runs)
    return jobs, runs


def spec(name: str, model_dir: Path, **changes: Any) -> JobSpec:
    """Return what was asked for of a job with a cluster."""
    given: dict[str, Any] = {
        "name": name,
        "created": _BEGAN,
        "target": "local",
        "module_name": "trainer.task",
        "folder": str(model_dir.parent),
        "job_dir": str(model_dir),
        "settings": {"kind": "local"},
        "is_cluster": True,
        "worker_count": 1,
        "parameter_server_count": 1,
    }
    return JobSpec(**(given | changes))


def write_job(jobs: Path, given: JobSpec, *, reason: str = "", role: str = "worker-0") -> JobDirectory:
    """Write a job that has ended."""
    job = JobDirectory(str(jobs), given.name)
    job.make()
    job.write(given)
    elsewhere: dict[str, Any] = {"pid": 7, "host": reason or "node", "place": "0-other 0-other"}
    events = [
        JobEvent(kind="submitted", time=_BEGAN, state="QUEUED"),
        JobEvent(kind="launched", time=_BEGAN, state="PREPARING", **elsewhere),
        JobEvent(kind="started", time=_BEGAN + 1, state="RUNNING", role=role, pid=8),
        JobEvent(kind="restarted", time=_BEGAN + 2, role=role, status=-9, reason=reason),
        JobEvent(kind="ended", time=_BEGAN + 9, state="FAILED", reason=reason),
    ]
    for number, event in enumerate(events, 1):
        Path(job.url, "events", f"{number:08}.json").write_bytes(encoded(event))
    return job


def write_timeline(model_dir: Path, role: str, text: str) -> None:
    """Write the timeline of a role, in which all texts are `text`."""
    head = {
        "role": role,
        "pid": 8,
        "host": text[:60],
        "began": _BEGAN,
        "last_step": _BEGAN,
        "spent": {"time": _BEGAN + 8},
    }
    lines: list[dict[str, Any]] = [
        {"time": _BEGAN, "state": "starting"},
        {"time": _BEGAN + 1, "state": text},
        {"time": _BEGAN + 2, "state": "waiting", "waits_for": [text, "input"], "step": 3},
        {"time": "yesterday", "state": 5},
        {"time": 1e300, "state": "training", "step": -1},
        {"time": _BEGAN + 8, "state": "ended", "reason": text, "failed": True},
    ]
    content = f"{json.dumps(head):<639}\n" + "".join(json.dumps(line) + "\n" for line in lines) + '{"time": 17500'
    (model_dir / "activity").mkdir(parents=True, exist_ok=True)
    (model_dir / "activity" / f"{role}.{_BEGAN * 1000:.0f}-8.jsonl").write_text(content)


def _write_healthy(jobs: Path, runs: Path) -> None:
    """Write a job with which nothing is wrong, which must be shown beside all others."""
    model_dir = runs / "healthy"
    job = write_job(jobs, spec("healthy", model_dir), reason="it had run out of luck.")
    Path(job.logs, "worker-0.log").write_text("2026-01-01T00:00:00.000+0000 INFO: step 7\n")
    with EventWriter(model_dir) as events:
        for step in range(10):
            events.scalars({"loss": 1 / (step + 1)}, step)


def _write_hostile_job(jobs: Path, runs: Path) -> None:
    """Write a job whose every field, log line, tag and role is hostile."""
    model_dir = runs / "hostile"
    given = spec(
        "hostile",
        model_dir,
        target=HOSTILE,
        module_name=HOSTILE,
        tier=HOSTILE,
        arguments=[f"--{HOSTILE}={HOSTILE}", HOSTILE, "--password=hunter2", "--url=https://me:hunter2@store/x"],
        labels={HOSTILE: HOSTILE, "api_key": "hunter2"},
        interpreter=HOSTILE,
        package=HOSTILE,
        secret_arguments=[HOSTILE],
    )
    job = write_job(jobs, given, reason=HOSTILE, role=HOSTILE)
    logs = Path(job.logs)
    time = b"2026-01-01T00:00:00.000+0000 "
    texts = (MARKUP, ESCAPES, BIDI, HOSTILE, "\r50%\r100%", "a\tb")
    lines = b"".join(time + text.encode(errors="surrogatepass") + b"\n" for text in texts)
    broken = time + b"\xff\xfe\xc3( not UTF-8 \xed\xa0\x80\n" + b"\n" + b"no time\n" + MARKUP.encode() + b" x\n"
    (logs / "worker-0.log").write_bytes(lines + broken + time + b"no newline at the end")
    (logs / "ps-0.log").write_bytes(time + b"x" * LONG_LINE_BYTES + b"\n" + time + b"after the long line\n")
    (logs / "chief-0.log").write_bytes(b"y" * LONG_LINE_BYTES)
    (logs / "evaluator-0.raw.log").write_bytes(lines)
    (logs / f"{MARKUP.replace('/', '')}.log").write_bytes(lines)
    (logs / "worker-1.log").mkdir()
    with EventWriter(model_dir) as events:
        for step in range(20):
            value = (0.5, float("nan"), float("inf"), -1e38)[step % 4]
            events.scalars({MARKUP: value, f"{BIDI}/{ESCAPES}": value, "loss": value, "": value}, step)
        events.text(MARKUP, MARKUP, 1)
    for role in ("worker-0", "ps-0", "chief-0"):
        write_timeline(model_dir, role, HOSTILE)
    training = {"run": HOSTILE, "max_steps": 10**40, "began": 1e300, "ended": False, "failed": True}
    (model_dir / "training.json").write_text(json.dumps(training))
    (model_dir / "checkpoint").write_text(json.dumps({"model_checkpoint_path": f"model.ckpt-{MARKUP}"}))
    record = {"step": 1, "checkpoint_path": MARKUP, "metrics": {MARKUP: 1e999}, "batches": 1, "final": True}
    (model_dir / "evaluator.json").write_text(json.dumps({"finished": None, "specs": {MARKUP: record}}))


def _write_damaged_jobs(jobs: Path, runs: Path) -> None:
    """Write jobs of which something is missing or damaged, each with a name that says what."""
    good = encoded(spec("x", runs / "nowhere"))
    contents = {
        "torn": good[: len(good) // 2],
        "empty": b"",
        "a_list": b"[]",
        "not_utf8": b"\xff\xfe\x00",
        "other_types": json.dumps(
            {"name": 5, "created": "then", "target": [], "module_name": {}, "folder": 1}
        ).encode(),
        "no_kind": encoded(spec("no_kind", runs / "nowhere", settings={})),
        "unknown_kind": encoded(spec("unknown_kind", runs / "nowhere", settings={"kind": MARKUP})),
        "odd_times": good.replace(b"1750000000.0", b"1e300"),
        "nan_times": good.replace(b"1750000000.0", b"NaN"),
        "of_a_url": encoded(spec("of_a_url", runs, job_dir="nosuchstore://bucket/x")),
        "of_root": encoded(spec("of_root", runs, job_dir="../" * 40 + "proc/self")),
        "nested": b"[" * 100_000 + b"]" * 100_000,
    }
    for name, content in contents.items():
        (jobs / name / "events").mkdir(parents=True)
        (jobs / name / "job.json").write_bytes(content)
    (jobs / "copied_in_half").mkdir()
    (jobs / "job_is_a_directory" / "job.json").mkdir(parents=True)
    (jobs / "just_a_file").write_text("no job")
    (jobs / MARKUP.replace("/", "_")).mkdir()
    os.symlink("/nonexistent", jobs / "dangling")
    os.symlink(jobs, jobs / "itself")
    os.symlink(jobs / "healthy", jobs / "twin_of_healthy")
    for name, content in {"torn_events": b'{"kind": "ended"', "odd_events": b'{"kind": 5, "time": "x"}'}.items():
        job = write_job(jobs, spec(name, runs / "nowhere"))
        Path(job.url, "events", "00000005.json").write_bytes(content)
        Path(job.url, "events", "99999999999999999999.json").write_bytes(content)
    job = write_job(jobs, spec("no_logs", runs / "nowhere"))
    Path(job.logs).rmdir()
    Path(job.logs).write_text("a file where the logs should be")


def _write_runs(runs: Path) -> None:
    """Write runs whose event files are damaged or whose names are hostile."""
    contents = {
        "torn": _good_events(runs)[:-7],
        "empty": b"",
        "garbage": os.urandom(4096),
        "enormous_record": _header(2**62) + b"x" * 100,
        "negative_record": b"\xff" * 12 + b"x" * 100,
        "no_event": _header(5) + b"\xff\xff\xff\xff\xff" + b"1234",
    }
    for name, content in contents.items():
        folder = runs / "damaged" / name
        folder.mkdir(parents=True)
        (folder / "events.out.tfevents.1.host").write_bytes(content)
    named = runs / MARKUP.replace("/", "_") / BIDI
    with EventWriter(named) as events:
        events.scalars({"loss": 1.0}, 1)
    (runs / "damaged" / "is_a_directory" / "events.out.tfevents.2.host").mkdir(parents=True)
    os.symlink(runs, runs / "damaged" / "loop")


def _good_events(runs: Path) -> bytes:
    return next((runs / "healthy").glob("*tfevents*")).read_bytes()


def _header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))
