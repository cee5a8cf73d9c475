"""What the servers of peers run: an export through onnxruntime, from JSON instances to JSON rows, written by hand.

It needs numpy and onnxruntime only, and checks nothing, so that a peer is not charged with more than its own work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

_TYPES = {"DT_STRING": object, "DT_FLOAT": np.float32, "DT_INT64": np.int64}


class HandwrittenModel:
    """The export of a directory, run on lists of instances."""

    def __init__(self, directory: str) -> None:
        signature = json.loads(Path(directory, "signatures.json").read_text())["signatures"]["serving_default"]
        self.inputs = {
            name: (one["tensor"], _TYPES[one["dtype"]], one["shape"]) for name, one in signature["inputs"].items()
        }
        self.outputs = {name: one["tensor"] for name, one in signature["outputs"].items()}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(Path(directory, "model.onnx")), options, providers=["CPUExecutionProvider"]
        )

    def run(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs for arrays by the names of the inputs."""
        feeds = {
            tensor: np.asarray(arrays[name], dtype).reshape(-1, *shape[1:])
            for name, (tensor, dtype, shape) in self.inputs.items()
        }
        return dict(zip(self.outputs, self.session.run(list(self.outputs.values()), feeds), strict=True))

    def rows(self, instances: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """One dict of outputs for each instance."""
        outputs = self.run({name: [instance[name] for instance in instances] for name in self.inputs})
        lists = {name: array.tolist() for name, array in outputs.items()}
        return [{name: values[row] for name, values in lists.items()} for row in range(len(instances))]
