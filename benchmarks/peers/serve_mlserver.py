"""MLServer with the census export: `python -m benchmarks.peers.serve_mlserver EXPORT PORT`."""

from __future__ import annotations

import asyncio
import sys

from mlserver import MLModel, MLServer, ModelSettings, Settings, types
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.settings import ModelParameters

from benchmarks.peers.serving_model import HandwrittenModel


class Census(MLModel):
    """Predicts the inputs of each request; MLServer joins requests."""

    async def load(self) -> bool:
        self.model = HandwrittenModel(sys.argv[1])
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        arrays = {}
        for one in payload.inputs:
            codec = StringCodec if one.datatype == "BYTES" else NumpyCodec
            arrays[one.name] = codec.decode_input(one)
        outputs = [
            StringCodec.encode_output(name, array.ravel().tolist())
            if array.dtype == object
            else NumpyCodec.encode_output(name, array)
            for name, array in self.model.run(arrays).items()
        ]
        return types.InferenceResponse(model_name=self.name, outputs=outputs)


async def main() -> None:
    port = int(sys.argv[2])
    server = MLServer(
        Settings(
            host="127.0.0.1",
            http_port=port,
            grpc_port=port + 1,
            metrics_port=port + 2,
            parallel_workers=0,
            debug=False,
        )
    )
    settings = ModelSettings(
        name="census",
        implementation=Census,
        max_batch_size=64,
        max_batch_time=0.001,
        parameters=ModelParameters(version="1"),
    )
    await server.start([settings])


if __name__ == "__main__":
    asyncio.run(main())
