"""Tensors of the Open Inference Protocol: their types, their binary form, and the way to and from a model's columns.

A tensor has a name, a datatype, a shape, and its elements in row-major order: as a list, or as bytes. In bytes, numbers
are little-endian without gaps, a BOOL is a byte of 0 or 1, and an element of BYTES is its length as four bytes followed
by its text.

Nothing is allocated for what a shape claims before the elements are known to be there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.export.signatures import Signature, TensorInfo
from torch_estimator.export.unknown_names import REFUSED, UnknownNames
from torch_estimator.json_text import shortened
from torch_estimator.serving.batcher import Columns
from torch_estimator.web.errors import RequestError

_LENGTH = struct.Struct("<I")

# Lists of different lengths can only be run together if they are lists, and it takes long to make many of them.
_MOST_IN_LISTS = 1024


@dataclass(slots=True)
class InputTensor:
    """An input as a request gives it, with nothing checked; `datatype` is the protocol's, such as ``FP32``.

    The number of instances is the first size of `shape`. `data` are the elements: bytes in the binary form, or a list,
    which may be nested.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes | list[Any]


def read_columns(
    tensors: Iterable[InputTensor], signature: Signature, unknown: UnknownNames = REFUSED, *, as_text: bool = True
) -> tuple[Columns, int]:
    """Return the inputs of a request by column, and the number of instances.

    Elements of BYTES are decoded unless `as_text` is false, as for serialized tf.Examples. Raise a RequestError if an
    input is missing, has a name that `unknown` refuses, is of another type or shape, or has not as many elements as it
    says.
    """
    columns: dict[str, Any] = {}
    empty: list[InputTensor] = []
    rows, has_elements = -1, False
    for tensor in tensors:
        name, shape = tensor.name, tensor.shape
        info = signature.inputs.get(name)
        if info is None and unknown.ignore:
            unknown.see([name], signature)
            continue
        if info is None:
            raise RequestError(400, f"Unexpected tensor name: {shortened(name)}; {signature.inputs_near(name)}")
        if name in columns:
            raise RequestError(400, f"Input {name} is given twice.")
        if tensor.datatype != (wanted := info.type.datatype):
            raise RequestError(400, f"Input {name} has the datatype {wanted}, not {shortened(tensor.datatype)}.")
        if len(shape) == len(info.shape) == 1 and type(shape[0]) is int and 0 <= shape[0] < 2**63:
            # The usual case, checked faster.
            count = shape[0]
        else:
            count = _count(name, shape, info)
        if rows < 0:
            rows = shape[0]
        elif shape[0] != rows:
            raise RequestError(400, f"Input {name} has {shape[0]} rows, but the inputs before it have {rows}.")
        if count:
            columns[name] = _column(tensor, info, count, as_text=as_text)
            has_elements = True
        else:
            columns[name] = None
            empty.append(tensor)
    if rows < 1:
        raise RequestError(400, "The request has no instance; give inputs with at least one row.")
    if empty and rows > 1 and not has_elements:
        # The shape [3000000000, 0] has no element, but would be made into as many empty lists.
        raise RequestError(400, f"The request has {rows} rows, but no element; give one row at a time.")
    for tensor in empty:
        columns[tensor.name] = _column(tensor, signature.inputs[tensor.name], 0, as_text=as_text)
    if len(columns) < len(signature.inputs):
        _add_defaults(columns, signature, rows)
    return columns, rows


def _count(name: str, shape: Sequence[int], info: TensorInfo) -> int:
    """Return how many elements a shape has; raise a RequestError if the input cannot have this shape."""
    if not shape or len(shape) > len(info.shape) + 1:
        raise _wrong_shape(name, shape, info)
    if any(type(size) is not int or not 0 <= size < 2**63 for size in shape):
        raise _wrong_shape(name, shape, info)
    given = tuple(shape[1:])
    if info.is_single:
        fits = given in ((), (1,))
    elif info.holds_lists:
        fits = len(given) < 2
    elif info.varies:
        fits = len(given) == len(info.shape[1:]) and given[1:] == info.shape[2:]
    else:
        fits = given == info.shape[1:]
    if not fits:
        raise _wrong_shape(name, shape, info)
    return math.prod(shape)


