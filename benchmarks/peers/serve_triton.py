"""Triton's HTTP front end with the census export: `python -m benchmarks.peers.serve_triton EXPORT PORT`.

The wheel of nvidia-pytriton carries Triton's server; the model runs in onnxruntime, called from Python, as that server
calls it, with Triton's dynamic batching.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.peers.serving_model import HandwrittenModel

if __name__ == "__main__":
    model = HandwrittenModel(sys.argv[1])
    port = int(sys.argv[2])
    strings = {name for name, (_, dtype, _) in model.inputs.items() if dtype is object}

    @batch
    def infer(**arrays: Any) -> dict[str, Any]:
        decoded = {
            name: np.array([one.decode() for one in array.ravel()], object) if name in strings else array
            for name, array in arrays.items()
        }
        outputs = model.run(decoded)
        return {
            name: np.char.encode(array.astype(str), "utf-8") if array.dtype == object else array
            for name, array in outputs.items()
        }

    sample = model.run({name: np.array([""] if name in strings else [0.0]) for name in model.inputs})
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=port,
        grpc_port=port + 1,
        metrics_port=port + 2,
        log_verbose=0,
        http_thread_count=8,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="census",
            infer_func=infer,
            inputs=[
                Tensor(name=name, dtype=bytes if name in strings else np.float32, shape=(1,)) for name in model.inputs
            ],
            outputs=[
                Tensor(name=name, dtype=bytes if array.dtype == object else array.dtype.type, shape=array.shape[1:])
                for name, array in sample.items()
            ],
            config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=1000)),
            strict=False,
        )
        triton.serve()
