"""Saving and restoring positions, for every source and every operation."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.data.positions import as_arrays, check_every_position, numbers, saved
from torch_estimator.data import Dataset, StateMismatch, write_tfrecord

ROWS = 23
TEXT = "x,word,y\n" + "".join(f"{i},{'word' if i % 3 else ''}{i % 5},{i % 2}\n" for i in range(ROWS))
MANY_ROWS = 150_000

Make = Callable[[], Dataset]


def columns() -> dict[str, np.ndarray]:
    return {"x": np.arange(ROWS), "word": np.array([f"w{i % 5}" for i in range(ROWS)])}


def csv(folder: Path) -> Dataset:
    (folder / "a.csv").write_text(TEXT)
    return Dataset.from_csv(folder / "*.csv", label="y")


def csv_gz(folder: Path) -> Dataset:
    (folder / "a.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    return Dataset.from_csv(folder / "a.csv.gz", label="y")


def csv_remote(folder: Path) -> Dataset:
    with fsspec.open("memory://positions/a.csv", "w") as file:
        file.write(TEXT)
    return Dataset.from_csv("memory://positions/a.csv", label="y")


def csv_files(folder: Path) -> Dataset:
    lines = TEXT.splitlines(keepends=True)
    for number in range(3):
        (folder / f"{number}.csv").write_text("".join([lines[0], *lines[1 + number :: 3]]))
    return Dataset.from_csv([folder / "1.csv", folder / "[02].csv"], label="y")


def parquet(folder: Path) -> Dataset:
    table = pa.table({**columns(), "y": np.arange(ROWS) % 2})
    pq.write_table(table, folder / "a.parquet", row_group_size=5)
    return Dataset.from_parquet(folder / "a.parquet", label="y")


def json_lines(folder: Path) -> Dataset:
    rows = [{"x": i, "word": f"w{i % 5}", "y": i % 2} for i in range(ROWS)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return Dataset.from_json(folder / "*.jsonl", label="y")


def tfrecord(folder: Path) -> Dataset:
    rows = [{"x": i, "word": f"w{i % 5}", "y": i % 2} for i in range(ROWS)]
    write_tfrecord(folder / "a.tfrecord", rows[::2])
    write_tfrecord(folder / "b.tfrecord.gz", rows[1::2])
    return Dataset.from_tfrecord(folder / "*.tfrecord*", label="y")


def text(folder: Path) -> Dataset:
    (folder / "a.txt").write_text("".join(f"line {i}\n" for i in range(ROWS)))
    return Dataset.from_text(folder / "*.txt")


def arrow(folder: Path) -> Dataset:
    return Dataset.from_arrow(pa.table({**columns(), "y": np.arange(ROWS) % 2}), label="y")


def arrays(folder: Path) -> Dataset:
    return Dataset.from_arrays(columns(), np.arange(ROWS) % 2)


def one_tensor(folder: Path) -> Dataset:
    return Dataset.from_arrays(torch.arange(2 * ROWS).reshape(ROWS, 2))


def tuple_of_arrays(folder: Path) -> Dataset:
    return Dataset.from_arrays((np.arange(ROWS), np.ones((ROWS, 3))), {"a": np.arange(ROWS), "b": np.arange(ROWS)})


def frame(folder: Path) -> Dataset:
    return Dataset.from_pandas(pd.DataFrame({**columns(), "y": np.arange(ROWS) % 2}), label="y")


def iterable(folder: Path) -> Dataset:
    return Dataset.from_iterable([({"x": np.arange(i, i + 4)}, np.arange(4)) for i in range(7)])


def function(folder: Path) -> Dataset:
    return Dataset.from_iterable(lambda: (np.full((3, 2), i) for i in range(7)))


def generator(folder: Path) -> Dataset:
    def rows() -> Any:
        for i in range(300):
            yield {"x": i, "word": f"w{i % 5}"}, i % 2

    return Dataset.from_generator(rows).batch(40)


def loader(folder: Path) -> Dataset:
    data = TensorDataset(torch.arange(ROWS), torch.arange(ROWS) % 2)
    return Dataset.from_iterable(DataLoader(data, batch_size=4, shuffle=True))


def concatenated(folder: Path) -> Dataset:
    return arrays(folder).skip(7).concatenate(arrays(folder).shuffle(30, seed=5).take(9), arrays(folder).take(4))


def zipped(folder: Path) -> Dataset:
    first, second = (Dataset.from_arrays({name: np.arange(ROWS)}) for name in ("x", "z"))
    return Dataset.zip(([first.skip(2), second.batch(5).unbatch()], text(folder)))


def sampled(folder: Path) -> Dataset:
    return Dataset.sample_from_datasets([arrays(folder).take(9), csv(folder).map(same), arrays(folder)], seed=4)


def sampled_drawn(folder: Path) -> Dataset:
    return Dataset.sample_from_datasets([arrays(folder), arrays(folder).skip(3)], weights=[3, 1])


def interleaved(folder: Path) -> Dataset:
    return Dataset.interleave([arrays(folder), generator(folder).unbatch().take(11)], block_length=2)


COMBINED = [concatenated, zipped, sampled, interleaved]
SOURCES = [
    csv,
    csv_gz,
    csv_remote,
    csv_files,
    parquet,
    json_lines,
    tfrecord,
    text,
    arrow,
    arrays,
    one_tensor,
    tuple_of_arrays,
    frame,
]
ITERABLES = [iterable, function, generator, loader]


def same(*batch: Any) -> Any:
    return batch if len(batch) == 2 else batch[0]


def some(*batch: Any) -> np.ndarray:
    """Return True for about two rows of three, whatever the columns are."""
    column = batch[0]
    while isinstance(column, dict | tuple):
        column = next(iter(column.values())) if isinstance(column, dict) else column[0]
    return np.array([sum(map(ord, str(value))) % 3 > 0 for value in column])


ON_ROWS: dict[str, Callable[[Dataset], Dataset]] = {
    "batch": lambda data: data.batch(4),
    "drop": lambda data: data.batch(4, drop_remainder=True),
    "shuffle": lambda data: data.shuffle(100, seed=7).batch(4),
    "shuffle repeat": lambda data: data.shuffle(100, seed=7).repeat(3).batch(4),
    "shuffle repeat, seed drawn": lambda data: data.shuffle(100).repeat(2).batch(4),
    "repeat shuffle": lambda data: data.repeat(3).shuffle(100, seed=7).batch(4),
    "batch repeat": lambda data: data.shuffle(100, seed=7).batch(4).repeat(3),
    "repeat twice": lambda data: data.shuffle(100, seed=7).repeat(2).batch(4).repeat(2),
    "shard": lambda data: data.shard(3, 1).shuffle(100, seed=7).repeat(2).batch(2),
    "shuffle shard": lambda data: data.shuffle(100, seed=7).shard(3, 2).batch(2),
    "skip take": lambda data: data.skip(3).take(11).shuffle(9, seed=1).repeat(2).batch(4),
    "prefetch": lambda data: data.shuffle(100, seed=7).repeat(2).batch(4).prefetch(3),
    "prefetch early": lambda data: data.prefetch(3).shuffle(100, seed=7).repeat(2).batch(4).prefetch(2),
    "batch again": lambda data: data.batch(4).batch(5),
    "map": lambda data: data.map(same).shuffle(100, seed=7).repeat(2).batch(4),
    "cache": lambda data: data.shard(2, 1).cache().shuffle(100, seed=7).repeat(3).batch(3),
    "shuffle cache": lambda data: data.shuffle(100).cache().repeat(2).batch(4).prefetch(2),
    "cache batches": lambda data: data.batch(4).map(same).cache().repeat(2),
    "cache in part": lambda data: data.batch(2).cache().take(5).repeat(3),
    "filter": lambda data: data.filter(some).shuffle(100, seed=7).repeat(2).batch(4),
    "shuffle filter": lambda data: data.shuffle(100, seed=7).filter(some).repeat(2).batch(4),
    "filter batches": lambda data: data.batch(4).filter(some).repeat(2),
    "unbatch": lambda data: data.batch(4).unbatch().skip(2).shuffle(100, seed=7).repeat(2).batch(3),
    "cache twice": lambda data: data.cache().batch(2).cache().repeat(2),
}

ON_BATCHES: dict[str, Callable[[Dataset], Dataset]] = {
    "nothing": lambda data: data,
    "repeat": lambda data: data.repeat(3),
    "map": lambda data: data.map(same),
    "skip take": lambda data: data.skip(1).take(3).repeat(2),
    "shard": lambda data: data.shard(2, 1).repeat(2),
    "prefetch": lambda data: data.repeat(2).prefetch(3),
    "map prefetch": lambda data: data.map(same).repeat(2).prefetch(2),
    "cache": lambda data: data.cache().repeat(3),
    "unbatch": lambda data: data.unbatch().filter(some).shuffle(9, seed=1).repeat(2).batch(3),
    "cache map": lambda data: data.skip(1).cache().map(same).repeat(2),
}


@pytest.mark.parametrize("source", [*SOURCES, *COMBINED])
@pytest.mark.parametrize("steps", ON_ROWS)
def test_every_position_of_rows_is_restored_exactly(
    source: Callable[[Path], Dataset], steps: str, tmp_path: Path
) -> None:
    assert check_every_position(lambda: ON_ROWS[steps](source(tmp_path))) > 3


@pytest.mark.parametrize("source", [csv, arrays, sampled_drawn, *ITERABLES])
@pytest.mark.parametrize("steps", ON_BATCHES)
def test_every_position_of_batches_is_restored_exactly(
    source: Callable[[Path], Dataset], steps: str, tmp_path: Path
) -> None:
    def make() -> Dataset:
        data = source(tmp_path)
        return ON_BATCHES[steps](data if source in ITERABLES else data.batch(4))

    assert check_every_position(make) > 2


ON_FILES: dict[str, Callable[[Dataset, str], Dataset]] = {
    "cache": lambda data, file: data.cache(file).shuffle(100, seed=7).repeat(2).batch(4),
    "map cache": lambda data, file: data.shuffle(100, seed=7).map(same).cache(file).repeat(2).batch(4).prefetch(2),
    "cache batches in part": lambda data, file: data.batch(3).map(same).cache(file).take(3).repeat(4),
    "in both": lambda data, file: data.cache(file).cache().shuffle(100, seed=7).repeat(2).batch(4),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("steps", ON_FILES)
def test_every_position_over_a_cache_in_a_file_is_restored_exactly(
    source: Callable[[Path], Dataset], steps: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "cache" / "rows")
    assert check_every_position(lambda: ON_FILES[steps](source(tmp_path), file)) > 3
    # And from a cache that is complete already.
    assert check_every_position(lambda: ON_FILES[steps](source(tmp_path), file)) > 3


def big_csv(folder: Path) -> Dataset:
    path = folder / "big.csv"
    if not path.exists():
        path.write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(MANY_ROWS)))
    return Dataset.from_csv(path, label="y")


def big_parquet(folder: Path) -> Dataset:
    path = folder / "big.parquet"
    if not path.exists():
        table = pa.table({"x": np.arange(MANY_ROWS), "y": np.arange(MANY_ROWS) % 2})
        pq.write_table(table, path, row_group_size=20_000)
    return Dataset.from_parquet(path, label="y")


def big_arrays(folder: Path) -> Dataset:
    return Dataset.from_arrays({"x": np.arange(MANY_ROWS)}, np.arange(MANY_ROWS) % 2)


@pytest.mark.parametrize("source", [big_csv, big_parquet, big_arrays])
@pytest.mark.parametrize("steps", ["shuffle repeat", "repeat shuffle", "prefetch", "plain", "cache", "cache file"])
def test_positions_in_data_of_several_windows_are_restored_exactly(
    source: Callable[[Path], Dataset], steps: str, tmp_path: Path
) -> None:
    chains: dict[str, Callable[[Dataset], Dataset]] = {
        "plain": lambda data: data.repeat(2),
        "shuffle repeat": lambda data: data.shuffle(1000, seed=3).repeat(2),
        "repeat shuffle": lambda data: data.repeat(2).shuffle(1000, seed=3),
        "prefetch": lambda data: data.shuffle(1000, seed=3).repeat(2).prefetch(4),
        "cache": lambda data: data.cache().shuffle(1000, seed=3).repeat(2),
        "cache file": lambda data: data.cache(tmp_path / "cache").repeat(2).prefetch(2),
    }
    batches = check_every_position(lambda: chains[steps](source(tmp_path)).batch(17_001), compared=3)
    assert batches == -(-2 * MANY_ROWS // 17_001)


@pytest.mark.parametrize("source", [big_csv, big_parquet, big_arrays])
def test_shuffling_several_windows_gives_every_row_once_and_mixes_windows(
    source: Callable[[Path], Dataset], tmp_path: Path
) -> None:
    first, second = np.split(np.array(numbers(source(tmp_path).shuffle(1000, seed=3).repeat(2).batch(30_000))), 2)
    assert sorted(first) == sorted(second) == list(range(MANY_ROWS))
    assert (first != second).mean() > 0.99
    assert np.ptp(first[:1000]) > MANY_ROWS * 0.6


def test_a_position_may_be_restored_with_another_batch_size() -> None:
    def make(size: int) -> Dataset:
        return arrays(Path()).shuffle(100, seed=1).repeat(2).batch(size)

    everything = numbers(make(1))
    with make(5).iterator() as iterator:
        next(iterator), next(iterator)
        state = iterator.state()
    with make(3).iterator() as iterator:
        iterator.restore(state)
        assert [int(x) for batch in iterator for x in batch.features["x"]] == everything[10:]


def test_more_epochs_continue_where_fewer_ended() -> None:
    with arrays(Path()).shuffle(100, seed=1).repeat(1).batch(5).iterator() as iterator:
        list(iterator)
        state = iterator.state()
    with arrays(Path()).shuffle(100, seed=1).repeat(3).batch(5).iterator() as iterator:
        iterator.restore(state)
        assert len([x for batch in iterator for x in batch.features["x"]]) == 2 * ROWS


def test_the_drawn_seed_is_restored_with_the_position() -> None:
    torch.manual_seed(1)
    one = arrays(Path()).shuffle(100).repeat(2).batch(5)
    torch.manual_seed(2)
    other = arrays(Path()).shuffle(100).repeat(2).batch(5)
    assert numbers(one) != numbers(other)
    with one.iterator() as iterator:
        next(iterator)
        state = iterator.state()
    with other.iterator() as iterator:
        iterator.restore(state)
        assert [int(x) for batch in iterator for x in batch.features["x"]] == numbers(one)[5:]


def test_the_seed_of_torch_decides_about_a_drawn_seed() -> None:
    orders = []
    for _ in range(2):
        torch.manual_seed(5)
        orders.append(numbers(arrays(Path()).shuffle(100).batch(5)))
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (lambda: Dataset.from_arrays({"x": np.arange(9)}).shuffle(9, seed=1).batch(2), "rows was 8, but is 9"),
        (lambda: Dataset.from_arrays({"x": np.arange(8)}).shuffle(9, seed=2).batch(2), r"shuffle\(9, 2\)"),
        (lambda: Dataset.from_arrays({"x": np.arange(8)}).batch(2), "operations of the Dataset were .shuffle"),
        (lambda: Dataset.from_iterable([np.arange(8)]), "source was memory"),
    ],
)
def test_a_position_of_another_input_is_refused_and_changes_nothing(other: Make, named: str) -> None:
    with Dataset.from_arrays({"x": np.arange(8)}).shuffle(9, seed=1).batch(2).iterator() as iterator:
        next(iterator)
        state = iterator.state()
    with other().iterator() as iterator:
        before = saved(iterator.state())
        with pytest.raises(StateMismatch, match=named):
            iterator.restore(state)
        assert saved(iterator.state()) == before


@pytest.mark.parametrize("state", [{}, {"signature": None}, {"signature": {}, "position": {}}])
def test_a_value_that_is_not_a_position_is_refused(state: dict[str, object]) -> None:
    with arrays(Path()).batch(2).iterator() as iterator, pytest.raises(StateMismatch):
        iterator.restore(state)


def test_a_file_that_grew_is_another_input(tmp_path: Path) -> None:
    with csv(tmp_path).batch(4).iterator() as iterator:
        state = iterator.state()
    with (tmp_path / "b.csv").open("w") as file:
        file.write(TEXT)
    larger = Dataset.from_csv(tmp_path / "*.csv", label="y").batch(4)
    with larger.iterator() as iterator, pytest.raises(StateMismatch, match=r"now there are 2 files \(a\.csv, b\.csv\)"):
        iterator.restore(state)


FILES = [csv, csv_gz, csv_files, parquet]


@pytest.mark.parametrize("source", FILES)
def test_a_position_survives_another_spelling_and_another_folder(
    source: Callable[[Path], Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    with source(first).shuffle(100, seed=1).batch(4).iterator() as iterator:
        next(iterator)
        state = iterator.state()
        rest = [as_arrays(batch)[0]["x"].tolist() for batch in iterator]
    first.rename(second)
    monkeypatch.chdir(second)
    with source(Path()).shuffle(100, seed=1).batch(4).iterator() as iterator:
        iterator.restore(json.loads(saved(state)))
        assert [as_arrays(batch)[0]["x"].tolist() for batch in iterator] == rest


def test_numpy_integers_become_python_integers_in_a_position(tmp_path: Path) -> None:
    def chained(of: Callable[[int], Any]) -> Dataset:
        data = csv(tmp_path).shard(of(2), of(1)).shuffle(of(9), seed=of(3)).skip(of(1)).take(of(7)).repeat(of(2))
        return data.batch(of(2)).prefetch(of(1))

    with chained(np.int64).iterator() as iterator:
        next(iterator)
        state = json.loads(json.dumps(iterator.state()))
        rest = [batch.features["x"].tolist() for batch in iterator]
    with chained(int).iterator() as iterator:
        iterator.restore(state)
        assert [batch.features["x"].tolist() for batch in iterator] == rest


def test_the_error_names_changed_operations(tmp_path: Path) -> None:
    with csv(tmp_path).shuffle(9, seed=1).batch(4).iterator() as iterator:
        state = iterator.state()
    with csv(tmp_path).batch(4).iterator() as iterator, pytest.raises(StateMismatch) as raised:
        iterator.restore(state)
    assert str(raised.value) == (
        "The saved position belongs to another input: the operations of the Dataset were "
        "'shuffle(9, 1) batch', but are 'batch'."
    )


def test_a_position_survives_a_move_to_a_url(tmp_path: Path) -> None:
    with csv(tmp_path).batch(4).iterator() as iterator:
        next(iterator)
        state = iterator.state()
    with csv_remote(tmp_path).batch(4).iterator() as iterator:
        iterator.restore(state)
        assert next(iterator).features["x"].tolist() == [4, 5, 6, 7]
    pq.write_table(pa.table({"x": np.arange(9)}), tmp_path / "a.parquet")
    with fsspec.open("memory://positions/a.parquet", "wb") as file:
        file.write((tmp_path / "a.parquet").read_bytes())
    with Dataset.from_parquet(tmp_path / "a.parquet").batch(4).iterator() as iterator:
        next(iterator)
        state = iterator.state()
    with Dataset.from_parquet("memory://positions/*.parquet").batch(4).iterator() as iterator:
        iterator.restore(state)
        assert next(iterator).features["x"].tolist() == [4, 5, 6, 7]


def many_files(folder: Path, count: int) -> Dataset:
    for number in range(count):
        (folder / f"{number:04}.csv").write_text(TEXT)
    return Dataset.from_csv(folder / "*.csv").batch(4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p: p("0001.csv").write_text(TEXT + TEXT[9:]), "its file 0001.csv had 220 bytes, but now has 431."),
        (lambda p: p("0001.csv").write_text(TEXT[:-2] + "7\n"), "the content of its file 0001.csv has changed."),
        (lambda p: p("0002.csv").rename(p("0005.csv")), "where its file 0002.csv was, there is now 0003.csv."),
        (lambda p: p("0002.csv").unlink(), "it is of 5 files (0000.csv, 0001.csv, 0002.csv and 2 more), but now there "
            "are 4 files (0000.csv, 0001.csv, 0003.csv and 1 more)."),
    ],
)  # fmt: skip
def test_the_error_names_changed_files(change: Callable[..., object], sentence: str, tmp_path: Path) -> None:
    with many_files(tmp_path, 5).iterator() as iterator:
        state = iterator.state()
    change(tmp_path.joinpath)
    with Dataset.from_csv(tmp_path / "*.csv").batch(4).iterator() as iterator, pytest.raises(StateMismatch) as raised:
        iterator.restore(state)
    assert str(raised.value) == f"The saved position belongs to another input: {sentence}"


def test_the_position_in_many_files_is_small_and_sees_all_of_them(tmp_path: Path) -> None:
    with many_files(tmp_path, 300).iterator() as iterator:
        state = iterator.state()
    assert len(saved(state)) < 2000
    (tmp_path / "0250.csv").write_text(TEXT[:-2] + "7\n")
    with Dataset.from_csv(tmp_path / "*.csv").batch(4).iterator() as iterator:
        with pytest.raises(StateMismatch, match="one of the 300 files has changed"):
            iterator.restore(state)
        state["signature"]["files"] = [300, "abc"]
        with pytest.raises(StateMismatch, match="names no files that this version can compare"):
            iterator.restore(state)


def test_parquet_files_that_changed_are_named(tmp_path: Path) -> None:
    with parquet(tmp_path).batch(4).iterator() as iterator:
        state = iterator.state()
    pq.write_table(pa.table({"x": np.arange(99), "y": np.arange(99)}), tmp_path / "a.parquet")
    data = Dataset.from_parquet(tmp_path / "a.parquet", label="y").batch(4)
    with data.iterator() as iterator, pytest.raises(StateMismatch, match=r"its file a\.parquet had \d+ bytes, but now"):
        iterator.restore(state)