def _wrong_shape(name: str, shape: Sequence[int], info: TensorInfo) -> RequestError:
    wanted = ", ".join(["rows", *("any" if size < 0 else str(size) for size in info.shape[1:])])
    return RequestError(400, f"Input {name} must have the shape [{wanted}], but has {shortened(list(shape))}.")


def _column(tensor: InputTensor, info: TensorInfo, count: int, *, as_text: bool) -> Any:
    """Return the elements of an input with one entry per row: a list, or for numbers in binary form an array.

    Types and values in lists are checked by `ExportedModel.predict`.
    """
    data = tensor.data
    if isinstance(data, bytes):
        if tensor.datatype != "BYTES":
            return _numbers(tensor, data, info, count)
        elements: list[Any] = split_bytes(data, count, tensor.name)
        if as_text:
            elements = texts_of(elements, tensor.name)
    else:
        elements = _flat(data, len(tensor.shape))
        if len(elements) != count:
            raise RequestError(
                400,
                f"Input {tensor.name} has {len(elements)} elements, but its shape {list(tensor.shape)} has {count}.",
            )
    if info.is_single:
        return elements
    for size in reversed(tensor.shape[1:]):
        elements = [elements[at : at + size] for at in range(0, len(elements), size)] if size else []
    # A size of 0 leaves no elements to divide.
    return elements or [[] for _ in range(tensor.shape[0])]


def _flat(data: list[Any], most_depth: int) -> list[Any]:
    for _ in range(most_depth - 1):
        if not any(type(item) is list for item in data):
            break
        data = [part for item in data for part in (item if type(item) is list else (item,))]
    return data


def _numbers(tensor: InputTensor, data: bytes, info: TensorInfo, count: int) -> Any:
    dtype = info.type.wire
    if len(data) != count * dtype.itemsize:
        raise RequestError(
            400,
            f"Input {tensor.name} has {len(data)} bytes, but {count} elements of {tensor.datatype} have "
            f"{count * dtype.itemsize}.",
        )
    array: npt.NDArray[Any] = np.frombuffer(data, dtype)
    if tensor.datatype == "BOOL" and (largest := array.view(np.uint8).max(initial=0)) > 1:
        raise RequestError(400, f"Input {tensor.name} has the byte {largest}; a BOOL is 0 or 1.")
    if info.is_single:
        # All requests have the same shape here, so that they can be run together.
        return array
    array = array.reshape(tensor.shape)
    return array.tolist() if info.varies and (count <= _MOST_IN_LISTS or array.ndim < 2) else array


def _add_defaults(columns: dict[str, Any], signature: Signature, rows: int) -> None:
    for name, info in signature.inputs.items():
        if name in columns:
            continue
        if info.default is None:
            raise RequestError(400, f"Input {name} was missing; the inputs are {', '.join(signature.inputs)}.")
        columns[name] = [info.missing] * rows


def texts_of(elements: Sequence[bytes], name: str) -> list[str]:
    """Return the elements of a BYTES tensor as text; raise a RequestError if one is not UTF-8."""
    texts: list[str] = []
    try:
        texts.extend(element.decode() for element in elements)
    except UnicodeDecodeError as error:
        raise RequestError(400, f"Input {name} has an element {len(texts)} that is not UTF-8.") from error
    return texts


def split_bytes(data: bytes, count: int, name: str) -> list[bytes]:
    r"""Split the binary form of a BYTES tensor into elements; raise a RequestError unless there are exactly `count`.

    >>> split_bytes(b"\x01\x00\x00\x00a\x02\x00\x00\x00bc", 2, "word")
    [b'a', b'bc']
    """
    end = len(data)
    if count * _LENGTH.size > end:
        raise RequestError(400, f"Input {name} has {end} bytes, which is too short for {count} elements of BYTES.")
    elements = []
    at = 0
    for index in range(count):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(data, at)[0] if start <= end else end + 1
        if at > end:
            raise RequestError(400, f"Input {name} ends within element {index}, after {end} bytes.")
        elements.append(data[start:at])
    if at != end:
        raise RequestError(400, f"Input {name} has {end - at} bytes after its {count} elements.")
    return elements
