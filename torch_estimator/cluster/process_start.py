"""Start times of this process and of its job."""

from __future__ import annotations

import os
import time
from pathlib import Path

JOB_BEGAN = "TORCH_ESTIMATOR_JOB_BEGAN"
"""Variable in which a launcher that restarts processes gives the start of the job, in seconds since 1970."""

_IMPORTED_AT = time.time()


def job_start() -> float:
    """Return when the job started, in seconds since 1970; without a launcher, when this process did."""
    try:
        return float(os.environ[JOB_BEGAN])
    except (KeyError, ValueError):
        return process_start()


def process_start() -> float:
    """Return when this process started, in seconds since 1970.

    Without ``/proc`` that is when this module was imported.
    """
    try:
        # Field 22 (starttime): clock ticks from boot to the start of the process. Fields are split after the last ')',
        # because the process name (field 2) may contain spaces; field 3 is index 0.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _IMPORTED_AT
