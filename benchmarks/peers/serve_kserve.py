"""KServe's Python server with the census export: `python -m benchmarks.peers.serve_kserve EXPORT PORT`."""

from __future__ import annotations

import sys
from typing import Any

import kserve

from benchmarks.peers.serving_model import HandwrittenModel


class Census(kserve.Model):
    """Predicts the instances of each request."""

    def __init__(self, directory: str) -> None:
        super().__init__("census")
        self.model = HandwrittenModel(directory)
        self.ready = True

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        return {"predictions": self.model.rows(payload["instances"])}


if __name__ == "__main__":
    kserve.ModelServer(http_port=int(sys.argv[2]), enable_grpc=False, workers=1, access_log_format=None).start(
        [Census(sys.argv[1])]
    )
