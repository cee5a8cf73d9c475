"""How often and how long a job tries."""

from __future__ import annotations

from dataclasses import dataclass

from torch_estimator.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a job puts up with.

    Args:
        max_restarts: How often each process is started again.
        finish_secs: How long the others may go on after the chief has ended well.
        stop_secs: How long a process may take to end after it was told to, before it is killed.

    Raises:
        InvalidValueError: One is negative or no number.
    """

    max_restarts: int = 3
    finish_secs: float = 600.0
    stop_secs: float = 10.0

    def __post_init__(self) -> None:
        for name in ("max_restarts", "finish_secs", "stop_secs"):
            value = getattr(self, name)
            if not value >= 0:
                raise InvalidValueError(f"{name} must be 0 or more, but got {value}.")
