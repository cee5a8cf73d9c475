"""The number of random examples that each property is tried on.

By default few, always the same, so that a failure in CI is one everywhere. ``TE_PROPERTY_EXAMPLES=2000`` draws that
many for each property, other ones every time; hypothesis prints what reproduces a failure.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = os.environ.get("TE_PROPERTY_EXAMPLES")


def tried(examples: int) -> settings:
    """Return the settings of a property that is tried on `examples` examples by default."""
    return settings(
        max_examples=int(EXAMPLES) if EXAMPLES else examples,
        derandomize=EXAMPLES is None,
        print_blob=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
