"""A parameter server's role: hold parameters until training ends."""

from __future__ import annotations

from contextlib import closing

from torch_estimator.cluster.task import Task
from torch_estimator.parameter_server.key import key_from_environment
from torch_estimator.parameter_server.server import ParameterServer


def run_parameter_server(task: Task) -> None:
    """Serves."""
    assert task.address is not None
    with closing(ParameterServer(str(task), task.address, key_from_environment())) as server:
        server.serve()
