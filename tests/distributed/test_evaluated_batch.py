"""An evaluated batch arrives in another process as it was, and bytes from another process execute nothing."""

from __future__ import annotations

import datetime
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import torch_estimator as te
from torch_estimator.distributed.evaluated_batch import pack_batch, unpack_batch
from torch_estimator.train.batches import TensorBatch, WeightsAndFeatures


@dataclass
class Outputs:
    boxes: list[torch.Tensor]
    name: str = ""


BATCH = (
    {
        "logits": torch.arange(6, dtype=torch.bfloat16).reshape(3, 2),
        "several": (torch.zeros(3), None, 1.5),
        "ordered": OrderedDict(b=torch.ones(3), a=torch.zeros(3)),
        "boxes": Outputs([torch.ones(2, 4), torch.ones(0, 4)], "two"),
    },
    TensorBatch(
        features=None,
        labels=torch.tensor([1, 0, 2]),
        weights=WeightsAndFeatures(torch.ones(3, 1), {"age": torch.ones(3)}),
        raw={
            "color": pa.array(["red", None, "blue"]),
            "size": np.array([1.5, 2.5, float("inf")]),
            "name": np.array(["a", b"b", None], dtype=object),
            "day": np.array([datetime.date(2026, 11, 22), None], dtype=object),
            "time": np.array(["2026-11-22"], dtype="datetime64[s]"),
            "text": np.array(["x", "yy"]),
        },
    ),
)


def test_a_batch_arrives_as_it_was() -> None:
    outputs, tensors = unpack_batch(pack_batch(BATCH), like=BATCH)
    assert outputs["logits"].dtype == torch.bfloat16
    assert torch.equal(outputs["logits"], BATCH[0]["logits"])
    assert outputs["several"][1:] == (None, 1.5)
    assert torch.equal(tensors.labels, BATCH[1].labels)
    assert torch.equal(tensors.weights.features["age"], torch.ones(3))
    assert tensors.raw["color"].tolist() == ["red", None, "blue"]
    assert tensors.raw["size"].tolist() == [1.5, 2.5, float("inf")]
    assert tensors.raw["name"].tolist() == ["a", b"b", None]
    assert tensors.raw["day"].tolist() == [datetime.date(2026, 11, 22), None]
    assert tensors.raw["time"].dtype == "datetime64[s]"
    assert tensors.raw["text"].tolist() == ["x", "yy"]
    assert type(outputs["ordered"]) is OrderedDict and list(outputs["ordered"]) == ["b", "a"]
    assert type(outputs["boxes"]) is Outputs and outputs["boxes"].name == "two"


def test_other_batches_may_have_more_or_less_of_something() -> None:
    def boxes(count: int) -> Any:
        return [torch.full((2, 4), float(number)) for number in range(count)], TensorBatch(
            None, torch.ones(count), None
        )

    outputs, tensors = unpack_batch(pack_batch(boxes(3)), like=boxes(1))
    assert [float(one[0, 0]) for one in outputs] == [0.0, 1.0, 2.0]
    assert len(tensors.labels) == 3
    assert unpack_batch(pack_batch(boxes(0)), like=boxes(1))[0] == []


def test_only_the_visible_part_of_a_view_is_sent() -> None:
    whole = torch.zeros(1000, 1000)
    assert len(pack_batch((whole[:, 0], BATCH[1]))) < 20_000


def test_objects_are_refused() -> None:
    with pytest.raises(te.errors.InvalidTypeError, match=r"^eval_distribute needs .* but got a <class 'object'>; "):
        pack_batch((object(), BATCH[1]))


class Harms:
    done = False

    def __reduce__(self) -> Any:
        return _harm, ()


def _harm() -> None:
    Harms.done = True


def saved(value: object, tmp_path: Any) -> bytes:
    torch.save(value, tmp_path / "saved")
    return (tmp_path / "saved").read_bytes()


def test_malicious_bytes_are_refused(tmp_path: Any) -> None:
    for data in (pickle.dumps(Harms(), 2), saved([Harms()], tmp_path), saved([torch.ones(3)], tmp_path), b"nonsense"):
        with pytest.raises(
            te.errors.ClusterError, match=r"^Another process has sent outputs that do not fit those of this process: "
        ):
            unpack_batch(data, like=BATCH)
    assert not Harms.done
