"""The console benchmark runs, and says whether the promises hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import console
from benchmarks.pages import curves
from benchmarks.pages.corpus import ROLES, Corpus, logs_of, state_of, write_job, write_run
from benchmarks.protocol import Measured
from tests.browser import is_installed
from torch_estimator.activity.timeline import read_runs
from torch_estimator.jobs.directory import JobDirectory
from torch_estimator.jobs.kinds import status_of
from torch_estimator.jobs.logs import LogReader
from torch_estimator.summary.history import read_history


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """One run, which is that of one job."""
    made = Corpus(tmp_path, runs=1, jobs=1, lines=20)
    made.jobs_dir.mkdir()
    write_run(made.logdir / curves.run_name(0), 0)
    write_job(made, 0, logs_of(made.lines))
    return made


def test_the_corpus_is_what_the_package_writes(corpus: Corpus) -> None:
    job = JobDirectory(str(corpus.jobs_dir), corpus.job_name(0))
    history = read_history(str(corpus.model_dir(0)))
    runs = read_runs(corpus.model_dir(0))

    assert status_of(job).state == state_of(0)
    assert len(LogReader(job.logs).read()) == len(ROLES) * corpus.lines
    assert set(history) == set(curves.TAGS)
    assert list(history["loss"].values) == curves.values(0)[:, 0].tolist()
    # Two roles were killed once.
    assert len(runs) == len(ROLES) + 2
    assert {run.role for run in runs if run.end is None} == {"worker-1", "ps-0"}


@pytest.mark.parametrize(("secs", "status"), [(0.29, 0), (0.31, 1)])
def test_the_status_says_whether_it_holds(
    secs: float, status: int, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*_: Any) -> Measured:
        ours = {"cold": 1.0, "cpu": 0.9, "first_look": 0.1, "server": secs, "loaded": 0.2, "warm": 0.1, "memory": 60.0}
        return Measured({"ours": [ours]})

    monkeypatch.setattr(console, "alternate", measured)
    monkeypatch.setattr(console, "ready_corpus", lambda *_, **__: corpus)
    monkeypatch.setattr(console, "is_installed", lambda: True)

    assert console.main(["--parts", "list", "--peers"]) == status

    said = "holds" if status == 0 else "DOES NOT HOLD"
    assert f"server s of the list: at most 0.3: {secs:.3g}, {said}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason="needs Chromium: apt-get install chromium chromium-driver")
def test_a_quick_run_prints_the_tables_and_the_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TE_BENCH_DIR", str(tmp_path))

    assert console.main(["--quick", "--parts", "list", "charts", "live", "--peers"]) == 0

    said = capsys.readouterr().out
    assert "estimator console" in said
    assert "charts that were in view and never drawn: at most 0: 0" in said
    for what in ("a line of a log", "a change of a lane", "a point of a curve"):
        assert f"s until {what} is on the screen, at most: " in said
