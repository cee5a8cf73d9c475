"""Descriptions of features, in JSON and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from torch_estimator.data.feature_structure import assemble, describe, leaves

FORMS: list[tuple[Any, list[str]]] = [
    (torch.zeros(2, 3), ["features"]),
    ((torch.zeros(2), torch.zeros(2, 3, dtype=torch.int64)), ["features_0", "features_1"]),
    ({"b": torch.zeros(2, 1), "a": torch.zeros(2, dtype=torch.bool)}, ["b", "a"]),
    ({"x": {"y": torch.zeros(2)}, "z": (torch.zeros(2),)}, ["x/y", "z_0"]),
]


@pytest.mark.parametrize(("features", "names"), FORMS)
def test_features_are_put_together_again_as_they_were(features: Any, names: list[str]) -> None:
    structure = json.loads(json.dumps(describe(features)))
    assert [name for name, _ in leaves(structure)] == names
    again = assemble(structure, lambda name, leaf: torch.zeros(2, *leaf["shape"], dtype=getattr(torch, leaf["dtype"])))
    assert describe(again) == structure


def test_strings_are_strings_and_may_be_left_out() -> None:
    structure = describe({"word": np.array(["a"], object), "x": torch.zeros(1)})
    assert dict(leaves(structure))["word"] == {"dtype": "string", "shape": []}
    found = assemble(structure, lambda name, leaf: None if leaf["dtype"] == "string" else name)
    assert found == {"x": "x"}
