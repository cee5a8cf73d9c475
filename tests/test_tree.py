"""Structures of dicts, tuples and lists."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_estimator import tree


class Pair(NamedTuple):
    first: Any
    second: Any


def test_a_function_is_applied_to_every_leaf_and_the_form_stays() -> None:
    structure = {"a": 1, "b": (2, [3, None]), "c": Pair(4, {}), "d": OrderedDict(e=5)}
    doubled = tree.map(lambda leaf: 2 * leaf, structure)
    assert doubled == {"a": 2, "b": (4, [6, None]), "c": Pair(8, {}), "d": {"e": 10}}
    assert isinstance(doubled["c"], Pair)
    assert tree.map(str, None) is None
    assert tree.map(str, 1) == "1"


def test_some_containers_can_be_leaves() -> None:
    assert tree.map(sum, {"a": [1, 2], "b": ([3],)}, is_leaf=lambda value: isinstance(value, list)) == {
        "a": 3,
        "b": (3,),
    }


def test_leaves_come_in_order_without_none() -> None:
    assert tree.leaves({"b": 1, "a": ([2, None], Pair(None, 3)), "c": {}}) == [1, 2, 3]
    assert tree.leaves(None) == []


def test_rows_of_all_kinds_of_leaves_are_split_as_views() -> None:
    tensor, array = torch.arange(12).reshape(6, 2), np.arange(6)
    strings, words = pa.array(list("abcdef")), np.array([*"uvwxyz"], object)
    whole = Pair({"t": tensor, "deep": {"a": array, "none": None}, "two": (strings, words), "list": [array]}, None)
    parts = tree.split_rows(whole, 3)
    assert [part.first["t"].tolist() for part in parts] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]
    assert [part.first["deep"]["a"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert [part.first["two"][0].to_pylist() for part in parts] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert [part.first["two"][1].tolist() for part in parts] == [["u", "v"], ["w", "x"], ["y", "z"]]
    assert [part.first["list"][0].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert {(part.first["deep"]["none"], part.second) for part in parts} == {(None, None)}
    assert parts[1].first["t"].data_ptr() == tensor[2:].data_ptr()
    second = tree.slice_rows(whole, 2, 4)
    assert second.first["two"][0] == parts[1].first["two"][0]
    assert second.first["t"].tolist() == parts[1].first["t"].tolist()


@pytest.mark.parametrize("empty", [None, {}, (), []])
def test_a_structure_without_leaves_is_split_into_itself(empty: Any) -> None:
    assert tree.split_rows(empty, 2) == [empty, empty]


def test_a_module_may_change_its_part_in_place() -> None:
    first, second = tree.split_rows(torch.ones(4), 2)
    scale = torch.tensor(2.0, requires_grad=True)
    loss = (first.mul_(scale) ** 2).sum()
    second.mul_(3)
    loss.backward()
    assert scale.grad is not None and scale.grad.item() == 8
    assert second.requires_grad_().is_leaf
