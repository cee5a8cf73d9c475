"""When this process, and the job that it is of, began."""

from __future__ import annotations

import os
import time
from pathlib import Path

JOB_BEGAN = "TORCH_ESTIMATOR_JOB_BEGAN"
"""What a launcher that starts processes again sets to when it began, in seconds since 1970."""

_IMPORTED_AT = time.time()


def job_start() -> float:
    """In seconds since 1970; that of this process, where no launcher tells."""
    try:
        return float(os.environ[JOB_BEGAN])
    except (KeyError, ValueError):
        return process_start()


def process_start() -> float:
    """In seconds since 1970; when this module was imported, where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _IMPORTED_AT
