"""How trials are started: what a fork finds of its parent, and what it does not."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuning.studies import make_study, make_trial
from torch_estimator.compile import sources
from torch_estimator.tuning.directory import StudyDirectory
from torch_estimator.tuning.starters import Forked, Fresh, Process


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of libraries, which are forgotten after the test."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path(__file__).parents[2])]))
    for cached in (sources._roots, sources.package_of_file):
        cached.cache_clear()
    yield folder
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)


def run(start: Forked, directory: StudyDirectory, number: int) -> list[str]:
    """Run a trial; return the lines that it printed."""
    make_trial(directory, number, starts=1)
    process: Process = start(directory.trial(number))
    while not process.has_ended():
        time.sleep(0.005)
    assert process.status == 0
    return Path(directory.log(number)).read_text().split("\n")[:-1]


def test_a_fork_finds_the_libraries_imported_that_trials_before_it_used_but_no_module_of_the_program(
    tmp_path: Path, libraries: Path
) -> None:
    (libraries / "slow_library.py").write_text("print('imports')")
    (libraries / "fails_later.py").write_text("import os\nif 'CLOUD_ML_TRIAL_ID' not in os.environ: 1 / 0")
    program = """
    import sys
    print([name for name in ("slow_library", "fails_later", "own") if name in sys.modules])
    import slow_library, fails_later, own
    """
    directory = make_study(tmp_path, program)
    (tmp_path / "jobs" / "study" / "package" / "own.py").write_text("")
    start = Forked(directory)
    assert run(start, directory, 1) == ["[]", "imports"]
    assert run(start, directory, 2) == ["['slow_library']"]


def test_libraries_that_start_threads_make_trials_processes_of_their_own(tmp_path: Path, libraries: Path) -> None:
    (libraries / "watchdog.py").write_text(
        "import threading\n"
        "ends = threading.Event()\n"
        "thread = threading.Thread(target=ends.wait, name='watcher', daemon=True)\n"
        "thread.start()\n"
    )
    directory = make_study(tmp_path, "import sys, os\nprint('watchdog' in sys.modules, os.getppid())\nimport watchdog")
    said: list[str] = []
    start = Forked(directory, instead=Fresh(directory, os.environ), say=said.append)
    try:
        for number, has_it in ((1, False), (2, False), (3, False)):
            assert run(start, directory, number) == [f"{has_it} {os.getpid()}"]
    finally:
        sys.modules["watchdog"].ends.set()
        sys.modules["watchdog"].thread.join()
    assert said == [
        "Each trial gets a process of its own, because watchdog, which they import, starts a thread (watcher)."
    ]


def test_a_fork_has_signals_and_random_numbers_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
    import os, random, signal, numpy, torch
    print(signal.set_wakeup_fd(-1), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, os.environ["KEY"])
    print(random.random(), numpy.random.rand(), torch.rand(()).item())
    """
    directory = make_study(tmp_path, program)
    start = Forked(directory, environ={"KEY": "value"})
    first, second = run(start, directory, 1), run(start, directory, 2)
    assert first[0] == second[0] == "-1 True value"
    assert not set(first[1].split()) & set(second[1].split())
    assert "KEY" not in os.environ


def test_libraries_are_not_imported_before_a_program_that_changes_its_environment(
    tmp_path: Path, libraries: Path
) -> None:
    (libraries / "reads_setting.py").write_text("import os\nprint(os.environ.get('SETTING'))")
    directory = make_study(tmp_path, "import os\nos.environ['SETTING'] = 'given'\nimport reads_setting")
    start = Forked(directory)
    assert [run(start, directory, number) for number in (1, 2, 3)] == [["given"]] * 3


def test_a_fork_ends_as_a_process_of_python_does(tmp_path: Path) -> None:
    program = """
    import atexit, logging.handlers, multiprocessing, pathlib, tempfile, threading, time
    multiprocessing.get_context("fork").Process(target=lambda: (time.sleep(0.2), pathlib.Path("child").touch())).start()
    folder = tempfile.TemporaryDirectory(dir=".", prefix="temporary-")
    target = logging.FileHandler("lines.log")
    logging.getLogger("own").addHandler(logging.handlers.MemoryHandler(100, target=target))
    logging.getLogger("own").error("kept in memory")
    file = open("left_open", "w")
    file.write("all of it")
    print("at once")
    atexit.register(print, "its own function")
    threading.Thread(target=lambda: (time.sleep(0.2), print("its own thread"))).start()
    """
    parents_folder = tempfile.TemporaryDirectory()
    parents = Path(parents_folder.name)
    mine = open(tmp_path / "mine", "w")  # noqa: SIM115
    mine.write("once")
    registered = atexit.register(print, "another's function")
    try:
        lines = run(Forked(directory := make_study(tmp_path, program)), directory, 1)
    finally:
        atexit.unregister(registered)
    assert lines == ["at once", "its own thread", "its own function"]
    assert (tmp_path / "left_open").read_text() == "all of it"
    assert (tmp_path / "child").exists()
    assert not list(tmp_path.glob("temporary-*"))
    assert (tmp_path / "lines.log").read_text() == "kept in memory\n"
    assert (tmp_path / "mine").read_text() == ""
    assert parents.is_dir()
    mine.close()
    parents_folder.cleanup()
