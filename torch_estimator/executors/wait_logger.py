"""What is waited for, said from time to time, and for how long at most."""

from __future__ import annotations

import logging
from collections.abc import Callable

from torch_estimator.errors import ClusterError

logger = logging.getLogger("torch_estimator")

_SAY_EVERY_SECS = 600.0


class Patience:
    """Of a process that waits for one thing after the other.

    Args:
        name: Of the process.
        clock: Seconds that only go forward.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._what: str | None = None
        self._began = self._said = clock()

    def wait(self, what: str, hint: str, *, most_secs: float | None = None) -> None:
        """Says so at first and every ten minutes.

        Args:
            what: Is waited for.
            hint: What to look at where it does not come.
            most_secs: How long it may take, if there is a limit.

        Raises:
            ClusterError: It has not come in time.
        """
        now = self._clock()
        if what != self._what:
            self._what, self._began, self._said = what, now, now
            logger.info("Waiting for %s.", what)
        waited = now - self._began
        if most_secs is not None and waited >= most_secs:
            raise ClusterError(
                f"{self._name} waited {most_secs:g} s (session_creation_timeout_secs of RunConfig) for {what}; {hint}."
            )
        if now >= self._said + _SAY_EVERY_SECS:
            self._said = now
            logger.warning("%s has waited %.0f s for %s; %s.", self._name, waited, what, hint)

    def over(self) -> None:
        """After something has come: the next wait is another one."""
        self._what = None
