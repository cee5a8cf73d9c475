from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torch_estimator.cli import main

COMMAND = [sys.executable, "-m", "torch_estimator.cli"]


def test_the_command_line_imports_neither_torch_nor_onnx(exports: Path) -> None:
    code = (
        "import sys; from torch_estimator.cli import main\n"
        f"status = main(['show', '--dir', {str(exports / 'raw')!r}])\n"
        "assert status == 0 and not {'torch', 'onnx', 'pyarrow', 'pandas'} & set(sys.modules)\n"
        "import torch_estimator.export.exported_model as e\n"
        f"e.ExportedModel.load({str(exports / 'raw')!r}).predict({{'word': ['a'], 'x': [1]}})\n"
        "assert not {'torch', 'onnx', 'pyarrow', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_closed_pipe_is_quiet(exports: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "show", "--dir", str(exports / "raw" / "1700000000")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_without_a_command_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert "usage: estimator" in capsys.readouterr().err
