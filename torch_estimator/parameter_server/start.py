"""What the chief gives a server that holds nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.messages import unpack_arrays
from torch_estimator.parameter_server.plan import ServerPlan, whole_number
from torch_estimator.parameter_server.shard import Shard

POSITION, SINCE, AT_MOST = "position", "since", "at_most"
"""What the answer to a hello holds beside what the chief has given: where the input stood when it was told last, how
many batches were trained on since, and whether that is only known not to be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """All that there is beside the parameters.

    Attributes:
        plan: What the server holds.
        about: What all who train have to agree on.
        step: The global step.
        last_step: The one at which training ends, or None.
        names: Of all that train, by rank.
        silence_secs: How long nothing may be heard of one of them, or None.
        max_staleness: Steps that one may be ahead, or None.
        positions: Where inputs stand, by rank, each with how many batches were trained on ``since``.
        lost: How many steps were taken at most that nobody knows the takers of any more.
    """

    plan: ServerPlan
    about: Mapping[str, Any]
    step: int
    last_step: int | None
    names: Sequence[str]
    silence_secs: float | None
    max_staleness: int | None
    positions: Mapping[str, Mapping[str, Any]]
    lost: int

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Start:
        """Reads what the chief has sent.

        Raises:
            KeyError, TypeError, ValueError: It is something else.
        """
        silence_secs = content["silence_secs"]
        names = [str(name) for name in content["names"]]
        positions = {str(int(rank)): dict(position) for rank, position in content["positions"].items()}
        for position in positions.values():
            whole_number(position.get(SINCE, 0))
        if not names:
            raise ValueError("names")
        return cls(
            plan=ServerPlan.from_json(content["plan"]),
            about=dict(content["about"]),
            step=whole_number(content["step"]),
            last_step=_or_none(content["last_step"]),
            names=names,
            silence_secs=None if silence_secs is None else float(silence_secs),
            max_staleness=_or_none(content["max_staleness"]),
            positions=positions,
            lost=whole_number(content.get("lost", 0)),
        )


def unpack_start(frames: Sequence[Any]) -> tuple[Start, Shard]:
    """Reads the message, and makes what it describes.

    Raises:
        ClusterError: It makes no sense.
    """
    content, arrays = unpack_arrays(frames)
    try:
        start = Start.from_json(content)
        return start, Shard(start.plan, arrays)
    # Nothing has been changed yet, and whatever goes wrong, what was sent is what is wrong.
    except Exception as error:
        raise ClusterError(
            f"What a process of the cluster has given to be held makes no sense ({type(error).__name__})."
        ) from error


def _or_none(value: Any) -> int | None:
    return None if value is None else whole_number(value)
