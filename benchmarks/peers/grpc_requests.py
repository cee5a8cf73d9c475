"""What a client sends over gRPC, as clients write it, in each of the protocols that our server speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch_estimator as te
from torch_estimator.serving.messages import read_messages
from torch_estimator.serving.tensorflow_grpc import write_tensor


def grpc_requests(export: str | Path, model: str, instances: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """Return a request for predictions in each protocol, by the path of its method."""
    inputs = te.ExportedModel.load(export).signature("serving_default").inputs
    open_inference, theirs = read_messages("open_inference"), read_messages("tensorflow_serving")
    infer, predict = open_inference["ModelInferRequest"](model_name=model), theirs["PredictRequest"]()
    predict.model_spec.name = model
    for name, info in inputs.items():
        array = info.type.check(name, [one[name] for one in instances])
        infer.inputs.add(name=name, datatype=info.type.datatype, shape=array.shape)
        infer.raw_input_contents.append(info.type.encode(array))
        write_tensor(predict.inputs[name], array, info)
    return {
        "/inference.GRPCInferenceService/ModelInfer": infer.SerializeToString(),
        "/tensorflow.serving.PredictionService/Predict": predict.SerializeToString(),
    }
