"""Private memory of the processes of a job, sampled from /proc while they run."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

ROLE = "TE_BENCH_ROLE"
"""Variable that names a process without a TF_CONFIG."""

_MARK = "TE_BENCH_WATCH"
_SAMPLE_SECS = 0.05
_LOOK_SECS = 0.5
# Memory of a part of a checkpoint is given back a moment after the checkpoint is there.
_SAVED_SECS = 1.0


class MemoryWatch:
    """Thread that notes the most private memory (RssAnon) of each role, between ``with`` and its end.

    Processes are watched whose environment has `variables`. A role such as ``ps 0`` is the place in TF_CONFIG, without
    the children of its process, such as a compiler, which one of several processes runs by chance. Other processes are
    called what `ROLE` in their environment says; of several with one name the largest counts. Pages of mapped files do
    not count, because the system can take them back.

    Attributes:
        variables: The environment that marks processes.
        peaks: Bytes, by role.
        peaks_between_saves: The same, without the times at which `is_saving` returns True.
        pids: The process that a role had last.
    """

    def __init__(self, is_saving: Callable[[], bool] = lambda: False) -> None:
        self.variables = {_MARK: uuid.uuid4().hex}
        self.peaks: dict[str, int] = {}
        self.peaks_between_saves: dict[str, int] = {}
        self.pids: dict[str, int] = {}
        self._is_saving = is_saving
        self._roles: dict[int, str | None] = {}
        # Processes with a TF_CONFIG, and their descendants.
        self._tasks: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def peaks_mb(self) -> dict[str, float]:
        """Return the peaks in MB of 10**6 bytes, under names such as ``chief 0 MB``."""
        return {f"{role} MB": size / 1e6 for role, size in self.peaks.items()}

    def _run(self) -> None:
        looked = saved = 0.0
        while not self._ended.wait(_SAMPLE_SECS):
            now = time.monotonic()
            if now > looked + _LOOK_SECS:
                looked = now
                self._look()
            if self._is_saving():
                saved = now
            for pid, role in list(self._roles.items()):
                if role is not None and (size := _private_bytes(pid)):
                    self.peaks[role] = max(size, self.peaks.get(role, 0))
                    if now > saved + _SAVED_SECS:
                        self.peaks_between_saves[role] = max(size, self.peaks_between_saves.get(role, 0))

    def _look(self) -> None:
        """Find processes that began since the last time."""
        there = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._roles = {pid: role for pid, role in self._roles.items() if pid in there}
        for pid in sorted(there.difference(self._roles)):
            self._roles[pid] = role = self._role_of(pid)
            if role is not None:
                self.pids.setdefault(role, pid)
                if self.pids[role] not in there:
                    self.pids[role] = pid

    def _role_of(self, pid: int) -> str | None:
        try:
            content = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            # The second field, the command in parentheses, may hold spaces.
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return None
        found = dict(line.split("=", 1) for line in content.split("\0") if "=" in line)
        if found.get(_MARK) != self.variables[_MARK]:
            return None
        if "TF_CONFIG" not in found:
            return found.get(ROLE)
        self._tasks.add(pid)
        if parent in self._tasks:
            return None
        task = json.loads(found["TF_CONFIG"])["task"]
        return f"{task['type']} {task['index']}"


def _private_bytes(pid: int) -> int:
    """Return the private memory of a process, 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    return 0
