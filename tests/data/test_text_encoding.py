"""Compressed text files, which their first bytes tell, and files in other encodings than UTF-8."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_estimator.data import Dataset
from torch_estimator.data.sources.text_encoding import decoded
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError


def zipped(*contents: bytes, name: str = "rows.csv") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("folder")
        for number, content in enumerate(contents):
            archive.writestr(name if not number else f"{number}{name}", content)
    return out.getvalue()


def tarred(content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("rows.csv")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pa.compress(data, "zstd", asbytes=True),
    "lz4": lambda data: pa.compress(data, "lz4", asbytes=True),
    "zip": zipped,
}


def fails(make: Callable[[], Dataset]) -> str:
    with pytest.raises(DataError) as raised:
        list(make().batch(1000))
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("kind", PACKERS)
def test_compressed_files_are_read_whatever_their_names(kind: str, tmp_path: Path) -> None:
    rows = "".join(f'{number},"a\n{number}"\n' for number in range(50_000))
    path = tmp_path / "part-00000"
    path.write_bytes(PACKERS[kind](f"x,s\n{rows}old,\n".encode()))
    data = Dataset.from_csv(path, column_types={"x": "int64"})
    assert fails(lambda: data) == f"{path}, line 100002: column 'x': 'old' is not a whole number (int64)."
    with fsspec.open(f"memory://packed/{kind}", "wb") as file:
        file.write(PACKERS[kind](b'{"x": 1}\n{"x": 2}\n'))
    assert [batch["x"].tolist() for batch in Dataset.from_json(f"memory://packed/{kind}").batch(3)] == [[1, 2]]


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_compressed_files_that_were_joined_are_read_to_the_end(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(PACKERS[kind](b"x\n1\n") + PACKERS[kind](b"2\n"))
    assert [batch["x"].tolist() for batch in Dataset.from_csv(path).batch(3)] == [[1, 2]]


@pytest.mark.parametrize("kind", PACKERS)
def test_a_compressed_file_that_is_cut_off_or_damaged_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    packed = PACKERS[kind](bytes(range(65, 91)) * 5000)
    path.write_bytes(packed[:-9])
    assert fails(lambda: Dataset.from_csv(path)).startswith(f"{path} cannot be read: ")
    path.write_bytes(packed[:40] + b"damaged" + packed[47:])
    assert fails(lambda: Dataset.from_csv(path)).startswith(f"{path} cannot be read: ")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (zipped(b"x\n1\n", b"x\n2\n"), " is a zip file of 2 files, but one is expected; unpack it."),
        (zipped(b"", name="[Content_Types].xml"), " is a workbook or document of an office program; save it as text"),
        (gzip.compress(tarred(b"x\n1\n")), " is a tar archive, which is not read; decompress it, or compress it with"),
        (b"7z\xbc\xaf\x27\x1c", " is a 7-Zip archive, which is not read; decompress it"),
        ("x,y\n1,2\n".encode("utf-16"), " is encoded in UTF-16, which is not read; "),
        (b"\xfe\xff\x00x", " is encoded in UTF-16, which is not read; "),
        (gzip.compress("x\n1\n".encode("utf-32")), " is encoded in UTF-32, which is not read; "),
    ],
    ids=["two files", "workbook", "tar.gz", "7z", "UTF-16", "UTF-16 big", "UTF-32.gz"],
)
@pytest.mark.parametrize("read", [Dataset.from_csv, Dataset.from_json, Dataset.from_text])
def test_what_is_not_read_is_named(content: bytes, problem: str, read: Any, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    message = fails(lambda: read(path))
    assert message.startswith(f"{path}{problem}")
    if "encoded" in problem:
        assert message.endswith("UTF-8." if read != Dataset.from_csv else f"give encoding={problem[15:21].lower()!r}.")


def test_text_that_begins_like_a_bzip2_file_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("BZh9\n7\n")
    assert next(iter(Dataset.from_csv(path).batch(2)))["BZh9"].tolist() == [7]


ENCODINGS = ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "shift_jis", "utf-8-sig", "UTF8"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("packed", [False, True])
def test_files_in_other_encodings_give_the_same_rows_and_lines(encoding: str, packed: bool, tmp_path: Path) -> None:
    letter = "ア" if encoding == "shift_jis" else "ü"
    rows = [f'{number},"{letter};{number}\n"' for number in range(40_000)]
    content = "\r\n".join([f"größe,{letter}" if letter == "ü" else f"x,{letter}", *rows, "old,"]).encode(encoding)
    path = tmp_path / "rows.csv"
    path.write_bytes(gzip.compress(content) if packed else content)
    data = Dataset.from_csv(path, encoding=encoding, ignore_errors=True)
    found = [text for batch in data.shuffle(100, seed=1).batch(1000) for text in batch[letter]]
    assert sorted(found) == sorted(f"{letter};{number}\n" for number in range(40_000))
    name = "größe" if letter == "ü" else "x"
    message = fails(lambda: Dataset.from_csv(path, encoding=encoding, column_types={name: "int64"}))
    assert message.startswith(f"{path}, line 80002: column {name!r}: 'old' is not a whole number (int64)")


@pytest.mark.parametrize("order", ["le", "be"])
def test_the_byte_order_of_utf_16_needs_no_mark(order: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("x,s\n1,日本\n2,ü\n".encode(f"utf-16-{order}"))
    (batch,) = Dataset.from_csv(path, encoding="utf-16").batch(3)
    assert batch["s"].tolist() == ["日本", "ü"]


TEXT = "x,s\n1,ü\n2,é\n"


@pytest.mark.parametrize(
    ("content", "encoding", "problem"),
    [
        (TEXT.encode(), "ascii", "line 2: the file is not in ascii, which encoding says: 0xc3 (ordinal not in range"),
        (TEXT.encode("latin-1"), "utf-16", "line 1: the file is not in utf-16, which encoding says: no line end or"),
        (TEXT.encode("utf-16")[:-1], "utf-16", "line 3: the file is not in utf-16, which encoding says: 0x0a (trunc"),
        (TEXT.encode("utf-16"), "latin-1", "line 1: encoding is 'iso8859-1', but the file begins with the byte order"),
        (TEXT.encode("utf-8-sig"), "cp1252", "line 1: encoding is 'cp1252', but the file begins with the byte order m"),
        (b"x,s\n1,a\n" * 2**19 + b"2,\x81\n", "cp1252", "line 1048577: the file is not in cp1252, which encoding says"),
        (
            TEXT.encode("latin-1"),
            "utf-8",
            "line 2: column 's': '�' is not UTF-8 text; if the file has another encoding",
        ),
        ("ü,s\n1,1\n".encode("latin-1"), "utf-8", "line 1: the header is not UTF-8 text; if the file has another enc"),
    ],
)
def test_an_encoding_that_is_wrong_is_named_with_the_line(
    content: bytes, encoding: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    assert fails(lambda: Dataset.from_csv(path, encoding=encoding)).startswith(f"{path}, {problem}")


def test_utf_8_that_is_called_another_encoding_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(TEXT.encode())
    list(Dataset.from_csv(path, encoding="cp1252").batch(3))
    assert f"{path}, line 2: encoding is 'cp1252', but the whole file is UTF-8; give encoding='utf-8'" in caplog.text
    caplog.clear()
    path.write_bytes(TEXT.encode("cp1252"))
    list(Dataset.from_csv(path, encoding="cp1252").batch(3))
    assert not caplog.messages


@settings(deadline=None)
@given(
    st.text(st.sampled_from("aü€\n\r,"), max_size=20),
    st.sampled_from(["cp1252", "utf-16", "utf-32", "gb18030"]),
    st.data(),
)
def test_text_is_decoded_wherever_blocks_end(text: str, encoding: str, draw: st.DataObject) -> None:
    content = f"x\n{text}".encode(encoding)
    # The byte order is told by the first block, which is never short in a file.
    cuts = sorted(
        {
            0,
            len(content),
            *(
                cut
                for cut in draw.draw(st.lists(st.integers(4, max(4, len(content))), max_size=5))
                if cut < len(content)
            ),
        }
    )
    blocks = [content[start:stop] for start, stop in itertools.pairwise(cuts)]
    assert b"".join(decoded("rows", blocks, encoding)).decode() == f"x\n{text}"


@pytest.mark.parametrize(
    ("encoding", "error"), [("latin9000", InvalidValueError), ("rot13", InvalidValueError), (8, InvalidTypeError)]
)
def test_an_encoding_must_be_one_of_text(encoding: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="encoding must be the name of an encoding"):
        Dataset.from_csv("rows.csv", encoding=encoding)
