"""Tensors in the files of a checkpoint. A tensor is read and compared with its checksum when it is first used.

If several files hold rows of one tensor, the rows are concatenated, or interleaved if the files say so (`row_file`).
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from torch_estimator import files
from torch_estimator.checkpoint.format import CHECKSUMS, checksum
from torch_estimator.checkpoint.row_file import DAMAGED_ADVICE, RowFile, SavedRows
from torch_estimator.errors import CheckpointError


class TensorFile(Mapping[str, Tensor]):
    """Tensors of one safetensors file. A tensor is compared with its checksum when it is first used.

    A local file is mapped into memory, so that only tensors that are used are read. Verifying all checksums at once
    would read the whole file. Headers of files of versions before the checksums have none.
    """

    def __init__(self, path: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        self.path, self._tensors, self._header = path, tensors, header
        sums = header.get("__metadata__", {}).get(CHECKSUMS)
        names = [name for name in header if name != "__metadata__"]
        self._unchecked = {} if sums is None else dict(zip(names, sums.split(" ") if sums else [], strict=True))

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        if name in self._unchecked:
            if f"{checksum(name, self._header[name], tensor):08x}" != self._unchecked[name]:
                raise CheckpointError(
                    f"{self.path} is damaged: the checksum of {name!r} differs; put back a good copy of the file, or "
                    "use an older checkpoint by naming it in 'checkpoint' of its model_dir."
                )
            del self._unchecked[name]
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor without reading it."""
        return list(self._tensors[name].shape)


def read_tensors(path: str) -> TensorFile:
    """Open a safetensors file. A local file is mapped into memory; a remote file is read completely."""
    try:
        if files.is_local(path):
            with open(path, "rb") as file:
                return TensorFile(path, safetensors.torch.load_file(path), _header(file))
        content = files.read_bytes(path)
        return TensorFile(path, safetensors.torch.load(content), _header(io.BytesIO(content)))
    except FileNotFoundError as error:
        raise CheckpointError(_incomplete(path)) from error
    except RuntimeError as error:
        # safetensors opens the file a second time through torch, which raises RuntimeError for a missing file as well.
        problem = f"{path} cannot be read: {files.reason(error)}." if files.exists(path) else _incomplete(path)
        raise CheckpointError(problem) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {files.reason(error)}.") from error
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is truncated or damaged: {files.reason(error)}; {DAMAGED_ADVICE}.") from error


def _incomplete(path: str) -> str:
    return f"{path} is missing, so its checkpoint is not whole; {DAMAGED_ADVICE}."


def _header(file: IO[bytes]) -> dict[str, Any]:
    """Return the header of a safetensors file. The library safetensors has validated the header before."""
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return dict(header)


