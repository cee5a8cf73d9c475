"""Batches have equal layouts where a compiled step cannot tell them apart."""

from __future__ import annotations

import torch

from torch_estimator.compile.batch_layout import tensor_layouts, with_plain_strides


def test_the_stride_of_a_single_column_is_no_difference() -> None:
    # Ids of one column, out of pieces of input of different lengths, as a filter leaves them.
    pieces = [torch.zeros(1, length).T for length in (704, 653)]
    layouts = {tensor_layouts([with_plain_strides(piece[:50])]) for piece in (*pieces, torch.zeros(704, 1))}
    assert len(layouts) == 1


def test_dimensions_of_size_one_get_the_strides_of_a_new_tensor() -> None:
    images = torch.zeros(8, 1, 28, 28).as_strided((8, 1, 28, 28), (784, 1, 28, 1))
    assert with_plain_strides(images).stride() == torch.zeros(8, 1, 28, 28).stride()
    transposed = torch.zeros(8, 28, 28, 1).transpose(1, 2)
    assert with_plain_strides(transposed).stride() == (784, 1, 28, 1)


def test_other_strides_are_a_difference() -> None:
    assert tensor_layouts([torch.zeros(2, 704).T[:50]]) != tensor_layouts([torch.zeros(50, 2)])
    # Batches of one row lie this far apart.
    every_other = torch.zeros(4, 3)[::2]
    assert tensor_layouts([every_other[:1]])[0][1] == (6, 1)
