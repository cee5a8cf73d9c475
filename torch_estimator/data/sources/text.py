"""Text files as a source: each line is a row with one column of strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Array
from torch_estimator.data.sources.base import Reader, ReadRequest, Source
from torch_estimator.data.sources.input_files import (
    ByteFile,
    Files,
    as_patterns,
    expand,
    file_version,
    files_signature,
    identify,
)
from torch_estimator.data.sources.text_lines import LineRanges, Piece, count_lines, named_files, open_text_file
from torch_estimator.data.stream import Signature
from torch_estimator.errors import DataError, InvalidTypeError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TextSource:
    """Source of the lines of text files (paths, URLs and globs), which are in the column `column`."""

    patterns: tuple[str, ...]
    column: str

    def open(self, request: ReadRequest) -> Reader:
        """Open the files and return a reader.

        Raise a DataError if there is no file, or one is empty or cannot be read.
        """
        opened = [open_text_file(path) for path in expand(self.patterns)]
        return _TextReader(LineRanges(opened, [0] * len(opened)), opened, self.column, request)


def text_source(files: Files, column: str) -> Source:
    """Return a source of the lines of text files; see `Dataset.from_text`."""
    if not isinstance(column, str) or not column:
        raise InvalidTypeError(f"column must be the name of the column of lines, but got {column!r}.")
    return TextSource(patterns=as_patterns(files), column=column)


class _TextReader(Reader):
    def __init__(self, lines: LineRanges, files: Sequence[ByteFile], column: str, request: ReadRequest) -> None:
        self._lines = lines
        self._files = files
        self._column = column
        self._request = request
        sample = lines.read(np.arange(min(len(lines), 1)))
        rows = sum(len(_split(piece)) for piece in sample)
        self.ranges = len(lines)
        self.bytes_per_row = max(1.0, sum(len(piece.data) for piece in sample) / max(rows, 1))
        self.rows_per_range = lines.bytes / self.bytes_per_row / max(self.ranges, 1)

    def read(self, ranges: Array) -> Chunk:
        pieces = self._lines.read(ranges)
        lines = [line for piece in pieces for line in _split(piece)]
        locate = _Locator(self._files, pieces)
        try:
            column = pa.array(lines, pa.binary()).cast(pa.string()).dictionary_encode()
        except pa.ArrowInvalid as error:
            raise _not_utf8(lines, locate) from error
        return self._request.labelled(Chunk({self._column: column}, None, len(lines), locate))

    def signature(self) -> Signature:
        return {"source": "text", "files": files_signature([identify(file) for file in self._files])}

    def identity(self) -> Signature:
        return {**self.signature(), "versions": [file_version(file.url) for file in self._files]}


def _split(piece: Piece) -> list[bytes]:
    lines = bytes(piece.data).split(b"\n")
    # The data ends with a newline, after which no line begins.
    return [line[:-1] if line.endswith(b"\r") else line for line in lines[:-1]]


@dataclass(frozen=True, slots=True)
class _Locator:
    files: Sequence[ByteFile]
    pieces: Sequence[Piece]

    def __call__(self, row: int) -> str:
        for piece in self.pieces:
            lines = bytes(piece.data).split(b"\n")[:-1]
            if row < len(lines):
                file = self.files[piece.file]
                before = piece.start + sum(len(line) + 1 for line in lines[:row])
                return f"{file.url}, line {count_lines(file, before) + 1}"
            row -= len(lines)
        return named_files(self.files)


def _not_utf8(lines: Sequence[bytes], locate: _Locator) -> DataError:
    for row, line in enumerate(lines):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return DataError(f"{locate(row)}: the line is not UTF-8 text ({error.reason}).")
    raise AssertionError
