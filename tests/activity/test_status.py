"""The state of each role, and how Prometheus gets it."""

from __future__ import annotations

import logging
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cluster_jobs import free_port
from torch_estimator import activity
from torch_estimator.activity.metrics_port import METRICS_PORT
from torch_estimator.activity.status import RoleStatus, prometheus_text, role_statuses
from torch_estimator.activity.timeline import Change, Run, Spent
from torch_estimator.cli import main
from torch_estimator.cluster.task import Task

NOW = 1000.0


def run(
    role: str = "chief-0", *, began: float = 100.0, seen: float = NOW, step: float | None = NOW, **last: object
) -> Run:
    changes = [Change(time=began, state="starting"), Change(**{"time": began + 10, "state": "training", **last})]  # type: ignore[arg-type]
    spent = [Spent(time=seen, step=None if step is None else 7, computing=60.0, input=20.0)]
    return Run(role=role, pid=1, host="here", began=began, changes=changes, spent=spent, last_seen=seen, last_step=step)


def status(*runs: Run, stale_secs: float = 60.0) -> RoleStatus:
    (found,) = role_statuses(runs, NOW, stale_secs)
    return found


@pytest.mark.parametrize(
    ("given", "health"),
    [
        (run(), "well"),
        (run(step=NOW - 59), "well"),
        (run(step=NOW - 60), "stalled"),
        # Its first step takes long, but it has begun to train just now.
        (run(step=None, time=NOW - 59), "well"),
        (run(step=None, time=NOW - 60), "stalled"),
        (run(step=NOW - 500, state="waiting", waits_for=("worker-0",)), "well"),
        (run(step=NOW - 500, state="waiting", waits_for=("input",)), "stalled"),
        *((run(step=NOW - 500, state=state), "well") for state in ("saving", "evaluating", "exporting", "serving")),
        (run(seen=NOW - 59, step=NOW - 59), "well"),
        (run(seen=NOW - 60, step=NOW - 60), "gone"),
        (run(seen=NOW - 900, state="ended"), "well"),
        (run(seen=NOW - 900, state="ended", failed=True), "failed"),
        # A clock that is ahead of this one.
        (run(seen=NOW + 5, step=NOW + 5), "well"),
    ],
)
def test_a_role_is_well_stalled_gone_or_failed(given: Run, health: str) -> None:
    assert status(given).health == health


def test_restarts_count_since_a_run_that_ended_well() -> None:
    well, killed, failed = run(state="ended"), run(), run(state="ended", failed=True)
    assert status(run()).restarts == 0
    assert status(killed, failed, run()).restarts == 2
    assert status(killed, well, killed, run()).restarts == 1
    assert status(killed, well).restarts == 1
    assert status(well, run()).restarts == 0


def test_prometheus_gets_the_numbers_of_all_roles() -> None:
    waits = run("worker-0", step=None, state="waiting", waits_for=("chief-0", "ps-0"))
    text = prometheus_text(role_statuses([run(), waits], NOW, 60.0))
    lines = text.splitlines()
    assert 'te_training_step{role="chief-0"} 7' in lines
    assert 'te_training_seconds_total{role="chief-0",part="computing"} 60' in lines
    assert 'te_training_last_seen_timestamp_seconds{role="worker-0"} 1000' in lines
    assert 'te_training_state{role="worker-0",state="waiting",waits_for="chief-0,ps-0",health="well"} 1' in lines
    assert 'te_training_last_step_timestamp_seconds{role="worker-0"}' not in text


def test_the_text_is_one_that_prometheus_reads() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    hostile = run(state='a"b\\c\nd')
    families = {
        one.name: one
        for one in parser.text_string_to_metric_families(prometheus_text(role_statuses([hostile], NOW, 60.0)))
    }
    assert families["te_training_state"].samples[0].labels["state"] == 'a"b\\c\nd'
    assert {one.labels["part"]: one.value for one in families["te_training_seconds"].samples}["input"] == 20


def get(port: int, path: str = "/metrics", host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def test_the_chief_serves_the_metrics_while_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv(METRICS_PORT, str(port))
    with activity.recording(str(tmp_path), Task()), activity.doing("training", step=lambda: 12):
        text = ""
        while 'te_training_step{role="chief-0"} 12\n' not in text:
            text = get(port)
        assert 'te_training_state{role="chief-0",state="training",waits_for="",health="well"} 1\n' in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(port, "/")
        # Another training of this machine, whose port is not its own.
        monkeypatch.setenv(METRICS_PORT, "no port")
    with pytest.raises(urllib.error.URLError):
        get(port)


def test_a_port_that_is_taken_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv(METRICS_PORT, f"127.0.0.1:{port}")
        with activity.recording(str(tmp_path), Task()), caplog.at_level(logging.WARNING, "torch_estimator"):
            pass
    assert caplog.messages == [
        f"The metrics are not served, since port 127.0.0.1:{port} (TORCH_ESTIMATOR_METRICS_PORT) cannot be used: "
        "Address already in use; name another."
    ]


def test_only_the_chief_serves_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv(METRICS_PORT, str(port))
    worker = Task(type="worker", cluster={"chief": ("a:1",), "worker": ("b:1",)})
    with activity.recording(str(tmp_path), worker), pytest.raises(urllib.error.URLError):
        get(port)


def test_the_port_is_checked_before_a_job_starts(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["local", "train", "--module-name", "no.module", "--metrics-port"]
    for given in ("0", "-1", "70000", "text", "", "127.0.0.1:", "::1:9100"):
        assert main([*command, given]) == 2
        assert capsys.readouterr().err == (
            "estimator: error: --metrics-port must be a port from 1 to 65535, or HOST:PORT, but got "
            f"{given!r}; give 9100, for example.\n"
        )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([*command, str(port)]) == 2
    said = f"estimator: error: --metrics-port {port} cannot be used: Address already in use; name another.\n"
    assert capsys.readouterr().err == said


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_the_port_may_be_one_of_ipv6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv(METRICS_PORT, f"[::1]:{port}")
    with activity.recording(str(tmp_path), Task()):
        assert "te_training_step" in get(port, host="[::1]")
