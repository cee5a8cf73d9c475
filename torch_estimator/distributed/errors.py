"""Errors of a process group: another process is lost, or the group has gone on without this process.

Every collective that cannot complete raises `PeerLost`. Sessions that can recover catch it and form the group again
(`Group.rejoin`). All others let it end the process, with an exit status that asks the launcher for a restart.
"""

import re

from torch_estimator.errors import RESTART_ME, ClusterError


class PeerLost(ClusterError):
    """Another process of the group is gone. A new process may replace it.

    With `restart_all`, training can go on once all processes are started again; then the exit status of this process
    asks the launcher for a restart.
    """

    def __init__(self, text: str, *, restart_all: bool = False) -> None:
        super().__init__(text)
        if restart_all:
            self.exit_status = RESTART_ME


class PeerBack(PeerLost):
    """An absent process of an elastic group is back, so the group has to be formed again to include it."""


class LeftBehind(ClusterError):
    """An elastic group has gone on without this process, so what this process holds is outdated."""

    def __init__(self, process: object) -> None:
        super().__init__(
            f"{process} was away for too long: the others have gone on without it; start it again to go on."
        )


class TrainingOver(Exception):
    """The chief has ended the training, so there is no group to form or to rejoin."""


def short_reason(error: Exception) -> str:
    """Return the first sentence of an error of gloo, without the source location before it and the advice after it.

    >>> short_reason(RuntimeError("[/gloo/pair.cc:534] Connection closed by peer [::1]:1. Check for other errors."))
    'Connection closed by peer [::1]:1'
    """
    return re.sub(r"^\[[^\]]*\] ", "", str(error).partition("\n")[0]).partition(". ")[0].strip()
