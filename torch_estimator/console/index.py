"""The rows of all jobs and runs, for lists and searches: what is asked for is read at once, the rest in a thread."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from torch_estimator import files
from torch_estimator.console.rows import Row, changed_at, damaged, read_row
from torch_estimator.console.sources import Entry, Found, Sources
from torch_estimator.errors import UserError
from torch_estimator.jobs.directory import JobEvent, ended_here
from torch_estimator.web.errors import RequestError

PAGE = 50
"""Rows on a page of the list."""

# Time that a list waits for rows that were never read.
_MOST_SECS = 0.8
_FRESH_SECS = 1.0
# A job that is over changes only if somebody resumes it, which the time of a directory tells.
_OVER_SECS = 5.0
_FIRST_PASS_SECS, _PASS_SECS = 1.0, 10.0
# Asking Slurm or Ray starts a process.
_ASK_SECS = 20.0


@dataclass(slots=True)
class _Known:
    row: Row
    at: float
    changed: float


class Index:
    """The rows, each as old as `_FRESH_SECS` at most where it is shown."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._known: dict[str, _Known] = {}
        self._asked: dict[str, tuple[float, str | None]] = {}
        self._ends = threading.Event()
        self._has_first_page = threading.Event()
        self._has_first_page.set()
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    def start(self) -> None:
        """Begin to read: at once what a list shows first, and later what nobody has asked for yet."""
        self._has_first_page.clear()
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()

    def known(self, entries: Iterable[Entry]) -> dict[str, Row]:
        """Return the rows that were read before, by id, however old."""
        return {one.id: found.row for one in entries if (found := self._known.get(one.id)) is not None}

    def rows(self, entries: Iterable[Entry]) -> dict[str, Row]:
        """Return rows as they are now, by id. Those that take too long to read for the first time are left out."""
        deadline = time.monotonic() + _MOST_SECS
        # Two threads that read the same rows would take twice as long.
        self._has_first_page.wait(_MOST_SECS)
        return self._rows(entries, deadline)

    def _rows(self, entries: Iterable[Entry], deadline: float) -> dict[str, Row]:
        found = {}
        for entry in entries:
            known = self._known.get(entry.id)
            if time.monotonic() < deadline:
                known = self._read(entry.id)
            if known is not None:
                found[entry.id] = known.row
        return found

    def row(self, id: str) -> Row:
        """Return one row as it is now."""
        return self._read(id).row

    def forget(self, id: str) -> None:
        """Read a row anew when it is asked for: somebody has changed what it shows."""
        self._known.pop(id, None)

    def _read(self, id: str, *, asks: bool = False) -> _Known:
        known, now = self._known.get(id), time.monotonic()
        if known is not None and now - known.at < (_OVER_SECS if known.row.is_over else _FRESH_SECS):
            return known
        try:
            found = self._sources.find(id)
            changed = changed_at(found)
            if known is not None and known.row.is_over and changed and changed == known.changed:
                known.at = now
                return known
            row = read_row(found, functools.partial(self._ended, found, asks))
        except RequestError as error:
            row, changed = damaged(id, error.message), 0.0
        except Exception as error:
            # Whatever programs left in one job, the list of all jobs stays.
            row, changed = damaged(id, str(error) if isinstance(error, UserError) else files.reason(error)), 0.0
        known = self._known[id] = _Known(row, now, changed)
        return known

    def _ended(self, found: Found, asks: bool, launched: JobEvent) -> str | None:
        """Return how a launcher has ended; what only Slurm or Ray can tell, the thread asks now and then."""
        kind = found.spec.settings.get("kind", "local") if found.spec is not None else "local"
        if kind == "local":
            return ended_here(launched)
        # Most jobs need nothing of what speaks to clusters.
        from torch_estimator.jobs.kinds import KINDS

        if kind not in KINDS:
            return ended_here(launched)
        at, said = self._asked.get(found.id, (0.0, None))
        if asks and time.monotonic() - at > _ASK_SECS:
            try:
                said = None if found.job is None else KINDS[kind].ended(found.job, launched)
            except (UserError, OSError):
                said = None
            self._asked[found.id] = time.monotonic(), said
        return said

    def _run(self) -> None:
        self._rows(self._sources.entries()[:PAGE], time.monotonic() + _MOST_SECS)
        self._has_first_page.set()
        # Then the first visitor comes, whom further rows would make wait.
        self._ends.wait(_FIRST_PASS_SECS)
        while not self._ends.is_set():
            entries = self._sources.entries()
            there = {one.id for one in entries}
            for id in [one for one in self._known if one not in there]:
                self._known.pop(id, None)
                self._asked.pop(id, None)
            for entry in entries:
                # Requests come first: this thread shares Python's lock with them.
                if self._ends.wait(0.001):
                    return
                self._read(entry.id, asks=True)
            self._ends.wait(_PASS_SECS)