class RowTensors(Mapping[str, Tensor]):
    """Tensors of a file with every n-th row of variables."""

    def __init__(self, file: RowFile) -> None:
        self.file, self.path = file, file.path

    def __getitem__(self, name: str) -> Tensor:
        return torch.tensor(self.file[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.file)

    def __len__(self) -> int:
        return len(self.file)

    def __contains__(self, name: object) -> bool:
        return name in self.file

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor without reading it."""
        return self.file.shape(name)


class SavedTensors(Mapping[str, Tensor]):
    """Tensors of a checkpoint by name, whose rows may be spread over several files.

    Rows are joined each time a tensor is used, so that no second copy stays in memory.
    """

    def __init__(self, tensors: Sequence[Mapping[str, Tensor]]) -> None:
        self._files: dict[str, list[Mapping[str, Tensor]]] = {}
        for file in tensors:
            for name in file:
                self._files.setdefault(name, []).append(file)

    def __getitem__(self, name: str) -> Tensor:
        files = self._files[name]
        if isinstance(files[0], RowTensors):
            whole = torch.empty(self.shape(name), dtype=self._dtype(name))
            self.copy_into(whole, name)
            return whole
        pieces = [file[name] for file in files]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def copy_into(self, target: Tensor, name: str) -> None:
        """Copy a tensor into another one, `target`, without a second copy of it in memory."""
        offset = 0
        for file in self._files[name]:
            if isinstance(file, RowTensors):
                first, step = file.file.place(name)
                for start, rows in file.file.blocks(name):
                    begin = first + step * start
                    target[begin : begin + step * len(rows) : step].copy_(_readable(rows))
            elif len(self._files[name]) == 1:
                target.copy_(file[name])
            else:
                rows_of_file = file[name]
                target[offset : offset + len(rows_of_file)].copy_(rows_of_file)
                offset += len(rows_of_file)

    def files_of(self, name: str) -> list[SavedRows]:
        """Return the files that hold rows of a tensor, with absolute paths, for another process to read them."""
        found, offset = [], 0
        for file in self._files[name]:
            assert isinstance(file, RowTensors | TensorFile)
            path = os.path.abspath(file.path) if files.is_local(file.path) else file.path
            if isinstance(file, RowTensors):
                found.append(SavedRows(path, name, 0, file.file.digest))
            else:
                found.append(SavedRows(path, name, offset))
                offset += file.shape(name)[0]
        return found

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor without reading it."""
        first, *others = shapes = [saved_shape(file, name) for file in self._files[name]]
        return [sum(shape[0] for shape in shapes), *first[1:]] if others else first

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Return the rows ``start:stop`` of a tensor, reading only the files that contain them."""
        if isinstance(self._files[name][0], RowTensors):
            whole = torch.empty([stop - start, *self.shape(name)[1:]], dtype=self._dtype(name))
            for file in self._files[name]:
                assert isinstance(file, RowTensors)
                first, step = file.file.place(name)
                # The numbers in the file of its first row from `start` on, and from `stop` on.
                begin, end = (max(0, -(-(row - first) // step)) for row in (start, stop))
                whole[first + step * begin - start :: step].copy_(_readable(file.file.rows(name, begin, end)))
            return whole
        found, offset = [], 0
        for file in self._files[name]:
            rows = saved_shape(file, name)[0]
            if start < offset + rows and stop > offset:
                found.append(file[name][max(start - offset, 0) : stop - offset])
            offset += rows
        # For an empty range, take zero rows of the first file, so that the dtype and the other dimensions are right.
        return torch.cat(found or [self._files[name][0][name][:0]])

    def _dtype(self, name: str) -> torch.dtype:
        first = self._files[name][0]
        assert isinstance(first, RowTensors)
        return _readable(first.file.rows(name, 0, 0)).dtype

    def without(self, names: Collection[str]) -> SavedTensors:
        """Return a mapping with all tensors except those with the given names, without reading any."""
        rest = SavedTensors(())
        rest._files = {name: files for name, files in self._files.items() if name not in names}
        return rest


def _readable(rows: np.ndarray[Any, Any]) -> Tensor:
    """Return an array that maps a file as a tensor; nobody may write to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(rows)


@runtime_checkable
class _KnowsShapes(Protocol):
    """Tensors in a file, whose shapes are known without reading them."""

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor."""


def saved_shape(saved: Mapping[str, Tensor], name: str) -> list[int]:
    """Return the shape of a saved tensor. A tensor in a file is not read for this."""
    return saved.shape(name) if isinstance(saved, _KnowsShapes) else list(saved[name].shape)


def copy_into(target: Tensor, saved: Mapping[str, Tensor], name: str) -> None:
    """Copy a saved tensor into another one, `target`. One in several files is never in memory as a whole."""
    if isinstance(saved, SavedTensors):
        saved.copy_into(target, name)
    else:
        target.copy_(saved[name])


def saved_rows(saved: Mapping[str, Tensor], name: str, start: int, stop: int) -> Tensor:
    """Return the rows ``start:stop`` of the tensor `name` in `saved`, reading only the files that contain them."""
    return saved.rows(name, start, stop) if isinstance(saved, SavedTensors) else saved[name][start:stop]


def without(saved: Mapping[str, Tensor], names: Collection[str]) -> Mapping[str, Tensor]:
    """Return the tensors in `saved` except those with the given names, without reading any from a file."""
    if isinstance(saved, SavedTensors):
        return saved.without(names)
    return {name: tensor for name, tensor in saved.items() if name not in names}
