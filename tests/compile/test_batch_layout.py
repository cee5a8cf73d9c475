"""Batches have equal layouts where a compiled step cannot tell them apart."""

from __future__ import annotations

import torch

from torch_estimator.compile.batch_layout import tensor_layouts


def test_the_stride_of_a_single_column_is_no_difference() -> None:
    # Ids of one column, out of pieces of input of different lengths, as a filter leaves them.
    pieces = [torch.zeros(1, length).T for length in (704, 653)]
    layouts = {tensor_layouts([piece[:50]]) for piece in (*pieces, torch.zeros(704, 1))}
    assert len(layouts) == 1


def test_other_strides_are_a_difference() -> None:
    assert tensor_layouts([torch.zeros(2, 704).T[:50]]) != tensor_layouts([torch.zeros(50, 2)])
    # Batches of one row lie this far apart.
    every_other = torch.zeros(4, 3)[::2]
    assert tensor_layouts([every_other[:1]])[0][1] == (6, 1)
