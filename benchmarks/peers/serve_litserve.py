"""LitServe with the census export: `python -m benchmarks.peers.serve_litserve EXPORT PORT`."""

from __future__ import annotations

import sys
from typing import Any

import litserve

from benchmarks.peers.serving_model import HandwrittenModel


class Census(litserve.LitAPI):
    """Predicts the instance of each request, several requests at a time."""

    def setup(self, device: str) -> None:
        self.model = HandwrittenModel(sys.argv[1])

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe reads annotations
        return request["instances"][0]

    def predict(self, instances: Any) -> Any:
        return self.model.rows(instances)

    def encode_response(self, output: Any) -> Any:
        return {"predictions": [output]}


if __name__ == "__main__":
    api = Census(max_batch_size=64, batch_timeout=0.001)
    litserve.LitServer(api, accelerator="cpu").run(
        host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="warning"
    )
