"""The reader of files that have a row on each line, for sources that parse lines with Arrow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import pyarrow as pa

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Array, Column
from torch_estimator.data.sources.base import Reader, ReadRequest
from torch_estimator.data.sources.csv_parser import CsvParser
from torch_estimator.data.sources.input_files import ByteFile
from torch_estimator.data.sources.json_parser import JsonParser
from torch_estimator.data.sources.left_out import LeftOut
from torch_estimator.data.sources.text_lines import LineLocator, LineRanges, Piece, joined, named_line, split_lines
from torch_estimator.errors import RowError


class LineReader(Reader):
    """Reader of lines, with the file and line of a row in errors.

    `bytes_per_row` is the mean length of a line. `ignore_errors` leaves out rows that cannot be read. `blank` are the
    characters that a line without a row consists of. `split` divides text into the lines of one row each.
    """

    def __init__(
        self,
        lines: LineRanges,
        opened: Sequence[ByteFile],
        parser: CsvParser | JsonParser,
        request: ReadRequest,
        *,
        bytes_per_row: float,
        ignore_errors: bool,
        blank: bytes = b"\r\n",
        split: Callable[[bytes], Sequence[bytes]] = split_lines,
    ) -> None:
        self._lines = lines
        self._files = opened
        self._line_parser = parser
        self._request = request
        self._split = split
        self._blank = blank
        self._left_out = LeftOut("row", lambda file, at: named_line(opened[file], at)) if ignore_errors else None
        self.ranges = len(lines)
        self.bytes_per_row = bytes_per_row
        self.rows_per_range = lines.bytes / max(len(lines), 1) / bytes_per_row

    def read(self, ranges: Array) -> Chunk:
        pieces = self._lines.read(ranges)
        try:
            data = joined(pieces)
            columns = self._columns(data)
        except (RowError, pa.ArrowInvalid) as error:
            if self._left_out is None:
                if self._lines.look_closer(pieces):
                    return self.read(ranges)
                raise self._locator(pieces).error(error) from error
            kept, damage = self._locator(pieces).without_wrong(self._columns)
            # If the first line of a piece is wrong, it may be the rest of a record that begins before it.
            wrong = {place[:2] for place in damage}
            if self._lines.look_closer([piece for piece in pieces if (piece.file, piece.start) in wrong]):
                return self.read(ranges)
            self._left_out.report(damage)
            data = joined(kept)
            columns = self._columns(data)
        if columns:
            rows = len(next(iter(columns.values())))
        else:
            rows = sum(1 for line in self._split(bytes(data)) if line.strip(self._blank))
        # To locate a row, read the ranges again. The chunk then need not keep the text of its rows in memory.
        return self._request.labelled(Chunk(columns, None, rows, lambda row: self._locate(ranges, row)))

    @abstractmethod
    def _column(self, name: str, array: pa.Array) -> Column:
        """Return a column of what was parsed, or raise a `RowError`."""

    def _columns(self, data: bytes | memoryview) -> dict[str, Column]:
        return {name: self._column(name, array) for name, array in self._line_parser.parse(data).items()}

    def _locate(self, ranges: Array, row: int) -> str:
        locator = self._locator(self._lines.read(ranges))
        if self._left_out is not None:
            locator = self._locator(locator.without_wrong(self._columns)[0])
        return locator.locate(row)

    def _locator(self, pieces: Sequence[Piece]) -> LineLocator:
        parser = self._line_parser
        return LineLocator(self._files, pieces, parser.parse, parser.problem, self._blank, self._split)
