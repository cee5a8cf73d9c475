"""Tensors of a checkpoint, whose rows may lie in several files; what is damaged is noticed when it is first read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_estimator.checkpoint.snapshot import CHECKSUMS, checksum
from torch_estimator.errors import CheckpointError


class TensorFile(Mapping[str, Tensor]):
    """The tensors of one file; each is compared with its checksum when it is first asked for.

    Not all at once: they are mapped into memory, and an evaluation reads no optimizer state.

    Args:
        path: The file, for messages.
        tensors: By name.
        header: Of the file, which may have no checksums, as those of earlier versions.

    Raises:
        ValueError: The header does not have one checksum for each tensor.
    """

    def __init__(self, path: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        self._path, self._tensors, self._header = path, tensors, header
        sums = header.get("__metadata__", {}).get(CHECKSUMS)
        names = [name for name in header if name != "__metadata__"]
        self._unread = {} if sums is None else dict(zip(names, sums.split(" ") if sums else [], strict=True))

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        if name in self._unread:
            if f"{checksum(name, self._header[name], tensor):08x}" != self._unread[name]:
                raise CheckpointError(
                    f"{self._path} is damaged: the checksum of {name!r} differs; put back a good copy of the file, or "
                    "use an older checkpoint by naming it in 'checkpoint' of its model_dir."
                )
            del self._unread[name]
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor, which is not read for that."""
        return list(self._tensors[name].shape)


class SavedTensors(Mapping[str, Tensor]):
    """Tensors by name; one of which several files have rows is joined whenever it is asked for, and not kept.

    Args:
        files: The tensors of each, by name: the rows of the first come first.
    """

    def __init__(self, files: Sequence[Mapping[str, Tensor]]) -> None:
        self._files: dict[str, list[Mapping[str, Tensor]]] = {}
        for file in files:
            for name in file:
                self._files.setdefault(name, []).append(file)

    def __getitem__(self, name: str) -> Tensor:
        pieces = [file[name] for file in self._files[name]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def shape(self, name: str) -> list[int]:
        """The shape of one."""
        first, *others = shapes = [shape_in(file, name) for file in self._files[name]]
        return [sum(shape[0] for shape in shapes), *first[1:]] if others else first

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Some rows of one; no file is read that has none of them."""
        found, at = [], 0
        for file in self._files[name]:
            rows = shape_in(file, name)[0]
            if start < at + rows and stop > at:
                found.append(file[name][max(start - at, 0) : stop - at])
            at += rows
        # Of no rows, the first file has the dtype and the other dimensions.
        return torch.cat(found or [self._files[name][0][name][:0]])

    def without(self, names: Collection[str]) -> SavedTensors:
        """All of them but these."""
        rest = SavedTensors(())
        rest._files = {name: files for name, files in self._files.items() if name not in names}
        return rest


def shape_in(saved: Mapping[str, Tensor], name: str) -> list[int]:
    """The shape of a tensor, which is not read for that."""
    return saved.shape(name) if isinstance(saved, SavedTensors | TensorFile) else list(saved[name].shape)


def rows_in(saved: Mapping[str, Tensor], name: str, start: int, stop: int) -> Tensor:
    """Some rows of a tensor; no others are read."""
    return saved.rows(name, start, stop) if isinstance(saved, SavedTensors) else saved[name][start:stop]


def leaving_out(saved: Mapping[str, Tensor], names: Collection[str]) -> Mapping[str, Tensor]:
    """All tensors but these."""
    if isinstance(saved, SavedTensors):
        return saved.without(names)
    return {name: tensor for name, tensor in saved.items() if name not in names}
