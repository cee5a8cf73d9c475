"""What a process saves of the rows that it holds."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import SLOTS_NAME, VARIABLES_NAME, shard_name
from torch_estimator.checkpoint.sharded_tensors import part_to_save
from torch_estimator.checkpoint.snapshot import HostSnapshot


class ShardFile:
    """Writes the files of one process into a checkpoint that the chief makes.

    Args:
        rank: Of this process, which is not the chief.
        size: How many processes write.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._snapshot = HostSnapshot()

    def write(self, directory: str, variables: Mapping[str, Tensor], slots: Mapping[str, Tensor]) -> None:
        """Writes the rows held here; when it returns they are on the disk.

        Raises:
            OSError: They cannot be written.
            InvalidTypeError: As `part_to_save`.
        """
        for name, tensors in ((VARIABLES_NAME, variables), (SLOTS_NAME, slots)):
            self._snapshot.fill(part_to_save(tensors, is_chief=False))
            files.write_file(files.join(directory, shard_name(name, self._rank, self._size)), self._snapshot.chunks())
