"""Models, exports and checkpoints on a device that is simulated on the CPU (`simulated_gpu_jobs.py`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

JOBS = Path(__file__).with_name("simulated_gpu_jobs.py")


def test_jobs_on_a_simulated_gpu_have_the_numbers_of_the_cpu() -> None:
    # They run in another process, because the device stays registered there, and such a process cannot fork any more.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(JOBS)]
    done = subprocess.run(command, cwd=JOBS.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
