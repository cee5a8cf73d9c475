"""CSV with newlines in quoted fields: the rows that Python's csv module reads, in any order and division."""

from __future__ import annotations

import csv
import io
import logging
import os
import random
import re
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_estimator.data import Dataset
from torch_estimator.data.sources.csv_format import CsvFormat
from torch_estimator.data.sources.csv_records import CsvRanges
from torch_estimator.data.sources.input_files import ByteFile
from torch_estimator.data.sources.text_lines import Piece
from torch_estimator.errors import DataError

FORMATS = st.builds(CsvFormat, delimiter=st.sampled_from(",;\t|"), quote_char=st.sampled_from("\"'"))
TEXTS = st.text(st.sampled_from("ab ,;\t|\"'\n\r"), max_size=12)
TABLES = st.lists(st.lists(TEXTS, min_size=3, max_size=3), min_size=1, max_size=12)
ENDS = st.sampled_from(["\n", "\r\n"])


class Memory(ByteFile):
    """A file in memory that is divided into ranges of a few bytes."""

    url = "memory"

    def __init__(self, data: bytes, range_bytes: int) -> None:
        self.data, self.size, self.range_bytes = data, len(data), range_bytes

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]


def text_of(table: Sequence[Sequence[str]], form: CsvFormat, end: str) -> str:
    """Return a table as the csv module writes it; it quotes the fields that need it."""
    out = io.StringIO()
    assert form.quote_char is not None
    csv.writer(out, delimiter=form.delimiter, quotechar=form.quote_char, lineterminator=end).writerows(table)
    return out.getvalue()


def rows_by_csv(text: str, form: CsvFormat) -> list[list[str]]:
    assert form.quote_char is not None
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=form.delimiter, quotechar=form.quote_char)
    return [row for row in reader if row]


def rows_of(pieces: Sequence[Piece], form: CsvFormat) -> list[list[str]]:
    records = [record for piece in pieces for record in form.records(piece.data)]
    return [form.fields(record.decode()) for record in records if record.strip(b"\r\n")]


@settings(deadline=None)
@given(TEXTS.map(lambda text: text * 3), FORMATS)
def test_any_text_has_the_records_that_python_finds(text: str, form: CsvFormat) -> None:
    if form.opening(text.encode()) is None:
        assert rows_of([Piece(0, 0, text.encode())], form) == rows_by_csv(text, form)
    ends = [end for end in range(1, len(text) + 1) if text[end - 1] == "\n"]
    closed = [end for end in ends if form.opening(text[:end].encode()) is None]
    assert form.ends(text.encode()).tolist() == closed


@settings(deadline=None, max_examples=300)
@given(TEXTS.map(lambda text: text * 4), FORMATS, st.integers(1, 40), st.data())
def test_ranges_of_any_text_that_are_read_in_order_hold_each_record_once(
    text: str, form: CsvFormat, size: int, draw: st.DataObject
) -> None:
    content = text.encode()
    ranges = CsvRanges([Memory(content, size)], [0], form)
    pieces: list[Piece] = []
    at = 0
    while at < len(ranges):
        count = draw.draw(st.integers(1, len(ranges)))
        pieces += ranges.read(np.arange(at, min(at + count, len(ranges))))
        at += count
    read = b"".join(bytes(piece.data) for piece in pieces)
    assert read == content + b"\n" * bool(content and not content.endswith(b"\n"))
    opened = [piece for piece in pieces if piece.opened is not None]
    assert all(content[piece.opened : (piece.opened or 0) + 1] == str(form.quote_char).encode() for piece in opened)
    if not opened:
        assert rows_of(pieces, form) == rows_by_csv(text, form)


@settings(deadline=None, max_examples=300)
@given(TABLES, FORMATS, ENDS, st.integers(0, 40), st.randoms(use_true_random=False), st.integers(1, 4))
def test_ranges_read_in_any_order_and_by_any_shard_hold_each_row_once(
    table: list[list[str]], form: CsvFormat, end: str, more: int, order: random.Random, shards: int
) -> None:
    text = text_of(table, form, end)
    content = text.encode()
    # No range lies within a record.
    size = max(len(record) for record in form.records(content)) + more
    ranges = len(CsvRanges([Memory(content, size)] * 2, [0, 0], form))
    numbers = list(range(ranges))
    order.shuffle(numbers)
    rows = []
    for shard in range(shards):
        # Each process opens the files, and reads some of the ranges, a few at a time.
        reader = CsvRanges([Memory(content, size)] * 2, [0, 0], form)
        own = [number for number in numbers if number % shards == shard]
        while own:
            count = order.randint(1, len(own))
            pieces = reader.read(np.array(own[:count]))
            assert all(content[piece.start :].startswith(bytes(piece.data)) for piece in pieces)
            rows += rows_of(pieces, form)
            own = own[count:]
    assert sorted(rows) == sorted(2 * rows_by_csv(text, form))


