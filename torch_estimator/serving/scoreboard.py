"""What the processes of one server know of each other: a few numbers from each, in shared memory.

The numbers lie in a file that every process maps. Each node writes its own row and no other; the parent reads all rows
to see how busy the nodes are, and the nodes read them to share the connections evenly.
"""

from __future__ import annotations

import mmap
import os
from array import array
from dataclasses import astuple, dataclass

SETTINGS_FILE = "settings.json"
"""File with the settings, in the directory that the processes of one server share."""

COMMAND_FILE = "command.json"
"""File with the `torch_estimator.serving.reload.Command` in that directory."""

BOARD_FILE = "scoreboard"
"""File of the `Scoreboard` in that directory."""

_COLUMNS = 5
_BYTES = 8


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What one node says about itself, as numbers; `is_accepting` is 1.0 while it takes new connections, else 0.0.

    `connections` are open, and `requests` answered since the start; `running` counts those that are not answered yet.
    `busy_secs` are the seconds that the node has used the processor or waited for it since its start.
    """

    is_accepting: float = 0.0
    connections: float = 0.0
    requests: float = 0.0
    running: float = 0.0
    busy_secs: float = 0.0


class Scoreboard:
    """The reports of all nodes, in a file that `create` has made.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     board = Scoreboard.create(file.name, 2)
    ...     Scoreboard(file.name).write(1, NodeReport(is_accepting=1.0, connections=3.0))
    ...     board.read(1).connections, board.fewest_connections_beside(0)
    (3.0, 3.0)
    """

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")

    @classmethod
    def create(cls, path: str, slots: int) -> Scoreboard:
        """Make the file, with room for the given number of nodes."""
        with open(path, "wb") as file:
            os.ftruncate(file.fileno(), slots * _COLUMNS * _BYTES)
        return cls(path)

    def write(self, slot: int, report: NodeReport) -> None:
        """Replace the report of a node."""
        # A slice is copied as a whole, so that a reader never sees a number that is written by half.
        self._numbers[slot * _COLUMNS : (slot + 1) * _COLUMNS] = memoryview(array("d", astuple(report)))

    def write_connections(self, slot: int, connections: int) -> None:
        """Replace the number of connections in the report of a node."""
        self._numbers[slot * _COLUMNS + 1] = connections

    def read(self, slot: int) -> NodeReport:
        """Return the report of a node."""
        return NodeReport(*self._numbers[slot * _COLUMNS : (slot + 1) * _COLUMNS])

    def clear(self, slot: int) -> None:
        """Remove the report of a node that has ended."""
        self.write(slot, NodeReport())

    def fewest_connections_beside(self, slot: int) -> float | None:
        """Return the smallest number of connections of another node that takes new ones; None if there is no other."""
        numbers = self._numbers
        own = slot * _COLUMNS
        return min(
            (numbers[at + 1] for at in range(0, len(numbers), _COLUMNS) if at != own and numbers[at]), default=None
        )

    def accepting(self) -> list[NodeReport]:
        """Return the reports of the nodes that take new connections."""
        reports = map(self.read, range(len(self._numbers) // _COLUMNS))
        return [report for report in reports if report.is_accepting]
