"""The rows that peers train on."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import census_rows
from examples.census.trainer import featurizer, sample


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(sample.write(str(tmp_path), train_rows=300, eval_rows=10).train_file)


def test_columns_have_the_sizes_of_the_example() -> None:
    wide, deep = featurizer.wide_and_deep_columns()
    indicators, embeddings = deep[:6], deep[6:8]

    assert list(census_rows.WIDE.values()) == [column.num_buckets for column in wide]
    assert list(census_rows.INDICATORS.values()) == [one.categorical_column.num_buckets for one in indicators]
    assert list(census_rows.HASH_BUCKETS) == [one.categorical_column.key for one in embeddings]
    assert {one.dimension for one in embeddings} == {census_rows.EMBEDDING_SIZE}
    assert tuple(column.key for column in deep[8:]) == census_rows.NUMBERS
    assert census_rows.DEEP_INPUTS == 45 + 2 * 8 + 5


def test_each_column_has_ids_of_its_own(file: Path) -> None:
    rows = census_rows.read(file)

    ids = rows.wide_ids()

    ends = np.cumsum(list(census_rows.WIDE.values()))
    assert ids.shape == (300, 11)
    assert (ids < ends).all()
    assert (ids[:, 1:] >= ends[:-1]).all()
    assert rows.embedded_ids().max() < census_rows.EMBEDDED_ROWS


def test_dense_inputs_are_one_hot_and_numbers(file: Path) -> None:
    rows = census_rows.read(file)
    first = file.read_text().splitlines()[0].split(",")

    dense = rows.dense()

    assert dense.shape == (300, census_rows.DENSE_INPUTS)
    assert (dense[:, :45].sum(1) == 6).all()
    numbers = [float(first[0]), float(first[4]), *np.log1p([float(first[10]), float(first[11])]), float(first[12])]
    np.testing.assert_allclose(dense[0, 45:], numbers, rtol=1e-6)
    assert rows.labels[0] == (first[14] == ">50K")


def test_ids_do_not_depend_on_the_other_rows(file: Path, tmp_path: Path) -> None:
    some = tmp_path / "some.csv"
    some.write_text("\n".join(file.read_text().splitlines()[100:150]) + "\n\n")

    whole, part = census_rows.read(file), census_rows.read(some)

    assert (whole.wide_ids()[100:150] == part.wide_ids()).all()
    assert (whole.dense()[100:150] == part.dense()).all()


def test_a_file_that_is_not_of_the_census_is_refused(file: Path) -> None:
    file.write_text(file.read_text().replace("Husband", "Hubby"))

    with pytest.raises(ValueError, match="relationship is 'Hubby' in a row"):
        census_rows.read(file)


@pytest.mark.parametrize("batch", [7, 10, 23])
def test_every_epoch_has_each_row_once_in_an_order_of_its_own(batch: int) -> None:
    places = np.concatenate(list(islice(census_rows.orders(10, batch), 50)))

    epochs = places[: len(places) // 10 * 10].reshape(-1, 10)

    assert (np.sort(epochs) == np.arange(10)).all()
    assert len({tuple(epoch) for epoch in epochs}) > 30
