"""The benchmark of parameter servers runs, over ZeroMQ and over plain TCP."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import parameter_servers


@pytest.mark.slow
def test_a_quick_run_measures_zeromq_beside_plain_tcp(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_servers, "OVER_RAW", {"pipelined": parameter_servers.OVER_RAW["pipelined"]})

    status = parameter_servers.main(["--quick", "--parts", "transport", "--data", str(data)])

    lines = capsys.readouterr().out.splitlines()
    name = parameter_servers.SIDES["pipelined"].name
    (tcp,) = [line.split()[-2:] for line in lines if line.startswith(f"{name}, plain TCP")]
    (zeromq,) = [line.split()[-2:] for line in lines if line.startswith(f"{name} ")]
    assert status == 0
    assert tcp[1] == "-"
    speeds = [float(speed.replace(",", "")) for speed, _ in (zeromq, tcp)]
    assert float(zeromq[1]) == pytest.approx(speeds[0] / speeds[1], rel=0.01)


@pytest.mark.slow
def test_a_quick_run_compares_advice_with_doing_it(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "servers, network"
    monkeypatch.setattr(parameter_servers, "ADVISED", {name: parameter_servers.ADVISED[name]})

    status = parameter_servers.main(["--quick", "--parts", "advise", "--data", str(data)])

    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(name)]
    _, bound, said, added, *numbers = re.split(r"  +", row.strip())
    assert status == 0
    assert (bound, said, added) == ("network", "network", "worker")
    expected, low, high, measured = map(float, numbers)
    assert low <= expected <= high
    assert measured > 1
