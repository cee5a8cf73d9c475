"""Finding the line that is to blame: slow, and only done when there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from torch_estimator.data.byte_files import ByteFile
from torch_estimator.data.csv_parser import CsvParser
from torch_estimator.data.csv_schema import open_quote
from torch_estimator.data.lines import Piece, count_lines
from torch_estimator.errors import DataError

_MOST_SHOWN = 40


class Locator:
    """Knows from which lines of which files a window was put together.

    Args:
        files: The files.
        pieces: The window, in order.
        parser: What parses it.
    """

    def __init__(self, files: Sequence[ByteFile], pieces: Sequence[Piece], parser: CsvParser) -> None:
        self._files = files
        self._pieces = pieces
        self._parser = parser

    def place(self, row: int) -> str:
        """Returns file and line (from 1) of a row; blank lines are lines, but no rows."""
        filled = (place for place, line in self._lines() if line.strip(b"\r\n"))
        for _ in range(row):
            next(filled, None)
        where = next(filled, None)
        return self._files[0].url if where is None else self._named(*where)

    def parse_error(self, error: pa.ArrowInvalid) -> DataError:
        """Returns the error of the first line that cannot be parsed, which Arrow refused with ``error``."""
        lines = list(self._lines())
        good, bad = 0, len(lines)
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._error_in(b"".join(line for _, line in lines[good:middle])) is None:
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

    def _problem(self, line: bytes, error: pa.ArrowInvalid) -> str:
        schema = self._parser.schema
        text = line.decode("utf-8", errors="replace")
        fields = schema.format.fields(text)
        if schema.format.is_open(text):
            return open_quote(schema.format)
        if len(fields) != len(schema.names):
            return f"{len(fields)} fields, but there are {len(schema.names)} columns ({', '.join(schema.names)})"
        for name, kind in schema.types.items():
            if self._error_in(line, [name]) is not None:
                value = fields[schema.names.index(name)]
                if _is_number(value) and pa.types.is_floating(kind):
                    nan = f"defaults={{{name!r}: float('nan')}}"
                    return f"column {name!r}: {_shown(value)} is not a finite number ({kind}); give {nan} to allow it"
                hint = ""
                if name in schema.inferred and not pa.types.is_dictionary(kind):
                    hint = f" (inferred from the first rows; if that is wrong, give column_types={{{name!r}: ...}})"
                return f"column {name!r}: {_shown(value)} is not {_what(kind)}{hint}"
        return str(error).splitlines()[0].rstrip(".")

    def _error_in(self, data: bytes, columns: Sequence[str] | None = None) -> pa.ArrowInvalid | None:
        try:
            self._parser.parse(data, columns)
        except pa.ArrowInvalid as error:
            return error
        return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _what(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return "UTF-8 text"
    if pa.types.is_integer(kind):
        return f"a whole number ({kind})"
    return "true or false" if pa.types.is_boolean(kind) else f"a number ({kind})"


def _shown(value: str) -> str:
    return repr(value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…")
