"""When a child that failed is started again, and how often."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Restarts:
    """Count of a child's restarts, and the rules for the next one.

    The first restart comes at once. The pause before each further one doubles, from one second on.

    Args:
        most: Most restarts; infinity for any number.
        longest_pause_secs: Most seconds before a restart. 0 restarts at once each time.
        forget_secs: A child that has run for this long before it failed has all its restarts again.
        made: Restarts so far.

    >>> restarts = Restarts(most=4, longest_pause_secs=1.5, forget_secs=60.0)
    >>> [restarts.next_pause(0.1) for _ in range(5)]
    [0.0, 1.0, 1.5, 1.5, inf]
    >>> restarts.next_pause(61.0), restarts.made
    (0.0, 1)
    """

    most: float = math.inf
    longest_pause_secs: float = 0.0
    forget_secs: float = math.inf
    made: int = 0

    def next_pause(self, ran_secs: float) -> float:
        """Count a restart of a child that ran for `ran_secs`; return the pause before it, infinity for no restart."""
        if ran_secs >= self.forget_secs:
            self.made = 0
        if self.made >= self.most:
            return math.inf
        self.made += 1
        # Such a power of two exceeds any pause, and a larger one would exceed the range of a float.
        return min(self.longest_pause_secs, 2.0 ** min(self.made - 2, 64)) if self.made > 1 else 0.0
