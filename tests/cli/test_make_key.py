from __future__ import annotations

from pathlib import Path

import pytest

from torch_estimator.cli import main
from torch_estimator.parameter_server.encryption import KEY_FILE, key_from_environment


def test_it_makes_a_key_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "key")
    assert main(["make-key", path]) == 0
    assert capsys.readouterr().out == f"Wrote {path}; set {KEY_FILE} to it for all processes of the cluster.\n"
    assert key_from_environment({KEY_FILE: path}) is not None
    assert main(["make-key", path]) == 2
    assert capsys.readouterr().err.startswith(f"estimator: error: there is already something at {path}, which may be")
