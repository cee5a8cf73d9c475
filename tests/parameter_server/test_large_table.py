"""Rows of large tables on a parameter server: made, read, kept while they are written, and refused without room."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.checkpoint.saved_tensors import SavedTensors
from torch_estimator.checkpoint.writer import CheckpointWriter
from torch_estimator.errors import CheckpointError, ClusterError, InvalidValueError
from torch_estimator.initial_values import Distribution, truncated_normal, uniform
from torch_estimator.parameter_server import large_table
from torch_estimator.parameter_server.large_table import FrozenRows, RowWriting, check_room, filled
from torch_estimator.parameter_server.lookups import RowDeduplicator, RowHashing
from torch_estimator.parameter_server.plan import LargePlan, ServerPlan, SlotPlan, TablePlan, VariablePlan

DIM = 4
PIECES = [
    fc.Piece(name="a", rows=101, initializer=Distribution(truncated_normal, 0.5)),
    fc.Piece(name="b", rows=3),
    fc.Piece(name="c", rows=57, initializer=Distribution(uniform, 0.1)),
]
SLOTS = (SlotPlan("accumulator", "Adagrad", 0.1),)


def whole_table() -> tuple[np.ndarray, int]:
    """The rows of a table in one process, and the seed that it was made with."""
    torch.manual_seed(5)
    table = fc.Table(PIECES, dim=DIM)
    torch.manual_seed(5)
    return table.weight.detach().numpy()[:-1], int(torch.randint(0, 2**62, ()))


def plan(server: int, servers: int, seed: int) -> TablePlan:
    variables, offset = [], 0
    for piece in PIECES:
        made: Any = piece.initializer
        name, scale = (None, 0.0) if made is None else (made.quantiles.__name__, made.scale)
        variables.append(VariablePlan(piece.name, offset, piece.rows, name, scale, seed))
        offset += piece.rows
    rows = len(range(server, offset, servers))
    return TablePlan("table", rows, DIM, 0, LargePlan(server, servers, tuple(variables), SLOTS))


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_servers_make_the_initial_values_of_a_table_in_one_process(servers: int) -> None:
    expected, seed = whole_table()
    for server in range(servers):
        store = filled(plan(server, servers, seed), "float32", {})
        np.testing.assert_array_equal(store[:, 0], expected[server::servers])
        assert (store[:, 1] == np.float32(0.1)).all()


@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_any_number_of_servers_reads_what_any_number_has_written(tmp_path: Path, before: int, servers: int) -> None:
    """`before` is 0 for a checkpoint of one process."""
    total = sum(piece.rows for piece in PIECES)
    table = np.random.default_rng(1).normal(size=(total, 2, DIM)).astype(np.float32)
    _save(tmp_path, table, before)
    checkpoint = load_checkpoint(tmp_path)
    assert isinstance(checkpoint.variables, SavedTensors)
    assert isinstance(checkpoint.slots, SavedTensors)
    sources = {name: checkpoint.variables.files_of(name) for name in "abc"}
    sources |= {f"{name}/Adagrad": checkpoint.slots.files_of(f"{name}/Adagrad") for name in "abc"}
    for server in range(servers):
        store = filled(plan(server, servers, 0), "float32", sources)
        np.testing.assert_array_equal(store, table[server::servers])


def _save(model_dir: Path, table: np.ndarray, servers: int) -> None:
    ends = np.cumsum([0, *(piece.rows for piece in PIECES)])
    parts = {piece.name: table[ends[n] : ends[n + 1]] for n, piece in enumerate(PIECES)}
    with CheckpointWriter(model_dir) as writer:
        if not servers:
            values = {name: torch.tensor(one[:, 0]) for name, one in parts.items()}
            slots = {f"{name}/Adagrad": torch.tensor(one[:, 1]) for name, one in parts.items()}
            writer.save(1, values, slots)
            return
        directory = writer.reserve(1)
        writing = [
            RowWriting(
                directory,
                server,
                [(plan(server, servers, 0), FrozenRows(table[server::servers].copy()), threading.Lock())],
            )
            for server in range(servers)
        ]

        def written() -> list[Any]:
            for one in writing:
                one._thread.join()
                assert one.progress()["error"] is None
            return [large_table.RowFileName(**file) for one in writing for file in one.progress()["files"]]

        writer.save(1, {"bias": torch.ones(1)}, row_files=written)


def test_frozen_rows_are_those_of_the_moment_although_updates_go_on() -> None:
    rng = np.random.default_rng(0)
    store = rng.normal(size=(500, 2, DIM)).astype(np.float32)
    before, frozen, read = store.copy(), FrozenRows(store), np.empty((2, 500, DIM), np.float32)
    for start in range(0, 500, 50):
        for _ in range(5):
            ids = rng.choice(500, 40, replace=False)
            frozen.keep(ids)
            store[ids] += 1.0
        frozen.read(start, start + 50, read[:, start : start + 50])
    np.testing.assert_array_equal(read.swapaxes(0, 1), before)
    assert (store != before).any()


def test_rows_that_are_missing_or_not_finite_are_one_sentence(tmp_path: Path) -> None:
    total = sum(piece.rows for piece in PIECES)
    _save(tmp_path / "fewer", np.zeros((total, 2, DIM), np.float32), 2)
    found = load_checkpoint(tmp_path / "fewer").variables
    assert isinstance(found, SavedTensors)
    sources = {name: found.files_of(name)[:1] for name in "abc"}
    with pytest.raises(CheckpointError, match=r"hold 51 rows of 'a' for this parameter server, which needs 101\."):
        filled(plan(0, 1, 0), "float32", sources)

    table = np.zeros((total, 2, DIM), np.float32)
    table[120, 0, 1] = np.nan
    writing = RowWriting(str(tmp_path), 0, [(plan(0, 1, 0), FrozenRows(table), threading.Lock())])
    writing._thread.join()
    assert writing.progress() == {"done": True, "files": [], "error": "'c' is NaN or infinite"}


def test_too_little_memory_or_disk_is_said_with_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = replace(plan(0, 1, 0), rows=10**6)
    server = ServerPlan(dtype="float32", groups=(), dense=(), tables=(table,))
    check_room("ps 0", server, str(tmp_path))
    monkeypatch.setattr(large_table, "available_memory", lambda: 1000)
    with pytest.raises(ClusterError, match=r"ps 0 is to hold 1000000 rows .* take 32000000 bytes, but only 1000 bytes"):
        check_room("ps 0", server, str(tmp_path))
    monkeypatch.setattr(large_table, "available_memory", lambda: None)
    with pytest.raises(
        ClusterError,
        match=r"into a checkpoint, but only \d+ bytes are free on the disk of .*, too little for 2",
    ):
        check_room("ps 0", replace(server, tables=(replace(table, rows=10**12),)), str(tmp_path))


@pytest.mark.parametrize("wrong", [-1, 51])
def test_an_id_that_the_table_does_not_have_is_said(wrong: int) -> None:
    with pytest.raises(InvalidValueError, match=rf"looks up the id {wrong} in the table of 'a', which has 50 rows;"):
        RowHashing(50, "a").unique(np.array([0, 50, wrong, 3]))


def test_hashing_finds_the_rows_that_a_table_of_positions_finds() -> None:
    rng = np.random.default_rng(0)
    for ids in (rng.integers(0, 51, 400), np.array([50, 50]), np.array([3, 50, 3, 1]), np.empty(0, np.int64)):
        hashed, expected = RowHashing(50, "a").unique(ids), RowDeduplicator(50).unique(ids)
        assert sorted(hashed.rows) == sorted(expected.rows)
        np.testing.assert_array_equal(ids[hashed.at], hashed.rows)
        assert hashed.places is not None
        np.testing.assert_array_equal(np.append(hashed.rows, 50)[hashed.places], ids)
