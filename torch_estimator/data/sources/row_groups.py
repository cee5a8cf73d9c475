"""Row groups of Parquet files: finding them, slices of them, and reading one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from torch_estimator import files
from torch_estimator.data.sources.input_files import check_regular
from torch_estimator.errors import DataError

_SLICE_ROWS = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroup:
    """Consecutive rows of one row group in a Parquet file, of `bytes` bytes uncompressed.

    `first` is the number of the row group's first row in the file, and `start` the number of the first of these rows in
    the row group.
    """

    url: str
    group: int
    first: int
    start: int
    rows: int
    bytes: int

    def slices(self) -> Iterator[RowGroup]:
        """Yield the same rows in slices of at most 65,536 rows."""
        for start in range(0, self.rows, _SLICE_ROWS):
            rows = min(_SLICE_ROWS, self.rows - start)
            yield RowGroup(
                url=self.url,
                group=self.group,
                first=self.first,
                start=start,
                rows=rows,
                bytes=self.bytes * rows // self.rows,
            )


class RowGroups:
    """Reads row groups, and keeps the last one, of which a reader often asks for another slice next."""

    def __init__(self) -> None:
        self._last: tuple[tuple[str, int], pa.Table] | None = None

    def read(self, url: str, group: int, columns: Sequence[str], texts: Sequence[str]) -> pa.Table:
        """Return columns of a row group, which are the same for each call with the file.

        Those in `texts` hold strings, and are read dictionary encoded. Raise a DataError if the row group cannot be
        read, or is damaged.
        """
        if self._last is None or self._last[0] != (url, group):
            self._last = None
            with open_parquet(url, texts) as file:
                table = file.read_row_group(group, columns=columns, use_threads=False)
                # Validate the table, because reading checks neither that strings are UTF-8 nor that indices are within
                # their dictionary.
                table.validate(full=True)
            self._last = (url, group), table
        return self._last[1]


@contextmanager
def open_parquet(url: str, texts: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a local or remote Parquet file; read the columns `texts` dictionary encoded, as most files store strings."""
    try:
        if files.is_local(url):
            check_regular(url)
            with pq.ParquetFile(url, read_dictionary=texts) as file:
                yield file
            return
        import fsspec

        with fsspec.open(url, "rb") as stream, pq.ParquetFile(stream, read_dictionary=texts) as file:
            yield file
    except DataError:
        raise
    except (OSError, ImportError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{url} cannot be read as Parquet: {files.reason(error)}.") from error


def row_groups(url: str, metadata: pq.FileMetaData) -> Iterator[RowGroup]:
    """Yield the row groups of a file that have rows."""
    first = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows:
            rows, size = group.num_rows, group.total_byte_size
            yield RowGroup(url=url, group=number, first=first, start=0, rows=rows, bytes=size)
        first += group.num_rows
