"""The command: its sentences, its server, and many pages that are open at the same time."""

from __future__ import annotations

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.console.corpus import Corpus, write_census
from torch_estimator.cli.main import main


@contextmanager
def console(*arguments: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A console in a process of its own, and its address."""
    command = [sys.executable, "-m", "torch_estimator.cli", "console", "--port", "0", *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        command, cwd=folder, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            found = re.search(r"at (http://\S+) \(", line)
            assert found is not None, line + process.stderr.read()
            yield found[1], process
        finally:
            process.kill()


def test_it_shows_the_jobs_of_the_usual_directory_and_ends_with_sigterm(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, time.time())
    write_census(corpus)
    with console(folder=tmp_path) as (url, process):
        assert "census_7" in httpx.get(url, trust_env=False).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_directory_that_cannot_be_read_is_said_at_the_start(tmp_path: Path) -> None:
    with console("--jobs", "none", "--logdir", "nothing", folder=tmp_path) as (url, process):
        page = httpx.get(url, trust_env=False).text
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
    for where, option in (("/none", "--jobs"), ("nothing", "--logdir")):
        sentence = f"{where} cannot be read: No such file or directory. {option} names another directory."
        assert sentence in said
        assert sentence in page


def test_with_a_log_directory_alone_the_usual_jobs_are_not_missed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with console("--logdir", "logs", folder=tmp_path) as (url, process):
        assert "cannot be read" not in httpx.get(url, trust_env=False).text
        process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "-1"], "the server cannot listen on 127.0.0.1, port -1: "),
        (["--host", "192.0.2.1", "--port", "8600"], "the server cannot listen on 192.0.2.1, port 8600: "),
        (["--token-file", "none"], "the token file none cannot be read: No such file or directory."),
    ],
)
def test_a_mistake_gets_a_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    assert main(["console", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_twenty_pages_that_follow_a_job_leave_room_for_another_one(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, time.time())
    job = write_census(corpus)
    with console(folder=tmp_path) as (url, _), concurrent.futures.ThreadPoolExecutor(20) as pool:
        ends = time.monotonic() + 3

        def follow(number: int) -> list[str]:
            seen: list[str] = []
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as page:
                cursor = page.get("/page/follow?id=job:census_7&cursor=").json()["cursor"]
                while time.monotonic() < ends or "the end" not in seen[-1:]:
                    news = page.get(f"/page/follow?id=job:census_7&cursor={cursor}").json()
                    cursor = news["cursor"]
                    seen += [line[2] for line in news["lines"]]
            return seen

        following = [pool.submit(follow, number) for number in range(20)]
        for number in range(10):
            corpus.log(job, "chief-0", [(corpus.now + number, f"line {number}")])
            assert httpx.get(url, timeout=60, trust_env=False).status_code == 200
            assert httpx.get(f"{url}/page/job?id=job:census_7", timeout=60, trust_env=False).status_code == 200
        while time.monotonic() < ends:
            time.sleep(0.01)
        corpus.log(job, "chief-0", [(corpus.now + 10, "the end")])
        for one in following:
            lines = one.result()
            numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
            assert numbers == list(range(10 - len(numbers), 10))


def test_no_pytorch_is_needed(tmp_path: Path) -> None:
    code = "import sys, torch_estimator.console.app; print('torch' in sys.modules, 'grpc' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    told = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]
