"""The format of CSV lines: delimiter, quotes, and how a line is split into fields."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_estimator.errors import InvalidValueError

_NEWLINE = ord("\n")
_RETURN = ord("\r")


USUAL_MARKS = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?", "-", ".")
"""Marks of missing values that files often have, for messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvFormat:
    """Format of CSV lines. Lines are split into fields in the same way as by Arrow's parser.

    The delimiter is one character, and so is `quote_char` around fields that hold it; with None, quotes have no special
    meaning. `header` says whether the first line names the columns. `missing_values` are fields that stand for a
    missing value, besides the empty one.
    """

    delimiter: str = ","
    quote_char: str | None = '"'
    header: bool = False
    missing_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("delimiter", "quote_char"):
            value = getattr(self, name)
            if name == "quote_char" and value is None:
                continue
            if not isinstance(value, str) or len(value) != 1 or value in "\r\n" or ord(value) > 127:
                raise InvalidValueError(f"{name} must be one ASCII character, but got {value!r}.")

    def fields(self, line: str) -> list[str]:
        """Return the fields of one line.

        >>> CsvFormat().fields('1,"a,""b",c"d')
        ['1', 'a,"b', 'c"d']
        """
        return self._split(line)[0]

    def is_open(self, line: str) -> bool:
        """Return whether the last field of a line has an opening quote and no closing one."""
        return self._split(line)[1]

    def open_quote_problem(self) -> str:
        """Return the error message for a line whose last field has an opening quote and no closing one."""
        return f"a quoted field ({self.quote_char}) does not end on this line; a field cannot hold a newline"

    def joins_lines(self, data: bytes, rows: int) -> bool:
        """Return whether a quoted field does not end on its line, so that Arrow may join lines to one row.

        `rows` is the number of rows that Arrow found in these whole lines.
        """
        if self.quote_char is None or self.quote_char.encode() not in data:
            return False
        # Count line ends first, because this is fast and suffices for the common case, data without blank lines.
        if rows != _count_line_ends(data) and rows != count_filled(data):
            return True
        # An open field on the last line joins no lines, so the counts agree. Check the last line separately.
        return self.is_open(_last_filled(data).decode("latin-1"))

    def _split(self, line: str) -> tuple[list[str], bool]:
        text, quote = line.rstrip("\r\n"), self.quote_char
        if quote is None:
            return text.split(self.delimiter), False
        fields: list[str] = []
        start = 0
        while True:
            value = ""
            # A quote has a special meaning only at the very beginning of a field.
            if text.startswith(quote, start):
                end = text.find(quote, start + 1)
                while end >= 0 and text.startswith(quote, end + 1):
                    end = text.find(quote, end + 2)
                value = text[start + 1 : end if end >= 0 else None].replace(quote * 2, quote)
                if end < 0:
                    return [*fields, value], True
                start = end + 1
            stop = text.find(self.delimiter, start)
            if stop < 0:
                return [*fields, value + text[start:]], False
            fields.append(value + text[start:stop])
            start = stop + 1


def _count_line_ends(data: bytes) -> int:
    # Count with numpy, which is several times faster here than bytes.count.
    array = np.frombuffer(data, np.uint8)
    ends = np.count_nonzero(array == _NEWLINE)
    if b"\r" in data:
        returns = array == _RETURN
        returns[:-1] &= array[1:] != _NEWLINE
        ends += np.count_nonzero(returns)
    return int(ends)


def _last_filled(data: bytes) -> bytes:
    """Return the last line of `data` that is not blank."""
    stop = len(data)
    while stop and data[stop - 1] in b"\r\n":
        stop -= 1
    start = data.rfind(b"\n", 0, stop) + 1
    return data[max(start, data.rfind(b"\r", start, stop) + 1) : stop]


def count_filled(data: bytes) -> int:
    """Return the number of lines in `data` that are not blank. A carriage return ends a line, as in Arrow's parser."""
    return sum(map(bool, data.splitlines()))
