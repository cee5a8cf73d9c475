"""What those who train together meet when one of them is gone."""

from torch_estimator.errors import ClusterError


class PeerLost(ClusterError):
    """Another process of a group is gone, and may be replaced."""


class PeerBack(PeerLost):
    """A process that the others went on without is there again: they are no longer all of the group."""


class TrainingOver(Exception):
    """A process that has lost the others need not wait for them."""
