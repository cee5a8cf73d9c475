"""Finding the line that is to blame: slow, and only done when there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from torch_estimator.data.byte_files import ByteFile
from torch_estimator.data.lines import Piece, count_lines
from torch_estimator.errors import DataError, RowError


class Locator:
    """Knows from which lines of which files a window was put together.

    Args:
        files: The files.
        pieces: The window, in order.
        parse: Parses lines; raises pyarrow.ArrowInvalid where it cannot.
        problem: Says what is wrong with a line that Arrow refused with an error.
        blank: Characters that a line without a row consists of.
    """

    def __init__(
        self,
        files: Sequence[ByteFile],
        pieces: Sequence[Piece],
        parse: Callable[[bytes], Any],
        problem: Callable[[bytes, pa.ArrowInvalid], str],
        blank: bytes = b"\r\n",
    ) -> None:
        self._files = files
        self._pieces = pieces
        self._parse = parse
        self._problem = problem
        self._blank = blank

    def place(self, row: int) -> str:
        """Returns file and line (from 1) of a row; blank lines are lines, but no rows."""
        filled = (place for place, line in self._lines() if line.strip(self._blank))
        for _ in range(row):
            next(filled, None)
        where = next(filled, None)
        return self._files[0].url if where is None else self._named(*where)

    def row_error(self, error: RowError) -> DataError:
        """Return the error of a row whose value cannot be used."""
        return DataError(f"{self.place(error.row)}: column {error.column!r}: {error.problem}.")

    def parse_error(self, error: pa.ArrowInvalid) -> DataError:
        """Returns the error of the first line that cannot be parsed, which Arrow refused with ``error``."""
        lines = list(self._lines())
        good, bad = 0, len(lines)
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._is_fine(b"".join(line for _, line in lines[good:middle])):
                good = middle
            else:
                bad = middle
        place, line = lines[good]
        return DataError(f"{self._named(*place)}: {self._problem(line, error)}.")

    def _lines(self) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Yields file and offset, and text, of every line."""
        for piece in self._pieces:
            offset = piece.start
            for line in bytes(piece.data).splitlines(keepends=True):
                yield (piece.file, offset), line
                offset += len(line)

    def _named(self, file: int, offset: int) -> str:
        opened = self._files[file]
        return f"{opened.url}, line {count_lines(opened, offset) + 1}"

    def _is_fine(self, lines: bytes) -> bool:
        try:
            self._parse(lines)
        except pa.ArrowInvalid:
            return False
        return True


def first_words(error: pa.ArrowException) -> str:
    """Returns the first line of Arrow's message."""
    return str(error).splitlines()[0].rstrip(".")
