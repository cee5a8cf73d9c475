"""Tensors of a checkpoint whose rows lie in several files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor


class SavedTensors(Mapping[str, Tensor]):
    """Tensors by name; one of which several files have rows is joined whenever it is asked for, and not kept.

    Args:
        files: The tensors of each, by name: the rows of the first come first.
    """

    def __init__(self, files: Sequence[Mapping[str, Tensor]]) -> None:
        self._pieces: dict[str, list[Tensor]] = {}
        for tensors in files:
            for name, piece in tensors.items():
                self._pieces.setdefault(name, []).append(piece)

    def __getitem__(self, name: str) -> Tensor:
        pieces = self._pieces[name]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def __contains__(self, name: object) -> bool:
        return name in self._pieces

    def shape(self, name: str) -> list[int]:
        """The shape of one."""
        pieces = self._pieces[name]
        return list(pieces[0].shape) if len(pieces) == 1 else [sum(map(len, pieces)), *pieces[0].shape[1:]]

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Some rows of one."""
        found, at = [], 0
        for piece in self._pieces[name]:
            found.append(piece[max(start - at, 0) : max(stop - at, 0)])
            at += len(piece)
        return torch.cat(found)

    def without(self, names: Collection[str]) -> SavedTensors:
        """All of them but these."""
        rest = SavedTensors(())
        rest._pieces = {name: pieces for name, pieces in self._pieces.items() if name not in names}
        return rest


def shape_in(saved: Mapping[str, Tensor], name: str) -> list[int]:
    """The shape of a tensor, which is not read for that."""
    return saved.shape(name) if isinstance(saved, SavedTensors) else list(saved[name].shape)


def rows_in(saved: Mapping[str, Tensor], name: str, start: int, stop: int) -> Tensor:
    """Some rows of a tensor; no others are read."""
    return saved.rows(name, start, stop) if isinstance(saved, SavedTensors) else saved[name][start:stop]


def leaving_out(saved: Mapping[str, Tensor], names: Collection[str]) -> Mapping[str, Tensor]:
    """All tensors but these."""
    if isinstance(saved, SavedTensors):
        return saved.without(names)
    return {name: tensor for name, tensor in saved.items() if name not in names}
