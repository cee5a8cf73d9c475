"""A parameter server's role: hold parameters until training ends."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from contextlib import closing

from torch_estimator.cluster.task import Task
from torch_estimator.parameter_server.key import key_from_environment
from torch_estimator.parameter_server.server import ParameterServer
from torch_estimator.stop_signals import on_stop_signals

_CTRL_C = "Ctrl-C"


def run_parameter_server(
    task: Task, *, wait_secs: float, is_over: Callable[[], bool] = lambda: False, until_told: bool = False
) -> None:
    """Serve; after SIGTERM or Ctrl-C until the others have gone, which may still have to save what is here.

    Args:
        task: This process.
        wait_secs: How long to wait for the chief, or for one of those that train to come back.
        is_over: Whether the training has ended before.
        until_told: Whether to serve one training after another, until SIGTERM comes.

    Raises:
        ClusterError: The address cannot be used, or nobody has come in time.
        SystemExit: SIGTERM has come; it asks to be started again.
        KeyboardInterrupt: Ctrl-C has come.
    """
    assert task.address is not None
    key = key_from_environment()
    make = functools.partial(ParameterServer, str(task), task.address, key, wait_secs=wait_secs, is_over=is_over)
    server: ParameterServer | None = None
    came = ""

    def go(number: int) -> None:
        nonlocal came
        came = _CTRL_C if number == signal.SIGINT else came or "SIGTERM"
        if server is not None:
            server.go(came)

    with on_stop_signals(go, until=f"{task} stays, for 20 s at most, until what it holds is saved"):
        try:
            while server is None or until_told:
                if server is not None:
                    server.lives.end()
                with closing(make(over=None if server is None else server.lives)) as server:
                    # Between one training and the next.
                    if came:
                        server.go(came)
                    server.serve()
        except SystemExit:
            if came != _CTRL_C:
                raise
    if came == _CTRL_C:
        raise KeyboardInterrupt
