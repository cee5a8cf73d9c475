"""Process of a parameter server: serves until training ends, and shuts down on SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from typing import Any

from torch_estimator import activity, files
from torch_estimator.cluster.task import Task
from torch_estimator.parameter_server.encryption import key_from_environment
from torch_estimator.parameter_server.run_id import MODEL_DIR, RunIdFile
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

    def may_write(model_dir: str, run_id: int) -> bool:
        # A message must not make this process write anywhere but beside the run id, which the chief has written.
        with suppress(Exception):
            may_look = files.is_local(model_dir) or key is not None
            return may_look and RunIdFile(model_dir, str(task)).read_if_there() == run_id
        return False

    def recording(about: Mapping[str, Any], run_id: int) -> AbstractContextManager[None]:
        model_dir = str(about.get(MODEL_DIR))
        return activity.recording(model_dir, task) if may_write(model_dir, run_id) else nullcontext()

    key = key_from_environment()
    with on_stop_signals(shut_down, until=f"{task} stays, for 20 s at most, until what it holds is saved"):
        server = ParameterServer(
            str(task),
            task.address,
            key,
            wait_secs=wait_secs,
            serves_until_sigterm=serves_until_sigterm,
            is_over=is_over,
            recording=recording,
            may_write=may_write,
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
                if received:
                    activity.note_end(received, failed=True)
    if received == _CTRL_C:
        raise KeyboardInterrupt
