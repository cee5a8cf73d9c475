"""Process of a parameter server: serves until training ends, and shuts down on SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing

from torch_estimator import activity
from torch_estimator.cluster.task import Task
from torch_estimator.parameter_server.encryption import key_from_environment
from torch_estimator.parameter_server.server import ParameterServer
from torch_estimator.stop_signals import on_stop_signals

_CTRL_C = "Ctrl-C"


def run_parameter_server(
    task: Task, *, wait_secs: float, is_over: Callable[[], bool] = lambda: False, serves_until_sigterm: bool = False
) -> None:
    """Run the parameter server of this process until training ends.

    After SIGTERM or Ctrl-C the server keeps serving, for 20 s at most, until the chief has saved the server's
    parameters or no worker is left. Then it raises SystemExit, with the status that asks the launcher for a restart, or
    KeyboardInterrupt. `is_over` says whether the training had ended before the server was started. With
    `serves_until_sigterm` it serves one training after another.
    """
    assert task.address is not None
    server: ParameterServer | None = None
    received = ""

    def shut_down(number: int) -> None:
        nonlocal received
        received = _CTRL_C if number == signal.SIGINT else received or "SIGTERM"
        if server is not None:
            server.shut_down(received)

    with on_stop_signals(shut_down, until=f"{task} stays, for 20 s at most, until what it holds is saved"):
        server = ParameterServer(
            str(task),
            task.address,
            key_from_environment(),
            wait_secs=wait_secs,
            serves_until_sigterm=serves_until_sigterm,
            is_over=is_over,
        )
        with closing(server), activity.doing("serving", server.looked_at, step=server.step):
            if received:
                # The signal came before the server existed, so the signal handler could not shut it down.
                server.shut_down(received)
            try:
                server.serve()
            except SystemExit:
                if received != _CTRL_C:
                    raise
            finally:
                activity.note_end(received or "training is over")
    if received == _CTRL_C:
        raise KeyboardInterrupt
