from __future__ import annotations

import torch

from torch_estimator.feature_column.table import Piece, PlacedPiece, Table


def make() -> Table:
    return Table([Piece(name="a", rows=2), Piece(name="b", rows=3, initializer=torch.nn.init.ones_)], 2)


def test_pieces_lie_one_after_the_other_and_the_last_row_is_zero() -> None:
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


def test_a_recorder_gets_the_gathered_rows_as_leaves() -> None:
    table = make()
    table.recorder = recorded = []
    ids = torch.tensor([[2, 5]])
    out = table(ids)
    assert len(recorded) == 1
    owner, recorded_ids, rows = recorded[0]
    assert owner is table
    assert recorded_ids is ids
    (gradient,) = torch.autograd.grad((out * 2).sum(), [rows])
    assert gradient.tolist() == [[[2, 2], [2, 2]]]
    assert table.weight.grad is None


def test_a_frozen_table_has_no_trainable_weight() -> None:
    assert not Table([Piece(name="a", rows=2)], 2, trainable=False).weight.requires_grad
