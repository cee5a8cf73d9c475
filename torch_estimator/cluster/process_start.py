"""Start times of this process and of its job."""

from __future__ import annotations

import os
import time
from pathlib import Path

JOB_BEGAN = "TORCH_ESTIMATOR_JOB_BEGAN"
"""Variable in which a launcher that restarts processes gives the start of the job, in seconds since 1970."""

_IMPORTED_AT = time.time()


def job_start() -> float:
    """Return the start time of the job, in seconds since 1970; without a launcher, that of this process."""
    try:
        return float(os.environ[JOB_BEGAN])
    except (KeyError, ValueError):
        return process_start()


def process_start() -> float:
    """Return the start time of this process, in seconds since 1970.

    Without ``/proc``, return the time at which this module was imported.
    """
    try:
        # Field 22 is the start time of the process, in clock ticks since boot. Fields are split after the last ')',
        # because the process name (field 2) may contain spaces. So field 3 has index 0, and field 22 has index 19.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _IMPORTED_AT
