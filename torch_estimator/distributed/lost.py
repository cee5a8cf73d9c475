"""What those who train together meet when one of them is gone."""

import re

from torch_estimator.errors import RESTART_ME, ClusterError


class PeerLost(ClusterError):
    """Another process of a group is gone, and may be replaced.

    Args:
        text: Its message.
        is_over: Whether it is enough to start all of them again.
    """

    def __init__(self, text: str, *, is_over: bool = False) -> None:
        super().__init__(text)
        if is_over:
            self.exit_status = RESTART_ME


class PeerBack(PeerLost):
    """A process that the others went on without is there again: they are no longer all of the group."""


class LeftBehind(ClusterError):
    """The others have gone on without a process that was away.

    Args:
        who: What the cluster calls it.
    """

    def __init__(self, who: object) -> None:
        super().__init__(f"{who} was away for too long: the others have gone on without it; start it again to go on.")


class TrainingOver(Exception):
    """A process that has lost the others need not wait for them."""


def reason(error: Exception) -> str:
    """What gloo says, without the line of its source and its advice."""
    return re.sub(r"^\[[^\]]*\] ", "", str(error).partition("\n")[0]).partition(". ")[0].strip()
