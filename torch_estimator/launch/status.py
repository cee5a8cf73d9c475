"""How a process has ended, in words and as a number."""

from __future__ import annotations

import signal

from torch_estimator.errors import RESTART_ME

USER_ERROR = 2
"""Exit status of a program whose user has to act; starting it again would not help."""

_SIGNALLED = 128


def described(status: int) -> str:
    """Returns what it has done.

    >>> described(-9), described(143), described(1)
    ('was killed by SIGKILL', 'was preempted (status 143)', 'ended with status 1')
    """
    if status == RESTART_ME:
        return f"was preempted (status {status})"
    if status >= 0:
        return f"ended with status {status}"
    names = {member.value: member.name for member in signal.Signals}
    return f"was killed by {names.get(-status, f'signal {-status}')}"


def for_shells(status: int) -> int:
    """Returns the exit status that a shell would show.

    >>> for_shells(-9), for_shells(3)
    (137, 3)
    """
    return _SIGNALLED - status if status < 0 else status
