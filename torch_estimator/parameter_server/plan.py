"""Content of the chief's START message: the parameters that a server holds, and settings of the training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from torch_estimator.checkpoint.row_file import SavedRows

PACKAGE = "version"
"""Key of `Start.about`: the version of torch-estimator of the chief, which the servers compare with their own."""
CURSOR, SINCE, INCARNATION = "position", "since", "incarnation"
"""Keys of the reply to HELLO, in addition to those of `Start.about`: the last input cursor of the rank, the number of
batches that the rank has trained on since that cursor, and the incarnation of its latest process."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Settings of one parameter group of an optimizer, as the chief sends them to a server; JSON can represent them.

    `rule` is one of `rules.RULES`, or ``torch.optim.<name>``. `changing` names the settings that a schedule may change:
    every push carries their values, in this order.
    """

    rule: str
    settings: Mapping[str, Any]
    changing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DensePlan:
    """Description of a dense parameter: every step updates the whole parameter.

    `group` is the index of the optimizer's parameter group in `ServerPlan.groups`.
    """

    name: str
    shape: tuple[int, ...]
    group: int

    @property
    def size(self) -> int:
        """Number of elements of the parameter."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class VariablePlan:
    """A variable that is a part of a large table: its rows are those from `offset` on.

    Its initial values are rows of the distribution that `initial_values` calls `distribution`, with `seed` and `scale`.
    None stands for zeros, and for a function of the user, whose values the server reads (`own_initializers`).
    """

    name: str
    offset: int
    rows: int
    distribution: str | None
    scale: float
    seed: int


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Optimizer state of a large table: its key, the end of its name in checkpoints, and its initial number."""

    key: str
    suffix: str
    initial: float


@dataclass(frozen=True, slots=True)
class LargePlan:
    """What a server has to know to make, read and write its rows of a large table itself: every `step`-th from `first`.

    See `parameter_server.large_table`.
    """

    first: int
    step: int
    variables: tuple[VariablePlan, ...]
    slots: tuple[SlotPlan, ...]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LargePlan:
        """Make a plan from a decoded START; raise KeyError, TypeError or ValueError if it is malformed."""
        return cls(
            _whole_number(value["first"]),
            _whole_number(value["step"]),
            tuple(VariablePlan(**one) for one in value["variables"]),
            tuple(SlotPlan(**one) for one in value["slots"]),
        )


@dataclass(frozen=True, slots=True)
class TablePlan:
    """Description of the rows of an embedding table that one server holds. A step updates some of these rows.

    `rows` counts the rows on this server. `group` is the index of the optimizer's parameter group in
    `ServerPlan.groups`. `large` is None for a table that workers hold, too; the chief sends its rows.
    """

    name: str
    rows: int
    dim: int
    group: int
    large: LargePlan | None = None


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """Description of all parameters that one server holds, and of their optimizers.

    The dtype of all parameters is ``float32`` or ``float64``. `dense` and `tables` are in the order of messages.
    """

    dtype: str
    groups: tuple[GroupPlan, ...]
    dense: tuple[DensePlan, ...]
    tables: tuple[TablePlan, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the plan as a dict that JSON can represent."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ServerPlan:
        """Make a plan from what `as_json` has returned; raise KeyError, TypeError or ValueError for anything else."""
        if value["dtype"] not in ("float32", "float64"):
            raise ValueError(value["dtype"])
        return cls(
            dtype=value["dtype"],
            groups=tuple(GroupPlan(one["rule"], one["settings"], tuple(one["changing"])) for one in value["groups"]),
            dense=tuple(
                DensePlan(one["name"], tuple(map(_whole_number, one["shape"])), _whole_number(one["group"]))
                for one in value["dense"]
            ),
            tables=tuple(
                TablePlan(
                    one["name"],
                    _whole_number(one["rows"]),
                    _whole_number(one["dim"]),
                    _whole_number(one["group"]),
                    None if one.get("large") is None else LargePlan.from_json(one["large"]),
                )
                for one in value["tables"]
            ),
        )

    @cached_property
    def changing_count(self) -> int:
        """Number of optimizer settings whose current values are sent with gradients."""
        return sum(len(group.changing) for group in self.groups)

    @cached_property
    def dense_size(self) -> int:
        """Number of elements of all dense parameters."""
        return sum(one.size for one in self.dense)

    @cached_property
    def most_exchange_bytes(self) -> int:
        """Size, without the header, of the largest possible request, which pushes and pulls all parameters."""
        itemsize = 8 if self.dtype == "float64" else 4
        of_tables = sum(16 + one.rows * (16 + one.dim * itemsize) for one in self.tables)
        return of_tables + 8 * self.changing_count + self.dense_size * itemsize + len(self.dense)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """JSON content of the chief's START. The parameters are in the same message, as arrays.

    Attributes:
        plan: The plan of the server's parameters.
        about: Properties that must be identical in all workers; the reply to HELLO repeats them.
        step: The global step of the parameters.
        last_step: Global step at which training ends, or None.
        names: Names of all workers, by rank.
        silence_secs: Seconds without a message after which a worker is considered to hang; None for never.
        max_staleness: How many steps a worker may be ahead of the slowest one, or None for any number.
        cursors: The input cursors of workers by rank. Under the key `SINCE`, each holds the number of batches that the
            worker has trained on after it.
        sources: Where to read large tables: for each variable and slot the files that hold rows of it. Without an
            entry, it has its initial values.
    """

    plan: ServerPlan
    about: Mapping[str, Any]
    step: int
    last_step: int | None
    names: Sequence[str]
    silence_secs: float | None
    max_staleness: int | None
    cursors: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, Sequence[SavedRows]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Start:
        """Make a `Start` from the chief's decoded JSON; raise KeyError, TypeError or ValueError if it is malformed."""
        silence_secs = content["silence_secs"]
        names = [str(name) for name in content["names"]]
        cursors = {str(int(rank)): dict(cursor) for rank, cursor in content["cursors"].items()}
        for cursor in cursors.values():
            _whole_number(cursor.get(SINCE, 0))
        if not names:
            raise ValueError("names")
        return cls(
            plan=ServerPlan.from_json(content["plan"]),
            about=dict(content["about"]),
            step=_whole_number(content["step"]),
            last_step=_whole_number_or_none(content["last_step"]),
            names=names,
            silence_secs=None if silence_secs is None else float(silence_secs),
            max_staleness=_whole_number_or_none(content["max_staleness"]),
            cursors=cursors,
            sources={
                str(name): [SavedRows(**one) for one in files] for name, files in content.get("sources", {}).items()
            },
        )


def _whole_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(value)
    return value


def _whole_number_or_none(value: Any) -> int | None:
    return None if value is None else _whole_number(value)
