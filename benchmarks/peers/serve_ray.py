"""Ray Serve with the census export: `python -m benchmarks.peers.serve_ray EXPORT PORT`."""

from __future__ import annotations

import signal
import sys
from typing import Any

import ray
from ray import serve

from benchmarks.peers.serving_model import HandwrittenModel


@serve.deployment(max_ongoing_requests=256, ray_actor_options={"num_cpus": 0.5})
class Census:
    """Predicts the instance of each request, several requests at a time."""

    def __init__(self, directory: str) -> None:
        self.model = HandwrittenModel(directory)

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.001)
    async def predict(self, instances: list[Any]) -> list[Any]:
        return self.model.rows(instances)

    async def __call__(self, request: Any) -> Any:
        content = await request.json()
        return {"predictions": [await self.predict(content["instances"][0])]}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(Census.bind(sys.argv[1]), name="census", route_prefix="/predict")
    signal.pause()
