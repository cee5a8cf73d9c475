"""The serving benchmark runs."""

from __future__ import annotations

import shutil

import pytest

from benchmarks import serving


@pytest.mark.skipif(not (serving.DATA / serving.TRAIN_FILE).exists(), reason=f"no census data in {serving.DATA}")
@pytest.mark.skipif(
    shutil.which("wrk") is None or shutil.which("h2load") is None,
    reason="wrk or h2load is not installed (apt-get install wrk nghttp2-client)",
)
def test_a_quick_run_measures_our_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert serving.main(["--quick", "--peers"]) == 0
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if line.startswith("estimator serve ")]
    numbers = [float(one.replace(",", "")) for one in row.split()[2:]]
    assert len(numbers) == 14
    assert min(numbers) > 0
    for what in ("over onnxruntime alone", "from no node to the first answer", "with 2 over Estimator.predict"):
        assert what in printed