def table(rows: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    letters = ["a", "b", " ", ",", '"', "\n", "\r\n", "1,x\n", '",\n', 'y"']
    texts = ["".join(draw.choices(letters, k=draw.choice([0, 3, 30, 300]))) for _ in range(rows)]
    return [[str(number), text, str(number % 7)] for number, text in enumerate(texts)]


def written(path: Path, rows: Sequence[Sequence[str]], end: str = "\n") -> Path:
    path.write_text("n,s,y\n" + text_of(rows, CsvFormat(), end), newline="")
    return path


def rows_in(batches: Iterator[Any]) -> list[list[str]]:
    return [
        [str(n), s, str(y)]
        for batch in batches
        for n, s, y in zip(*(pa.array(batch[name]).to_pylist() for name in "nsy"), strict=True)
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("chain", [
    lambda data: data.batch(100),
    lambda data: data.shuffle(500, seed=3).batch(100),
    lambda data: data.repeat(2).shuffle(10, seed=3).batch(64).prefetch(2),
])  # fmt: skip
def test_datasets_give_every_row_once_and_resume_anywhere(
    chain: Callable[[Dataset], Dataset], end: str, tmp_path: Path
) -> None:
    rows = table(6000, seed=5)
    files = [written(tmp_path / "a.csv", rows[:5000], end), written(tmp_path / "b.csv", rows[5000:], end)]
    data = chain(Dataset.from_csv(files))
    with data.iterator() as iterator:
        batches, states = [], []
        for batch in iterator:
            batches.append(batch.features)
            states.append(iterator.state())
    times = sum(len(batch["n"]) for batch in batches) // len(rows)
    assert sorted(rows_in(iter(batches))) == sorted(rows * times)
    for place in (0, len(states) // 2, len(states) - 2):
        with chain(Dataset.from_csv(files)).iterator() as resumed:
            resumed.restore(states[place])
            assert rows_in(batch.features for batch in resumed) == rows_in(iter(batches[place + 1 :]))


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_have_every_row_once(shards: int, tmp_path: Path) -> None:
    rows = table(6000, seed=6)
    data = Dataset.from_csv(written(tmp_path / "a.csv", rows))
    found = [rows_in(iter(data.shard(shards, shard).batch(100))) for shard in range(shards)]
    assert sorted(row for one in found for row in one) == sorted(rows)


@pytest.mark.parametrize("ignore_errors", [False, True])
@pytest.mark.parametrize("text", ["some words\n", "1,2\n", '""a"",b\n', "\n"])
def test_a_row_of_many_ranges_is_read_once_in_any_order(
    text: str, ignore_errors: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [[str(number), "x" * 30, "1"] for number in range(20_000)]
    rows[9_000][1] = text.replace('""', '"') * (400_000 // len(text))
    path = written(tmp_path / "a.csv", rows)
    data = Dataset.from_csv(path, ignore_errors=ignore_errors)
    for seed in range(4):
        assert sorted(rows_in(iter(data.shuffle(50, seed=seed).batch(5000)))) == sorted(rows)
    found = [rows_in(iter(data.shard(3, shard).batch(5000))) for shard in range(3)]
    assert sorted(row for one in found for row in one) == sorted(rows)
    assert not caplog.messages


@pytest.mark.parametrize("shuffled", [False, True])
def test_errors_and_left_out_rows_behind_newlines_have_their_line(
    shuffled: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = table(5000, seed=7)
    wrong = [*rows[:4000], ["x", "two\nlines", "1"], *rows[4000:]]
    path = written(tmp_path / "a.csv", wrong)
    line = 1 + len(("n,s,y\n" + text_of(rows[:4000], CsvFormat(), "\n")).encode().splitlines())
    data = Dataset.from_csv(path, column_types={"n": "int64"})
    with pytest.raises(DataError) as raised:
        list((data.shuffle(100, seed=1) if shuffled else data).batch(100))
    assert str(raised.value) == f"{path}, line {line}: column 'n': 'x' is not a whole number (int64)."
    data = Dataset.from_csv(path, column_types={"n": "int64"}, ignore_errors=True)
    with caplog.at_level(logging.WARNING, "torch_estimator"):
        found = rows_in(iter((data.shuffle(100, seed=1) if shuffled else data).batch(100)))
    assert sorted(found) == sorted(rows)
    assert f"Left out 1 row, 1 so far; the first of these is {path}, line {line}: column 'n'" in caplog.text


def test_a_header_may_have_newlines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"size\n(m, ""net"")",town\r\n1,Ulm\r\nold,Ulm\r\n')
    with pytest.raises(DataError, match=r"a\.csv, line 4: column 'size\\n\(m, \"net\"\)': 'old' is not a number"):
        list(Dataset.from_csv(path, column_types={'size\n(m, "net")': "float32"}).batch(5))
    path.write_text('size,"town\n1,Ulm\n')
    with pytest.raises(DataError, match=r"a\.csv, line 1: a quoted field begins here and does not end within 64 MiB"):
        list(Dataset.from_csv(path).batch(5))


def bytes_read() -> int:
    """How many bytes this process has read."""
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])


def test_a_quote_that_never_ends_is_named_and_reads_little_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('x,s\n1,"two\nlines"\n2,"a\nb"\n3,"c')
    os.truncate(path, 2**30)  # A sparse file.
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as raised:
            list(Dataset.from_csv(path).batch(5))
        assert tracemalloc.get_traced_memory()[1] < 2**29
    finally:
        tracemalloc.stop()
    assert str(raised.value) == (
        f"{path}, line 6: a quoted field of column 's' begins here and does not end within 64 MiB or the file; close "
        "the quote, or give quote_char=None if quotes have no meaning."
    )


def test_the_search_for_records_ends_at_a_quote_that_never_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'x,s\n1,"two\nlines"\n3,"c\n' + b"4,d\n" * 2**26)
    already = bytes_read()
    with pytest.raises(DataError, match=r"a\.csv, line 4: a quoted field of column 's' begins here and does not end"):
        list(Dataset.from_csv(path).shuffle(10, seed=1).batch(5))
    assert bytes_read() - already < 192 * 2**20


def test_only_the_line_of_a_quote_that_never_ends_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'x,s\n1,"a\nb"\n2,"c\n3,d\n4,e""\n')
    (batch,) = Dataset.from_csv(path, ignore_errors=True).batch(9)
    assert batch["x"].tolist() == [1, 3, 4]
    assert batch["s"].tolist() == ["a\nb", "d", 'e""']
