"""The line that says where and when a table was measured."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path


def machine_line(versions: Mapping[str, str] | None = None) -> str:
    """CPU, cores, how busy it was, Python, torch, the given versions by name, and the date."""
    return (
        f"{cpu()}, load {os.getloadavg()[0]:.1f}; "
        + ", ".join(f"{name} {version}" for name, version in versions_of(versions).items())
        + f"; {date_of_today()}"
    )


def cpu() -> str:
    """The processor, and how many of its cores this process may use."""
    return f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores"


def versions_of(versions: Mapping[str, str] | None = None) -> dict[str, str]:
    """The versions of Python and torch, and the given ones, by name."""
    return {"Python": platform.python_version(), "torch": metadata.version("torch"), **(versions or {})}


def date_of_today() -> str:
    """Year, month and day."""
    return datetime.date.today().isoformat()


def cpu_model() -> str:
    """The processor's name with its family and model, which virtual machines leave out of the name."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or platform.machine()
    return f"{name} (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else name
