"""What a module made of a batch goes to another process whole, and nothing that comes from there is executed."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import torch_estimator as te
from torch_estimator.engine.batches import TensorBatch, WeightsAndFeatures
from torch_estimator.engine.shared_evaluation.packing import packed, unpacked

BATCH = (
    {"logits": torch.arange(6, dtype=torch.bfloat16).reshape(3, 2), "several": (torch.zeros(3), None, 1.5)},
    TensorBatch(
        features=None,
        labels=torch.tensor([1, 0, 2]),
        weights=WeightsAndFeatures(torch.ones(3, 1), {"age": torch.ones(3)}),
        raw={
            "color": pa.array(["red", None, "blue"]),
            "size": np.array([1.5, 2.5, float("inf")]),
            "name": np.array(["a", b"b", None], dtype=object),
        },
    ),
)


def test_a_batch_comes_as_it_went() -> None:
    outputs, tensors = unpacked(packed(BATCH), like=BATCH)
    assert outputs["logits"].dtype == torch.bfloat16
    assert torch.equal(outputs["logits"], BATCH[0]["logits"])
    assert outputs["several"][1:] == (None, 1.5)
    assert torch.equal(tensors.labels, BATCH[1].labels)
    assert torch.equal(tensors.weights.features["age"], torch.ones(3))
    assert tensors.raw["color"].tolist() == ["red", None, "blue"]
    assert tensors.raw["size"].tolist() == [1.5, 2.5, float("inf")]
    assert tensors.raw["name"].tolist() == ["a", b"b", None]


def test_what_is_no_tensor_is_not_sent() -> None:
    with pytest.raises(te.errors.InvalidTypeError, match=r"^eval_distribute needs .* but got a <class 'object'>; "):
        packed((object(), BATCH[1]))


class Harms:
    done = False

    def __reduce__(self) -> Any:
        return _harm, ()


def _harm() -> None:
    Harms.done = True


def saved(value: object, tmp_path: Any) -> bytes:
    torch.save(value, tmp_path / "saved")
    return (tmp_path / "saved").read_bytes()


def test_what_comes_from_elsewhere_is_not_executed(tmp_path: Any) -> None:
    for data in (pickle.dumps(Harms(), 2), saved([Harms()], tmp_path), saved([torch.ones(3)], tmp_path), b"nonsense"):
        with pytest.raises(te.errors.ClusterError, match=r"^What another process made of its batch is not like "):
            unpacked(data, like=BATCH)
    assert not Harms.done
