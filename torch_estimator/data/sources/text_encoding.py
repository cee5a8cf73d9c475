"""Text files that are compressed or not in UTF-8: recognize them by their first bytes, and convert them to UTF-8.

They are converted into temporary files, since they cannot be read from any position.
"""

from __future__ import annotations

import bz2
import codecs
import itertools
import logging
import lzma
import re
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from torch_estimator.data.sources.input_files import gunzipped
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError

logger = logging.getLogger("torch_estimator")

HEAD_BYTES = 4096
"""Length of the first bytes that tell what a file is."""

_BLOCK_BYTES = 2**20
_ASCII = "".join(map(chr, range(128)))
_COMPRESSIONS = {
    "gzip": rb"\x1f\x8b\x08",
    "bzip2": rb"BZh[1-9]1AY&SY",
    "xz": rb"\xfd7zXZ\x00",
    "zstd": rb"\x28\xb5\x2f\xfd",
    "lz4": rb"\x04\x22\x4d\x18",
    "zip": rb"PK\x03\x04",
}
_UNREADABLE = {
    "a 7-Zip archive": rb"7z\xbc\xaf\x27\x1c",
    "a RAR archive": rb"Rar!\x1a\x07",
    "compressed by compress": rb"\x1f\x9d",
    "a tar archive": rb"(?s:.{257})ustar",
}
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def check_encoding(encoding: object) -> str:
    """Return the usual name of an encoding; raise an InvalidTypeError or InvalidValueError unless it is one of text."""
    if not isinstance(encoding, str):
        raise InvalidTypeError(f"encoding must be the name of an encoding, such as 'latin-1', but got {encoding!r}.")
    try:
        " ".encode(encoding).decode(encoding)
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError) as error:
        raise InvalidValueError(
            f"encoding must be the name of an encoding of text, such as 'utf-8', 'latin-1', 'cp1252' or 'utf-16', but "
            f"got {encoding!r}."
        ) from error
    return "utf-8" if name == "utf-8-sig" else name


def compression(head: bytes) -> str | None:
    """Return how a file with these first bytes is compressed."""
    return next((name for name, mark in _COMPRESSIONS.items() if re.match(mark, head)), None)


def check_readable(url: str, head: bytes, encoding: str | None) -> None:
    """Raise a DataError if the first bytes, after decompression, are those of an archive or of another encoding."""
    for kind, mark in _UNREADABLE.items():
        if re.match(mark, head):
            raise DataError(f"{url} is {kind}, which is not read; decompress it, or compress it with gzip.")
    exact = next((name for mark, name in _MARKS if head.startswith(mark)), encoding or "utf-8")
    found = exact.removesuffix("-le").removesuffix("-be")
    if (encoding or "utf-8") in (exact, found):
        return
    if encoding in (None, "utf-8"):
        cure = "write it in UTF-8" if encoding is None else f"give encoding={found!r}"
        raise DataError(f"{url} is encoded in {found.upper()}, which is not read; {cure}.")
    raise DataError(
        f"{url}, line 1: encoding is {encoding!r}, but the file begins with the byte order mark of {found.upper()}; "
        f"give encoding={found!r}."
    )


def unpacked(url: str, file: BinaryIO, kind: str | None) -> Iterator[bytes]:
    """Yield the content of a file that is compressed in a way that `compression` returns."""
    if kind == "gzip":
        yield from gunzipped(file)
        return
    stream: Any = file
    if kind == "zip":
        stream = _only_member(url, zipfile.ZipFile(file))
    elif kind == "bzip2":
        stream = bz2.BZ2File(file)
    elif kind == "xz":
        stream = lzma.LZMAFile(file)  # noqa: SIM115
    elif kind is not None:
        stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), kind)
    while block := stream.read(_BLOCK_BYTES):
        yield block


def _only_member(url: str, archive: zipfile.ZipFile) -> Any:
    names = [one.filename for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX")]
    if "[Content_Types].xml" in names:
        raise DataError(f"{url} is a workbook or document of an office program; save it as text, such as CSV.")
    if len(names) != 1:
        raise DataError(f"{url} is a zip file of {len(names)} files, but one is expected; unpack it.")
    return archive.open(names[0])


def decoded(url: str, blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Convert text in another encoding to UTF-8; raise a DataError with the line of bytes that the encoding lacks."""
    found = iter(blocks)
    head = next(found, b"")
    decoder = codecs.getincrementaldecoder(_byte_order(url, head[:HEAD_BYTES], encoding))()
    utf8: Any = None if encoding.startswith("utf") else codecs.getincrementaldecoder("utf-8")()
    line, first = 1, 0
    for block in itertools.chain((head,), found, (b"",)):
        state = decoder.getstate()
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            decoder.setstate(state)
            line += decoder.decode(block[: max(error.start - len(state[0]), 0)]).count("\n")
            wrong = " ".join(f"{byte:#04x}" for byte in error.object[error.start : error.end][:4])
            raise DataError(
                f"{url}, line {line}: the file is not in {encoding}, which encoding says: {wrong} ({error.reason})."
            ) from error
        if utf8 is not None:
            try:
                if not utf8.decode(block, final=not block).isascii():
                    first = first or line + text[: len(text) - len(text.lstrip(_ASCII))].count("\n")
            except UnicodeDecodeError:
                utf8 = None
        line += text.count("\n")
        yield text.encode()
    if utf8 is not None and first:
        logger.warning(
            "%s, line %d: encoding is %r, but the whole file is UTF-8; give encoding='utf-8', unless its letters are "
            "right as they are.",
            *(url, first, encoding),
        )


def _byte_order(url: str, head: bytes, encoding: str) -> str:
    """Return an encoding with the byte order, which the zero bytes tell if neither its name nor a mark does."""
    if not encoding.startswith("utf-16") or any(head.startswith(mark) for mark, _ in _MARKS):
        return encoding
    # Line ends and delimiters have a zero byte.
    first, second = head[::2].count(0), head[1::2].count(0)
    if not first and not second:
        raise DataError(
            f"{url}, line 1: the file is not in {encoding}, which encoding says: no line end or delimiter "
            "is written in it; leave encoding out, or name that of the file."
        )
    return encoding if encoding != "utf-16" else "utf-16-be" if first > second else "utf-16-le"
