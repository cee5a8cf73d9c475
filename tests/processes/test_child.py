"""Children do not outlive this process. Tests of the launcher and of the server show the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch_estimator.processes import die_with_parent


def test_a_command_does_not_start_if_its_parent_died_before_the_kernel_watched_it(tmp_path: Path) -> None:
    began = tmp_path / "began"
    command = [sys.executable, die_with_parent.__file__, "{}", sys.executable, "-c", f"open({str(began)!r}, 'w')"]
    for parent, status in ((os.getpid() + 1, 1), (os.getpid(), 0)):
        assert not began.exists()
        assert subprocess.run([word.replace("{}", str(parent)) for word in command]).returncode == status
    assert began.exists()
