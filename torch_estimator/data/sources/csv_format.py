"""The format of CSV: delimiter, quotes, and how text is split into records and fields."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator.data.columns import Array
from torch_estimator.errors import InvalidValueError

_NEWLINE = ord("\n")
_RETURN = ord("\r")


DELIMITERS = ";\t|,"
"""Characters that files often have between columns."""

USUAL_MARKS = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?", "-", ".")
"""Marks of missing values that files often have, for messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvFormat:
    """Format of CSV. Text is split into records and fields in the same way as by Arrow's parser.

    The delimiter is one character, and so is `quote_char` around fields that hold it or a line end; with None, quotes
    have no special meaning. `header` says whether the first line names the columns. `missing_values` are fields that
    stand for a missing value, besides the empty one.
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

    def fields(self, record: str) -> list[str]:
        """Return the fields of one record, which ends in the text.

        >>> CsvFormat().fields('1,"a,""b",c"d')
        ['1', 'a,"b', 'c"d']
        """
        text, quote = record.rstrip("\r\n"), self.quote_char
        if quote is None:
            return text.split(self.delimiter)
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
                    return [*fields, value]
                start = end + 1
            stop = text.find(self.delimiter, start)
            if stop < 0:
                return [*fields, value + text[start:]]
            fields.append(value + text[start:stop])
            start = stop + 1

    def records(self, data: bytes | memoryview) -> list[bytes]:
        """Return the records of a text, each with its line end. A carriage return ends one, as in Arrow's parser.

        >>> CsvFormat().records(b'1,"a\\nb"\\r\\n2,c\\n')
        [b'1,"a\\nb"\\r\\n', b'2,c\\n']
        """
        text = bytes(data)
        ends = self._ends(np.frombuffer(text, np.uint8), returns=True).tolist()
        if text and (not ends or ends[-1] < len(text)):
            ends.append(len(text))
        return [text[start:stop] for start, stop in itertools.pairwise([0, *ends])]

    def ends(self, data: bytes) -> Array:
        """Return the positions after the newlines outside quoted fields. The data begins with a record."""
        return self._ends(np.frombuffer(data, np.uint8), returns=False)

    def opening(self, data: bytes) -> int | None:
        """Return the position of the quote that is open at the data's end, if any. The data begins with a record."""
        array = np.frombuffer(data, np.uint8)
        fields = self._quoted(array, self._quotes(array))
        return fields[-1][0] if fields and fields[-1][1] > len(data) else None

    def is_by_line(self, data: bytes | memoryview) -> bool:
        """Return whether each of these lines is a record, with no sign that the first one is the rest of a record.

        Such a sign is a quote that neither encloses a field nor is doubled in one.
        """
        # Look for a quote in the bytes that the view is of, which is several times faster than numpy.
        text: Any = data.obj if isinstance(data, memoryview) else data
        if self.quote_char is None or self.quote_char.encode() not in text:
            return True
        array = np.frombuffer(data, np.uint8)
        quotes = self._quotes(array)
        if not self._is_strict(array, quotes):
            return False
        newlines = np.flatnonzero(array == _NEWLINE)
        return not np.any(np.searchsorted(quotes, newlines) & 1)

    def _ends(self, array: Array, *, returns: bool) -> Array:
        marks = array == _NEWLINE
        if returns:
            is_return = array == _RETURN
            is_return[:-1] &= array[1:] != _NEWLINE
            marks |= is_return
        ends: Array = np.flatnonzero(marks)
        quotes = self._quotes(array)
        if len(quotes) and self._is_strict(array, quotes):
            ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
        elif len(quotes):
            starts, stops = np.array([(-1, 0), *self._quoted(array, quotes)], np.int64).T
            ends = ends[stops[np.searchsorted(starts, ends) - 1] <= ends]
        return ends + 1

    def _quotes(self, array: Array) -> Array:
        places: Array = np.flatnonzero(array == ord(self.quote_char)) if self.quote_char is not None else array[:0]
        return places

    def _is_strict(self, array: Array, quotes: Array) -> bool:
        """Return whether each quote encloses a field or is doubled in one, so that quotes open and close by turns.

        `quotes` are the positions of all quotes.
        """
        is_border = np.zeros(256, np.bool_)
        is_border[[ord(self.delimiter), ord(self.quote_char or ""), _NEWLINE, _RETURN]] = True
        before = array[np.maximum(quotes[::2] - 1, 0)]
        after = array[np.minimum(quotes[1::2] + 1, len(array) - 1)]
        return bool(is_border[before].all() and is_border[after].all())

    def _quoted(self, array: Array, quotes: Array) -> list[tuple[int, int]]:
        """Return where each quoted field begins, and the position after it: behind the data if the field does not end.

        `quotes` are the positions of all quotes.
        """
        before = array[np.maximum(quotes - 1, 0)]
        begins = (np.isin(before, [ord(self.delimiter), _NEWLINE, _RETURN]) | (quotes == 0)).tolist()
        places = quotes.tolist()
        fields = []
        at = 0
        while at < len(places):
            if begins[at]:
                start = places[at]
                at += 1
                while at + 1 < len(places) and places[at + 1] == places[at] + 1:
                    at += 2
                fields.append((start, places[at] + 1 if at < len(places) else len(array) + 1))
            at += 1
        return fields
