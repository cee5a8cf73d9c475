from __future__ import annotations

import pytest
import torch

from torch_estimator.feature_column.table import Piece, PlacedPiece, Table, tables_of_checkpoint


def make() -> Table:
    return Table([Piece(name="a", rows=2), Piece(name="b", rows=3, initializer=torch.nn.init.ones_)], 2)


def test_pieces_are_consecutive_and_the_last_row_is_zero() -> None:
    table = make()
    assert table.pieces == (
        PlacedPiece(name="a", offset=0, rows=2),
        PlacedPiece(name="b", offset=2, rows=3),
    )
    assert table.weight.tolist() == [[0, 0]] * 2 + [[1, 1]] * 3 + [[0, 0]]


def test_padding_gives_zeros_and_gets_no_gradient() -> None:
    table = make()
    rows = table(torch.tensor([[3, 5], [5, 3]]))
    assert rows.tolist() == [[[1, 1], [0, 0]], [[0, 0], [1, 1]]]
    (rows * 3).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad[:, 0].tolist() == [0, 0, 0, 6, 0, 0]


@pytest.mark.parametrize("compiling", [False, True])
def test_a_recorder_gets_the_gathered_rows_to_differentiate_by(
    compiling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch before 2.13 cannot compile a step that makes a leaf.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    table = make()
    table.recorder = recorded = []
    ids = torch.tensor([[2, 5]])
    out = table(ids)
    assert len(recorded) == 1
    owner, recorded_ids, rows = recorded[0]
    assert owner is table
    assert recorded_ids is ids
    assert rows.is_leaf is not compiling
    (gradient,) = torch.autograd.grad((out * 2).sum(), [rows])
    assert gradient.tolist() == [[[2, 2], [2, 2]]]
    assert table.weight.grad is None


def test_a_frozen_table_has_no_trainable_weight() -> None:
    assert not Table([Piece(name="a", rows=2)], 2, trainable=False).weight.requires_grad


def normal(rows: torch.Tensor) -> None:
    rows.normal_()


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("rows", [3, 1000])
def test_random_numbers_after_a_table_depend_neither_on_its_size_nor_on_its_values(restored: bool, rows: int) -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        torch.randint(0, 2**62, ())
        expected = torch.rand(3)
        torch.manual_seed(1)
        with tables_of_checkpoint(restored=restored) as left_at_zero:
            table = Table([Piece(name="a", rows=rows, initializer=normal)], 2)
        assert torch.equal(torch.rand(3), expected)
        assert (table in left_at_zero) is restored
        assert bool(table.weight.detach().any()) is not restored
        for draw in left_at_zero.values():
            draw()
        drawn = table.weight.detach()[:3].clone()
        torch.manual_seed(1)
        assert torch.equal(Table([Piece(name="a", rows=rows, initializer=normal)], 2).weight.detach()[:3], drawn)


def test_tables_made_outside_the_context_have_initial_values() -> None:
    with torch.random.fork_rng([]):
        with tables_of_checkpoint(restored=True), tables_of_checkpoint(restored=False):
            within = Table([Piece(name="a", rows=2, initializer=normal)], 2)
        after = Table([Piece(name="a", rows=2, initializer=normal)], 2)
    assert within.weight[:2].detach().abs().min() > 0
    assert after.weight[:2].detach().abs().min() > 0
