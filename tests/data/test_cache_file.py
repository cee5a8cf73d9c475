"""Caches in files: written completely or not at all, and never used for other data."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.positions import as_arrays, assert_equal, numbers
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidValueError

FACTOR = 2


def csv(folder: Path, text: str = "x,w\n1,a\n2,b\n3,a\n") -> Path:
    file = folder / "a.csv"
    file.write_text(text)
    return file


def cached(folder: Path, **arguments: Any) -> Dataset:
    return Dataset.from_csv(folder / "a.csv", **arguments).cache(folder / "cache").repeat(2).batch(2)


def written(folder: Path) -> int:
    return (folder / "cache").stat().st_mtime_ns


def test_the_next_run_reads_only_the_cache(tmp_path: Path) -> None:
    csv(tmp_path)
    assert numbers(cached(tmp_path)) == [1, 2, 3] * 2
    before = written(tmp_path)
    assert os.listdir(tmp_path).count("cache") == 1
    assert len(os.listdir(tmp_path)) == 2
    # A file that cannot be parsed would raise an error if it were read.
    os.utime(csv(tmp_path, "x,w\n1,a\n9,b\n3,a\n"), ns=(0, 0))
    os.utime(csv(tmp_path), ns=(0, before))
    numbers(cached(tmp_path))
    table = pa.ipc.open_stream(tmp_path / "cache").read_all()
    assert table.num_rows == 3


def test_all_kinds_of_columns_are_cached_unchanged(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    features = (
        {
            "bool": random.random(9) > 0.5,
            "half": random.random(9).astype(np.float16),
            "image": random.integers(0, 255, (9, 4, 3), dtype=np.uint8),
            "words": [f"w{i % 3}" for i in range(9)],
            "lists": pa.array([[i] * (i % 4) for i in range(9)]),
            "texts": pa.array([["a"] * (i % 3) for i in range(9)]),
        },
        random.random((9, 2)),
    )
    plain = Dataset.from_arrays(features, {"a": np.arange(9), "b": {"c": np.arange(9.0)}})
    for _ in range(2):
        with (
            plain.batch(4).iterator() as expected,
            plain.cache(tmp_path / "cache").batch(4).iterator() as got,
        ):
            for one, other in zip(got, expected, strict=True):
                assert_equal(as_arrays(one), as_arrays(other))


def test_padded_batches_are_cached_before_they_are_padded(tmp_path: Path) -> None:
    rows = Dataset.from_arrays({"x": pa.array([[1], [2], [3, 4]])})
    for _ in range(2):
        assert [batch["x"].shape for batch in rows.cache(tmp_path / "cache").batch(2)] == [(2, 1), (1, 2)]
    with pytest.raises(DataError, match=r"have other columns or shapes than the first ones.*; cache them before batch"):
        list(rows.batch(2).cache(tmp_path / "cache"))


def scale(features: dict[str, Any], by: float = 1) -> dict[str, Any]:
    return {"x": features["x"] * FACTOR * by, "w": features["w"]}


def _scaled_by(by: float) -> Callable[..., Any]:
    return lambda features: {"x": features["x"] * by, "w": features["w"]}


CHANGES: dict[str, tuple[Callable[[Dataset], Dataset], Callable[[Dataset], Dataset]]] = {
    "batch size": (lambda d: d.batch(2), lambda d: d.batch(3)),
    "skip": (lambda d: d.skip(1), lambda d: d.skip(2)),
    "shard": (lambda d: d.shard(2, 0), lambda d: d.shard(2, 1)),
    "repeat": (lambda d: d.repeat(1), lambda d: d.repeat(2)),
    "seed": (lambda d: d.shuffle(9, seed=1), lambda d: d.shuffle(9, seed=2)),
    "label": (lambda d: d.label("w", {"a": 0, "b": 1}), lambda d: d.label("w", {"a": 1, "b": 0})),
    "closure": (lambda d: d.map(_scaled_by(2)), lambda d: d.map(_scaled_by(3))),
    "default": (lambda d: d.map(scale), lambda d: d.map(functools.partial(scale, by=3))),
    "code": (lambda d: d.map(lambda f: {"x": f["x"] + 1}), lambda d: d.map(lambda f: {"x": f["x"] + 2})),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_pipeline_replaces_the_cache(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    csv(tmp_path)

    def got(change: Callable[[Dataset], Dataset], file: Path | None) -> Any:
        data = change(Dataset.from_csv(tmp_path / "a.csv"))
        data = data if file is None else data.cache(file)
        with data.batch(2).iterator() as iterator:
            return [as_arrays(batch) for batch in iterator]

    first, second = CHANGES[what]
    file = tmp_path / "cache"
    for change in (first, second, second, first):
        assert_equal(tuple(got(change, file)), tuple(got(change, None)))
    caplog.clear()
    with caplog.at_level(logging.INFO, "torch_estimator"):
        got(first, file)
        assert not caplog.records
        got(second, file)
        assert (
            f"Replacing the cache {file}: it was written for other data, another pipeline or another version."
            in caplog.messages
        )


def test_a_global_that_a_function_uses_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csv(tmp_path)

    def data() -> list[int]:
        return numbers(Dataset.from_csv(tmp_path / "a.csv").map(scale).cache(tmp_path / "cache").batch(3))

    assert data() == [2, 4, 6]
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert data() == [5, 10, 15]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    csv(tmp_path, "x\n" + "1\n" * 10_000)
    assert sum(numbers(cached(tmp_path))) == 20_000
    text = "x\n" + "1\n" * 5000 + "7\n" + "1\n" * 4999
    csv(tmp_path, text)
    assert sum(numbers(cached(tmp_path))) == 20_012


def test_other_types_and_defaults_and_columns_are_other_data(tmp_path: Path) -> None:
    csv(tmp_path, "x,w\n1,a\n,b\n")
    assert numbers(cached(tmp_path, defaults={"x": 5})) == [1, 5] * 2
    assert numbers(cached(tmp_path, defaults={"x": 6})) == [1, 6] * 2
    with cached(tmp_path, defaults={"x": 6}, column_types={"x": "float64"}).iterator() as iterator:
        assert next(iterator).features["x"].dtype == np.float64
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    for kind in (pa.int64(), pa.float32()):
        data = Dataset.from_parquet(tmp_path / "a.parquet", schema=pa.schema({"x": kind})).cache(tmp_path / "cache")
        with data.batch(2).iterator() as iterator:
            assert next(iterator).features["x"].dtype == kind.to_pandas_dtype()


def test_other_arrays_are_other_data(tmp_path: Path) -> None:
    for values in ([1, 2], [3, 4], [3, 4]):
        assert numbers(Dataset.from_arrays({"x": values}).cache(tmp_path / "cache").batch(2)) == values


def test_a_pass_that_ends_early_leaves_no_file(tmp_path: Path) -> None:
    csv(tmp_path)
    with Dataset.from_csv(tmp_path / "a.csv").batch(1).cache(tmp_path / "cache").take(2).repeat(2).iterator() as one:
        assert [batch.features["x"].tolist() for batch in one] == [[1], [2], [1], [2]]
        assert any(name.endswith(".partial") for name in os.listdir(tmp_path))
    assert os.listdir(tmp_path) == ["a.csv"]


def test_a_damaged_cache_is_replaced(tmp_path: Path) -> None:
    csv(tmp_path)
    numbers(cached(tmp_path))
    whole = (tmp_path / "cache").read_bytes()
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-30]):
        (tmp_path / "cache").write_bytes(damaged)
        assert numbers(cached(tmp_path)) == [1, 2, 3] * 2


def test_a_damaged_byte_is_an_error_or_the_cache_is_rewritten(tmp_path: Path) -> None:
    file = tmp_path / "cache"

    def got() -> list[tuple[list[int], list[str]]]:
        features = {"x": np.arange(6), "w": ["a", "bb", "a", "c", "bb", "a"]}
        with Dataset.from_arrays(features).batch(3).cache(file).iterator() as batches:
            return [(one.features["x"].tolist(), list(map(str, one.features["w"]))) for one in batches]

    expected = got()
    whole = file.read_bytes()
    detected = 0
    for place in range(0, len(whole), 11):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert got() == expected
        except DataError as error:
            assert re.search(r"the cache .*cache is damaged: the checksum of its rows from [03] .* differs", str(error))
            detected += 1
    assert detected > 40


@pytest.mark.parametrize("size", [None, 0, 300])
def test_a_cache_that_is_removed_or_cut_between_two_passes_is_one_sentence(tmp_path: Path, size: int | None) -> None:
    csv(tmp_path)
    cache = tmp_path / "cache"
    with Dataset.from_csv(tmp_path / "a.csv").cache(cache).repeat().batch(1).iterator() as iterator:
        while not cache.exists():
            next(iterator)
        if size is None:
            cache.unlink()
        else:
            os.truncate(cache, size)
        with pytest.raises(DataError, match=r"the cache .*cache (was removed or changed|became shorter) while it was "):
            next(batch for batch in iterator if not batch)


def test_a_cache_of_an_earlier_version_without_checksums_is_rewritten(tmp_path: Path) -> None:
    csv(tmp_path)
    numbers(cached(tmp_path))
    whole = (tmp_path / "cache").read_bytes()
    with pa.ipc.open_stream(tmp_path / "cache") as stream:
        table, sink = stream.read_all(), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, stream.schema) as earlier:
            earlier.write_table(table)
    (tmp_path / "cache").write_bytes(sink.getvalue())
    assert numbers(cached(tmp_path)) == [1, 2, 3] * 2
    assert (tmp_path / "cache").read_bytes() == whole


def test_errors_in_cached_rows_name_the_row(tmp_path: Path) -> None:
    class Fussy:
        required = {"x": pa.string()}  # noqa: RUF012 - a constant

        def __call__(self, features: Any, labels: Any) -> Any:
            return features, labels

    for place in ("row 0 .from 0.", "row 0 .from 0. of the cache .*cache"):
        data = Dataset.from_arrays({"x": [1, 2]}).cache(tmp_path / "cache")
        numbers(data.batch(2)) if "cache" in place else None
        with data.batch(2).iterator(Fussy()) as iterator, pytest.raises(DataError, match=place):
            next(iterator)


def test_values_that_cannot_be_compared_between_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="cannot tell whether an iterable, or several Datasets, give the same"):
        Dataset.from_iterable([np.ones(1)]).cache(tmp_path / "cache").iterator()
    lock = threading.Lock()

    def locked(x: Any) -> Any:
        with lock:
            return x

    data = Dataset.from_arrays([1]).map(locked).cache(tmp_path / "cache").batch(1)
    with pytest.raises(InvalidValueError, match=r"whether the function .*locked is the same in .*: it uses <"):
        data.iterator()


def test_objects_cannot_be_written(tmp_path: Path) -> None:
    data = Dataset.from_arrays({"x": np.array([[{}], [{}]], object).repeat(2, axis=1)}).cache(tmp_path / "cache")
    with pytest.raises(DataError, match=r"row 0 .*a column of object of shape \[2, 2\] cannot be cached in a file"):
        numbers(data.batch(1))
    assert os.listdir(tmp_path) == []


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"the cache .*file/cache cannot be written: "):
        numbers(Dataset.from_arrays({"x": [1]}).cache(tmp_path / "file" / "cache").batch(1))


KILLED = """
import os, signal, sys
import numpy as np
from torch_estimator.data import Dataset
with Dataset.from_arrays({"x": np.arange(9)}).batch(2).cache(sys.argv[1]).iterator() as batches:
    next(batches), next(batches)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    result = subprocess.run([sys.executable, "-c", KILLED, str(file)], timeout=60, check=False)
    assert result.returncode == -signal.SIGKILL
    (left,) = os.listdir(tmp_path)
    assert left.endswith(".partial")
    assert numbers(Dataset.from_arrays({"x": np.arange(9)}).batch(2).cache(file)) == [*range(9)]
    assert os.listdir(tmp_path) == ["cache"]


def test_a_file_that_another_writer_still_writes_stays(tmp_path: Path) -> None:
    data = Dataset.from_arrays({"x": np.arange(9)}).batch(2).cache(tmp_path / "cache")
    with data.iterator() as first:
        next(first), next(first)
        (written,) = os.listdir(tmp_path)
        with data.iterator() as second:
            next(second), next(second)
            assert written in os.listdir(tmp_path)
    assert os.listdir(tmp_path) == []
