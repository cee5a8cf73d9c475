"""Numbered files: what several processes add to a directory, as object stores cannot append to a file."""

from __future__ import annotations

from typing import Any

from torch_estimator import files
from torch_estimator.runs.state_file import encoded

_DIGITS = 8


class NumberedFiles:
    """The files ``00000001.json``, ``00000002.json`` and so on in a directory or below a URL, each written once."""

    def __init__(self, url: str) -> None:
        self.url = url

    def add(self, value: Any) -> int:
        """Write a value with the next number, which no other writer gets, and return the number."""
        while True:
            number = max(self.numbers(), default=0) + 1
            path = self.path(number)
            if not files.can_create(path):
                # Two writers at the same moment would go unnoticed, as in a registry on such a store.
                files.write_atomic(path, encoded(value))
                return number
            if files.create(path, encoded(value)):
                return number

    def numbers(self) -> list[int]:
        """Return the numbers that there are, ascending."""
        stems = (name.removesuffix(".json") for name in files.listdir(self.url))
        return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())

    def path(self, number: int, suffix: str = ".json") -> str:
        """Return the path of a file, or of one beside it with another suffix."""
        return files.join(self.url, f"{number:0{_DIGITS}}{suffix}")
