"""Timelines: what the recorder writes, and what a reader gets of it while it is written, replaced and removed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_estimator import activity, files
from torch_estimator.activity.recorder import TimelineFile
from torch_estimator.activity.timeline import Change, Run, Spent, TimelineReader, read_runs
from torch_estimator.cluster.task import Task
from torch_estimator.processes.forked import fork

WORKER = Task(type="worker", id=1, cluster={"chief": ("a:1",), "worker": ("b:1", "c:1")})
HEAD = {"role": "worker-1", "pid": 7, "host": "here", "began": 100.0, "spent": {"time": 101.0}}


def until(found: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 60
    while not found():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def only_run(model_dir: Path) -> Run:
    (run,) = read_runs(model_dir)
    return run


def states(run: Run) -> list[str]:
    return [change.state for change in run.changes]


def last(model_dir: Path) -> Change | None:
    """Return the last change of the run, if there is one yet."""
    return next((run.changes[-1] for run in read_runs(model_dir)), None)


def is_last(model_dir: Path, state: str, *waits_for: str) -> bool:
    change = last(model_dir)
    return change is not None and (change.state, change.waits_for) == (state, waits_for)


def only_file(model_dir: Path) -> Path:
    (path,) = (model_dir / "activity").glob("*.jsonl")
    return path


def test_a_run_says_what_it_did_and_why_it_ended(tmp_path: Path) -> None:
    began, step = time.time(), 3
    with activity.recording(str(tmp_path), WORKER):
        with activity.doing("starting"), activity.doing("training", step=lambda: step):
            step = 5
            with activity.doing("saving"):
                pass
        activity.note_end("the last step was reached")
    run = only_run(tmp_path)
    assert (run.role, run.pid) == ("worker-1", os.getpid())
    assert [(change.state, change.step) for change in run.changes] == [
        ("starting", None),
        ("training", 3),
        ("saving", 5),
        ("training", 5),
        ("ended", 5),
    ]
    times = [began, run.began, *(change.time for change in run.changes), run.last_seen, time.time()]
    assert times == pytest.approx(sorted(times), abs=0.01)
    assert run.end == run.changes[-1]
    assert (run.end.reason, run.end.failed) == ("the last step was reached", False)


@pytest.mark.parametrize(
    ("error", "reason", "failed"),
    [
        (ValueError("no\nsecond line"), "ValueError: no", True),
        (KeyboardInterrupt(), "Ctrl-C", True),
        # What asks the launcher for another start has not failed.
        (SystemExit(143), "exit status 143", False),
        (SystemExit(1), "exit status 1", True),
        (SystemExit(0), "exit status 0", False),
    ],
)
def test_an_error_is_the_reason_of_the_end(tmp_path: Path, error: BaseException, reason: str, failed: bool) -> None:
    with pytest.raises(type(error)), activity.recording(str(tmp_path), Task()), activity.doing("starting"):
        raise error
    run = only_run(tmp_path)
    assert run.end is not None
    assert (run.role, run.end.reason, run.end.failed) == ("chief-0", reason, failed)


def test_a_long_wait_is_a_change_with_its_true_times_and_short_ones_are_added_up(tmp_path: Path) -> None:
    names = ["worker 0", "ps 1"]
    with (
        activity.recording(str(tmp_path), WORKER),
        activity.doing("training", step=lambda: 9),
        activity.waiting(lambda: names),
    ):
        for _ in range(100):
            with activity.SERVERS:
                pass
        began = time.time()
        with activity.OTHERS:
            until(lambda: is_last(tmp_path, "waiting", "worker-0", "ps-1"))
            # It goes on with those that are left.
            names = ["ps 1"]
            until(lambda: is_last(tmp_path, "waiting", "ps-1"))
        ended = time.time()
        # It ends in the file, too, although nothing else happens.
        until(lambda: is_last(tmp_path, "training"))
    run = only_run(tmp_path)
    assert states(run) == ["starting", "training", "waiting", "waiting", "training", "ended"]
    assert (run.changes[2].time, run.changes[4].time) == pytest.approx((began, ended), abs=0.05)
    assert run.spent[-1].others == pytest.approx(ended - began, abs=0.05)
    assert run.spent[-1].servers < 0.05


def test_a_wait_for_input_is_one_of_training_only(tmp_path: Path) -> None:
    with activity.recording(str(tmp_path), Task()):
        with activity.doing("training"), activity.INPUT:
            began = time.monotonic()
            until(lambda: is_last(tmp_path, "waiting", "input"))
            secs = time.monotonic() - began
        with activity.doing("evaluating"), activity.INPUT:
            until(lambda: only_run(tmp_path).spent[-1].evaluating > 0.1)
    spent = only_run(tmp_path).spent[-1]
    assert spent.input == pytest.approx(secs, abs=0.05)
    assert spent.evaluating > 0.1


def test_waits_within_waits_and_of_other_threads_count_once(tmp_path: Path) -> None:
    with activity.recording(str(tmp_path), Task()), activity.doing("training"):
        began = time.monotonic()
        thread = threading.Thread(target=lambda: activity.INPUT(until)(lambda: time.monotonic() > began + 0.2))
        with activity.OTHERS, activity.SERVERS, activity.OTHERS:
            thread.start()
            thread.join()
        secs = time.monotonic() - began
    spent = only_run(tmp_path).spent[-1]
    assert spent.others == pytest.approx(secs, abs=0.05)
    assert (spent.servers, spent.input) == (0, 0)
    assert spent.computing == pytest.approx(0, abs=0.05)


def test_one_process_that_trains_twice_goes_on_in_its_file(tmp_path: Path) -> None:
    for _ in range(2):
        with activity.recording(str(tmp_path), Task()), activity.doing("starting"):
            pass
    assert states(only_run(tmp_path)) == ["starting", "ended", "starting", "ended"]
    only_file(tmp_path).unlink()
    with activity.recording(str(tmp_path), Task()):
        pass
    assert states(only_run(tmp_path)) == ["starting", "ended"]


def test_a_forked_process_leaves_the_file_to_its_parent(tmp_path: Path) -> None:
    with activity.recording(str(tmp_path), Task()), activity.doing("training"):
        child = fork()
        if child is None:
            with (
                contextlib.suppress(ValueError),
                activity.doing("exporting"),
                activity.recording(str(tmp_path / "own"), Task()),
                activity.doing("saving"),
            ):
                raise ValueError
            os._exit(0)
        until(child.has_ended)
        assert child.status == 0
    assert states(only_run(tmp_path)) == ["starting", "training", "ended"]
    assert states(only_run(tmp_path / "own")) == ["starting", "exporting", "saving", "exporting", "ended"]
    assert only_run(tmp_path / "own").pid == child.pid


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind_in_the_process(tmp_path: Path, fails: bool) -> None:
    before = set(threading.enumerate())
    for model_dir in (str(tmp_path), f"memory://{uuid.uuid4().hex}"):
        with contextlib.suppress(ValueError), activity.recording(model_dir, Task()), activity.doing("training"):
            if fails:
                raise ValueError
        assert set(threading.enumerate()) == before
    assert read_runs(model_dir) == []


def test_a_directory_that_cannot_be_written_does_not_disturb_the_process(tmp_path: Path) -> None:
    (tmp_path / "activity").write_text("")
    with activity.recording(str(tmp_path), Task()), activity.doing("training"):
        pass
    assert read_runs(tmp_path) == []


def test_a_store_gets_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem

    class Store(DirFileSystem):  # type: ignore[misc]  # fsspec has no types
        protocol = "teststore"

        def __init__(self, **settings: object) -> None:
            super().__init__(path=str(tmp_path), fs=LocalFileSystem(auto_mkdir=True))

    fsspec.register_implementation("teststore", Store, clobber=True)
    reader = TimelineReader("teststore://job")
    with activity.recording("teststore://job", Task()), activity.doing("training", step=lambda: 4):
        until(lambda: [states(run) for run in reader.runs()] == [["starting", "training"]])
    (run,) = reader.runs()
    assert states(run) == ["starting", "training", "ended"]


def test_a_job_that_is_restarted_again_and_again_keeps_the_last_files_of_each_role(tmp_path: Path) -> None:
    (tmp_path / "activity").mkdir()
    for role in ("chief-0", "worker-0"):
        for number in range(100, 200):
            (tmp_path / "activity" / f"{role}.{number}-1.jsonl").touch()
    with activity.recording(str(tmp_path), Task()):
        pass
    left = [path.name for path in (tmp_path / "activity").iterdir()]
    chiefs = sorted(name for name in left if name.startswith("chief"))
    assert len(chiefs) == 32
    assert chiefs[0] == "chief-0.169-1.jsonl"
    assert len(left) == 132


def test_many_changes_of_state_are_few_lines(tmp_path: Path) -> None:
    with activity.recording(str(tmp_path), Task()), activity.doing("training"):
        for _ in range(5000):
            with activity.doing("saving"):
                pass
        with activity.doing("exporting"):
            # On a busy machine nothing may be written yet.
            until(lambda: any(run.spent[-1].evaluating > 0 for run in read_runs(tmp_path)))
            with activity.OTHERS:
                until(lambda: is_last(tmp_path, "waiting"))
    run = only_run(tmp_path)
    assert len(run.changes) < 500
    assert only_file(tmp_path).stat().st_size < 100_000
    # What lasts is not lost among them.
    exporting = states(run).index("exporting")
    assert states(run)[exporting : exporting + 3] == ["exporting", "waiting", "exporting"]
    assert run.end is not None


def test_a_long_run_keeps_its_size_and_its_long_states(tmp_path: Path) -> None:
    path = tmp_path / "activity" / "worker-1.100000-7.jsonl"
    file, reader = TimelineFile(str(path)), TimelineReader(tmp_path)
    sizes = []
    now = 100.0
    for hour in range(100):
        # A save a minute, and an evaluation of twenty minutes an hour.
        for _ in range(40):
            training = Change(time=now, state="training", step=hour)
            file.write([training, Spent(time=now + 1, step=hour), Change(time=now + 59.9, state="saving")], HEAD)
            sizes.append(path.stat().st_size)
            now += 60
        file.write([Change(time=now, state="evaluating", step=hour)], HEAD)
        now += 20 * 60
        reader.runs()
    assert max(sizes) < 150_000
    (run,) = reader.runs()
    assert run == only_run(tmp_path)
    assert [change.state for change in run.changes].count("evaluating") == 100
    assert run.spent[0].time < 1000


def write(model_dir: Path, *lines: str, end: str = "\n", name: str = "worker-1.100000-7.jsonl") -> Path:
    file = TimelineFile(str(model_dir / "activity" / name))
    file.write([], HEAD)
    path = model_dir / "activity" / name
    with path.open("a") as text:
        text.write("\n".join(lines) + end)
    return path


TRAINING = '{"time": 100.5, "state": "training", "step": 2}'
SAVING = '{"time": 100.7, "state": "saving", "step": 9}'


def test_a_reader_waits_for_the_rest_of_a_torn_line(tmp_path: Path) -> None:
    path = write(tmp_path, TRAINING, SAVING[:20], end="")
    reader = TimelineReader(tmp_path)
    assert [states(run) for run in reader.runs()] == [["training"]]
    with path.open("a") as file:
        file.write(f"{SAVING[20:]}\n")
    assert [states(run) for run in reader.runs()] == [["training", "saving"]]


def test_a_reader_takes_only_new_lines_apart(tmp_path: Path) -> None:
    path = write(tmp_path, TRAINING)
    reader = TimelineReader(tmp_path)
    (before,) = reader.runs()
    with path.open("a") as file:
        file.write(f"{SAVING}\n")
    (after,) = reader.runs()
    assert (states(before), states(after)) == (["training"], ["training", "saving"])
    assert after.changes[0] is before.changes[0]


def test_files_are_replaced_and_removed_while_they_are_read(tmp_path: Path) -> None:
    write(tmp_path, TRAINING, SAVING)
    other = write(tmp_path, TRAINING, name="chief-0.100000-8.jsonl")
    reader = TimelineReader(tmp_path)
    assert [states(run) for run in reader.runs()] == [["training"], ["training", "saving"]]
    other.unlink()
    write(tmp_path, SAVING)
    assert [states(run) for run in reader.runs()] == [["saving"]]
    files.remove_tree(tmp_path / "activity")
    assert reader.runs() == []


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[1]\n", b"\xff\xfe" * 400, b'{"role": 3}\n', b"null\n" * 500, b'{"spent": {"time": "x"}}\n'),
        b'{"pid": 1, "host": "a", "began": 1, "last_step": "x", "spent": {"time": 1}}\n',
        b'{"pid": 1, "host": "a", "began": 1' + b"0" * 400 + b', "spent": {"time": 1}}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_damaged_file_is_no_run(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, TRAINING, "[]", "null", '{"state": 3, "time": []}', '{"time": 1, "state": 5}', '{"x": 1}', "\x00")
    for name in ("chief-0.1-1.jsonl", "..1-1.jsonl", "chief-0.1-1.jsonl.bak", "notes"):
        (tmp_path / "activity" / name).write_bytes(content)
    (tmp_path / "activity" / "ps-0.1-1.jsonl").mkdir()
    assert [(run.role, states(run)) for run in read_runs(tmp_path)] == [("worker-1", ["training"])]


def test_runs_are_sorted_by_role_and_beginning(tmp_path: Path) -> None:
    for began, role in ((2, "worker-10"), (1, "worker-2"), (3, "worker-2"), (4, "chief-0")):
        file = TimelineFile(str(tmp_path / "activity" / f"{role}.{began}-7.jsonl"))
        file.write([], {**HEAD, "role": role, "began": began})
        found = [(run.role, run.began) for run in read_runs(tmp_path)]
    assert found == [("chief-0", 4), ("worker-2", 1), ("worker-2", 3), ("worker-10", 2)]
