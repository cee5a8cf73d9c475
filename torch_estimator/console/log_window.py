"""Parts of a job's logs: the last lines, those around a time, and what is new since a page looked last.

Logs may be large, and lines may be of any length, so all of this reads a bounded part of each file.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from torch_estimator import files
from torch_estimator.console.texts import ROLE, clean
from torch_estimator.jobs.logs import RAW_SUFFIX

MOST_LINES = 300
"""Most lines that are shown at once."""

_BLOCK = 2**16
_MOST_BYTES = 2**22
_MOST_NEWS = 2**20
_LINE_BYTES = 8000
# The newest files of a role; on object stores a log has many.
_MOST_FILES = 8

_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:?\d\d|Z)?) ")
_WORD = re.compile(r"\b(ERROR|CRITICAL|Error|Exception|Traceback|WARNING)\b")


class Line(NamedTuple):
    """A line of a log: when it was written in seconds since 1970, its role, its text, and ``bad`` or ``warn``."""

    time: float
    role: str
    text: str
    level: str


@dataclass(frozen=True, slots=True)
class Window:
    """Some lines, by time. `cursor` says up to where the logs were read; `is_partial`, whether a search gave up."""

    lines: list[Line]
    cursor: str = ""
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The logs in a directory: those of all roles or of one, and of their lines all or those with a text."""

    directory: str
    role: str = ""
    text: str = ""

    def roles(self) -> list[str]:
        """Return the roles that have logs."""
        return sorted({_role_of(name) for name in _logs(self.directory)})

    def last(self, count: int = MOST_LINES) -> Window:
        """Return the last lines."""
        ends, lines, is_partial = self._sizes(), [], False
        for name, size in self._newest(ends):
            # The writer may be in the middle of the last line.
            data = files.read_part(files.join(self.directory, name), max(0, size - _BLOCK), size)
            ends[name] = size - len(data) + data.rfind(b"\n") + 1 or size
            found, was_cut = self._before(name, ends[name], count)
            lines += found
            is_partial = is_partial or was_cut
        # Only a search misses something if it gives up.
        return Window(_by_time(lines)[-count:], _cursor(ends), is_partial and bool(self.text))

    def last_time(self) -> float:
        """Return when the last line was written, in seconds since 1970; 0 if that is not known."""
        times = [0.0]
        for name, size in self._newest(self._sizes()):
            data = files.read_part(files.join(self.directory, name), max(0, size - _LINE_BYTES), size)
            found = (_TIME.match(line) for line in reversed(data.split(b"\n")))
            times += [_seconds(match[1]) for match in found if match is not None][:1]
        return max(times)

    def around(self, time: float) -> Window:
        """Return the lines before and after a time."""
        before: list[Line] = []
        after: list[Line] = []
        for name, size in self._newest(self._sizes()):
            place = self._place_of(name, size, time)
            before += self._before(name, place, MOST_LINES // 2)[0]
            data = files.read_part(files.join(self.directory, name), place, min(size, place + 4 * _BLOCK))
            after += self._matching(name, data, is_first=True)
        return Window([*_by_time(before)[-MOST_LINES // 2 :], *_by_time(after)[: MOST_LINES // 2]])

    def since(self, cursor: str) -> Window:
        """Return what was written since a cursor."""
        known, sizes, lines = _positions(cursor), self._sizes(), []
        ends = {}
        for name, size in sizes.items():
            position = known.get(name, 0) if known.get(name, 0) <= size else 0
            start = max(position, size - _MOST_NEWS)
            data = files.read_part(files.join(self.directory, name), start, size)
            if start > position:
                # As after a night in which nobody looked, or of a line that is too long to be shown.
                note = f"… {start - position:,} bytes are left out; load the page again to see them."
                lines.append(Line(0.0, _role_of(name), note, ""))
            # The writer may be in the middle of the last line.
            end = data.rfind(b"\n") + 1 or (len(data) if start > position else 0)
            lines += self._matching(name, data[:end], is_first=start == position)
            ends[name] = start + end
        return Window(_by_time(lines)[-MOST_LINES:], _cursor(ends))

    def _sizes(self) -> dict[str, int]:
        return {name: size for name, size in _logs(self.directory).items() if self.role in ("", _role_of(name))}

    def _newest(self, sizes: dict[str, int]) -> Iterator[tuple[str, int]]:
        by_role: dict[str, list[str]] = defaultdict(list)
        for name in sorted(sizes):
            by_role[_role_of(name)].append(name)
        for names in by_role.values():
            for name in names[-_MOST_FILES:]:
                yield name, sizes[name]

    def _before(self, name: str, end: int, count: int) -> tuple[list[Line], bool]:
        """Return the last lines before a place, and whether there may be more that were not looked at."""
        wanted = _BLOCK
        while True:
            start = max(0, end - wanted)
            data = files.read_part(files.join(self.directory, name), start, end)
            lines = self._matching(name, data, is_first=not start)
            if not start or len(lines) >= count or wanted >= _MOST_BYTES:
                return lines[-count:], bool(start) and len(lines) < count
            wanted *= 4

    def _place_of(self, name: str, size: int, time: float) -> int:
        """Return where the first line that was written at a time or later begins."""
        low, high, path = 0, size, files.join(self.directory, name)
        while high - low > 4096:
            middle = (low + high) // 2
            data = files.read_part(path, middle, min(size, middle + _BLOCK))
            found = _TIME.search(data, data.find(b"\n") + 1)
            if found is None or _seconds(found[1]) >= time:
                high = middle
            else:
                low = middle
        data = files.read_part(path, low, min(size, low + 2 * _BLOCK))
        place = data.find(b"\n") + 1 if low else 0
        while place < len(data):
            match = _TIME.match(data, place)
            if match is not None and _seconds(match[1]) >= time:
                break
            following = data.find(b"\n", place) + 1
            if not following:
                return low + len(data)
            place = following
        return low + place

    def _matching(self, name: str, data: bytes, *, is_first: bool) -> list[Line]:
        """Return the lines in a part of a file, which begins within a line unless it `is_first`."""
        parts = data.split(b"\n")
        if parts and not parts[-1]:
            parts.pop()
        if not is_first:
            parts = parts[1:] if len(parts) > 1 else parts
        role, wanted = _role_of(name), self.text.lower().encode(errors="replace")
        lines, time = [], 0.0
        if name.endswith(RAW_SUFFIX) and files.is_local(self.directory):
            time = os.stat(files.join(self.directory, name)).st_mtime
        for part in parts:
            match = _TIME.match(part)
            if match is not None:
                time = _seconds(match[1])
            if wanted and wanted not in part[:_LINE_BYTES].lower():
                continue
            text = part[match.end() if match is not None else 0 :]
            shown = clean(text[:_LINE_BYTES].decode(errors="replace"))
            if len(text) > _LINE_BYTES:
                shown = f"{shown[:1000]}… (of a line of {len(text):,} bytes)"
            level = _WORD.search(shown[:200])
            kind = "" if level is None else "warn" if level[1] == "WARNING" else "bad"
            lines.append(Line(time, role, shown, kind))
        return lines


def _logs(directory: str) -> dict[str, int]:
    try:
        sizes = files.sizes(directory) if directory else {}
    except NotADirectoryError:
        return {}
    return {name: size for name, size in sorted(sizes.items()) if _role_of(name)}


def _role_of(name: str) -> str:
    role = name.partition(".")[0] if name.endswith(".log") else ""
    return role if ROLE.fullmatch(role) else ""


def _by_time(lines: Iterable[Line]) -> list[Line]:
    """Return the lines of all roles, those of each in the order of writing, also if its clock was set back."""
    latest: dict[str, float] = {}
    timed = []
    for line in lines:
        latest[line.role] = max(latest.get(line.role, 0.0), line.time)
        timed.append((latest[line.role], line))
    return [line for _, line in sorted(timed, key=lambda one: one[0])]


def _seconds(text: bytes) -> float:
    try:
        return datetime.fromisoformat(text.decode()).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _cursor(positions: dict[str, int]) -> str:
    return ",".join(f"{name}:{place}" for name, place in positions.items())


def _positions(cursor: str) -> dict[str, int]:
    found = {}
    for part in cursor[:20_000].split(","):
        name, _, place = part.rpartition(":")
        if place.isdecimal() and len(place) < 20:
            found[name] = int(place)
    return found
