"""TFRecord files in random order: small ranges of bytes, and the whole records that begin in them.

Records follow each other without a separator. The reader of a range in the middle of a file finds the first record in
it by the checksum in a record's header, as the reader of a range of text finds the next line end. The records that it
then follows must be whole, and another header or the end of the file must come after them. Opening a file therefore
reads nothing of it, whatever its size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torch_estimator.data.columns import Array
from torch_estimator.data.sources.byte_ranges import ByteRanges
from torch_estimator.data.sources.input_files import ByteFile, open_byte_file
from torch_estimator.errors import DataError
from torch_estimator.tfrecord.engine import BAD_DATA, NEEDS_MORE, engine
from torch_estimator.tfrecord.records import FOOTER_BYTES, HEADER_BYTES

_SLACK_BYTES = 4096
_MOST_BYTES = 2**31
_GZIP_MAGIC = b"\x1f\x8b"

NO_HEADER = "no record begins here, since the checksum of its length is wrong"
BAD_CONTENT = "the record is damaged, since the checksum of its content is wrong"
CUT_OFF = "the file ends within the record"
TOO_LONG = "the record is longer than 2 GiB, which no tf.Example is"


@dataclass(frozen=True, slots=True)
class RecordPiece:
    """Consecutive records of a file, whose bytes `data` begin at the byte `start` of the file.

    In `data` the content of each record begins at `starts` and has the length in `lengths`, both int64 ``[records]``.
    `damage` has the positions in the file of the records that were left out, and why.
    """

    file: int
    start: int
    data: bytes
    starts: Array
    lengths: Array
    damage: tuple[tuple[int, str], ...]

    def parts(self, size: int) -> Iterator[RecordPiece]:
        """Yield the records in order, in pieces of about `size` bytes that share the bytes of this piece."""
        ends = np.arange(size, self.starts[-1] + size, size) if len(self.starts) else np.array([size])
        damage = self.damage
        for rows in np.split(np.arange(len(self.starts)), np.searchsorted(self.starts, ends[:-1])):
            yield replace(self, starts=self.starts[rows], lengths=self.lengths[rows], damage=damage)
            damage = ()


class RecordRanges(ByteRanges):
    """The records of several files, in numbered ranges. A record belongs to the range in which it begins.

    Damaged records are errors, or are left out if `ignore_errors`.
    """

    def __init__(self, opened: Sequence[ByteFile], *, ignore_errors: bool) -> None:
        super().__init__(opened, [0] * len(opened))
        self._ignore_errors = ignore_errors
        # Where the first record of a range begins, by file and start of the range, as far as that is known. A run of
        # ranges knows where the next one goes on, so that only the first range of a run has to search.
        self._known = {(number, 0): 0 for number in range(len(opened))}
        # Ranges of which `_exact_start` has been asked.
        self._traced: set[tuple[int, int]] = set()

    def read(self, ranges: Array) -> list[RecordPiece]:
        """Return the records of some ranges, in their order; raise a DataError if a record is damaged.

        Those of neighboring ranges are read at once, as one piece.
        """
        return self.in_order(ranges, self._read_file)

    def sample(self) -> RecordPiece | None:
        """Return the records of the first range in which one begins; None if there is no record."""
        for number in range(len(self)):
            (piece,) = self.read(np.array([number]))
            if len(piece.starts):
                return piece
        return None

    def _read_file(self, number: int, runs: Sequence[tuple[int, int]]) -> list[RecordPiece]:
        file = self._files[number]
        wide = [(start, stop + _SLACK_BYTES) for start, stop in runs]
        return [
            self._records(number, data, start, stop)
            for (start, stop), data in zip(runs, file.read_many(wide), strict=True)
        ]

    def _records(self, number: int, data: bytes, begin: int, stop: int) -> RecordPiece:
        """Return the records that begin from `begin` up to `stop` in a file.

        `data` are the bytes of the file from `begin` to a little after `stop`.
        """
        file = self._files[number]
        first = self._known.get((number, begin))
        if first is None and (found := engine().find(data, 0, stop - begin)) >= 0:
            first = self._known[number, begin] = begin + found
        position = first
        starts, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        damage: list[tuple[int, str]] = []
        while position is not None and position < stop:
            scan = engine().scan(data, position - begin, stop - begin)
            starts.append(scan.starts)
            lengths.append(scan.lengths)
            position = begin + scan.end
            problem = NO_HEADER
            if not scan.status:
                # The record after the last one belongs to another range. Check that it begins where it should, since
                # that range would not miss it.
                data = _extended(file, data, begin, position + HEADER_BYTES)
                self._learn(number, stop, position)
                if position == file.size or engine().find(data, position - begin, position - begin + 1) >= 0:
                    break
                if position + HEADER_BYTES > file.size:
                    problem = CUT_OFF
            elif scan.status == NEEDS_MORE:
                wanted = _end(data, begin, position)
                if wanted <= min(file.size, position + _MOST_BYTES):
                    data = _extended(file, data, begin, wanted)
                    continue
                problem = CUT_OFF if wanted > file.size else TOO_LONG
            elif scan.status == BAD_DATA:
                problem = BAD_CONTENT
            if problem != BAD_CONTENT and (exact := self._exact_start(number, begin)) not in (None, first):
                # What looked like the header of a record was the content of one.
                self._known[number, begin] = exact
                return self._records(number, data, begin, stop)
            if not self._ignore_errors:
                raise DataError(f"{named(file, position)}: {problem}; from_tfrecord(ignore_errors=True) leaves it out.")
            damage.append((position, problem))
            position = _next(data, begin, position, stop, problem)
        return RecordPiece(number, begin, data, np.concatenate(starts), np.concatenate(lengths), tuple(damage))

    def _learn(self, number: int, stop: int, position: int) -> None:
        """Remember where the next record begins after the end of a run, and compare it with what was found there."""
        file = self._files[number]
        for begin in range(stop, min(position, file.size - 1) + 1, self._step):
            end = min(begin + self._step, file.size)
            known = self._known.setdefault((number, begin), position)
            if known < min(position, end):
                raise DataError(
                    f"{named(file, known)}: a record was read here that is a part of the record before, which seems to "
                    "hold a TFRecord file itself; read such files in order, without shuffle."
                )

    def _exact_start(self, number: int, begin: int) -> int | None:
        """Return where the first record of a range begins, by following all headers before it; None if one is damaged.

        This takes long, so it is done once at most for a range, before a record in it is reported as damaged.
        """
        file = self._files[number]
        if (number, begin) in self._traced:
            return None
        self._traced.add((number, begin))
        position = 0
        while position < begin:
            header = file.read(position, position + HEADER_BYTES)
            if engine().find(header, 0, 1) < 0:
                return None
            position = _end(header, position, position)
        return position


def open_records(url: str) -> ByteFile:
    """Open a TFRecord file, and decompress it if it is gzip or zlib, which its first bytes tell."""
    file = open_byte_file(url, unpack=False)
    head = file.read(0, HEADER_BYTES)
    if engine().find(head, 0, 1) == 0 or len(head) < 2:
        return file
    is_zlib = head[0] & 15 == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0
    return open_byte_file(url, unpack=True) if is_zlib or head.startswith(_GZIP_MAGIC) else file


def named(file: ByteFile, position: int) -> str:
    """Return the name of a file and a position in it, for messages."""
    return f"{file.url}, byte {position}"


def _next(data: bytes, begin: int, position: int, stop: int, problem: str) -> int | None:
    """Return where the records go on after a damaged one; None if no further one begins before `stop`."""
    if problem == BAD_CONTENT:
        return _end(data, begin, position)
    found = engine().find(data, position + 1 - begin, stop - begin)
    return None if found < 0 else begin + found


def _end(data: bytes, begin: int, position: int) -> int:
    """Return the end of a record, or of its header if `data`, which begins at `begin`, does not hold the header."""
    at = position - begin
    if at + HEADER_BYTES > len(data):
        return position + HEADER_BYTES
    (length,) = struct.unpack_from("<Q", data, at)
    return position + HEADER_BYTES + int(length) + FOOTER_BYTES


def _extended(file: ByteFile, data: bytes, begin: int, end: int) -> bytes:
    """Return the bytes of a file from `begin` to at least `end`, of which `data` are the first."""
    known = begin + len(data)
    return data if known >= min(end, file.size) else data + file.read(known, end + _SLACK_BYTES)
