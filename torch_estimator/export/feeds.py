"""Values a caller gives, as the tensors onnxruntime takes.

onnxruntime turns bytes and None into their `repr` and reads past the end of fixed-width strings: strings have to be
object arrays of `str`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidValueError
from torch_estimator.export.signatures import NUMPY_TYPES, TensorInfo

Array = npt.NDArray[Any]

PADDING: dict[str, Any] = {"DT_STRING": "", "DT_FLOAT": 0.0, "DT_DOUBLE": 0.0, "DT_INT64": -1, "DT_INT32": -1}
"""What stands for a missing value in a list."""

_WANTED = {
    "DT_STRING": "strings",
    "DT_FLOAT": "numbers",
    "DT_DOUBLE": "numbers",
    "DT_INT64": "integers",
    "DT_INT32": "integers",
    "DT_BOOL": "booleans",
}
_KINDS = {
    "DT_STRING": "OUS",
    "DT_FLOAT": "fiu",
    "DT_DOUBLE": "fiu",
    "DT_INT64": "iu",
    "DT_INT32": "iu",
    "DT_BOOL": "b",
}


def as_tensor(name: str, value: Any, info: TensorInfo) -> Array:
    """Returns a batch as an array of the input's type and shape.

    Raises:
        InvalidValueError: It holds something else, is ragged, or has another shape.
    """
    array = _strings(name, value) if info.dtype == "DT_STRING" else _numbers(name, value, info)
    return _shaped(name, array, info)


def filled(info: TensorInfo, rows: int) -> Array:
    """Returns `rows` rows of an input's default."""
    sizes = info.shape[1:]
    if info.holds_lists:
        given = info.default if isinstance(info.default, list) else [info.default]
        return np.array([given or [PADDING[info.dtype]]] * rows, dtype=NUMPY_TYPES[info.dtype])
    row = np.array(info.default, dtype=NUMPY_TYPES[info.dtype])
    return np.broadcast_to(row.reshape(sizes if row.size > 1 else (1,) * len(sizes)), (rows, *sizes)).copy()


def _strings(name: str, value: Any) -> Array:
    if isinstance(value, (str, bytes)):
        raise _not_a_batch(name, value)
    array = np.asarray(value, dtype=object) if not isinstance(value, np.ndarray) else value
    if array.size == 0:
        return np.empty(array.shape, object)
    if array.dtype.kind not in _KINDS["DT_STRING"]:
        raise _wrong(name, "strings", array.flat[0])
    if array.dtype.kind != "O":
        array = array.astype(object)
    if all(type(item) is str for item in array.flat):
        return array
    texts = np.empty(array.size, object)
    texts[:] = [_text(name, item) for item in array.flat]
    return texts.reshape(array.shape)


def _text(name: str, item: Any) -> str:
    if isinstance(item, str):
        return str(item)
    if item is None:
        return ""
    if isinstance(item, bytes):
        try:
            return item.decode()
        except UnicodeDecodeError as error:
            raise InvalidValueError(f"Input {name} has {item!r}, which is not UTF-8.") from error
    if isinstance(item, (list, tuple, np.ndarray)):
        raise _ragged(name)
    raise _wrong(name, "strings", item)


def _numbers(name: str, value: Any, info: TensorInfo) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _ragged(name) from error
    dtype = np.dtype(NUMPY_TYPES[info.dtype])
    if array.size == 0:
        return np.empty(array.shape, dtype)
    if array.dtype.kind not in _KINDS[info.dtype] or _has_boolean(value, array):
        wrong = _first_wrong(array, value, info)
        if type(wrong) is int and dtype.kind == "i":
            raise _too_large(name, wrong, dtype)
        raise _wrong(name, _WANTED[info.dtype], wrong)
    if dtype.kind == "i":
        _check_range(name, array, dtype)
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


def _check_range(name: str, array: Array, dtype: np.dtype[Any]) -> None:
    limits = np.iinfo(dtype)
    for extreme in (array.min().item(), array.max().item()):
        if not limits.min <= extreme <= limits.max:
            raise _too_large(name, extreme, dtype)


def _too_large(name: str, item: int, dtype: np.dtype[Any]) -> InvalidValueError:
    return InvalidValueError(f"Input {name} takes integers, but has {item}, which does not fit into {dtype.name}.")


def _has_boolean(value: Any, array: Array) -> bool:
    """Whether a list mixes booleans with numbers, which numpy would count as 0 and 1."""
    if isinstance(value, np.ndarray) or array.dtype.kind == "b" or not isinstance(value, (list, tuple)):
        return False
    return any(isinstance(item, bool) for item in _flat(value))


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        return [value]
    return [item for part in value for item in _flat(part)]


def _first_wrong(array: Array, value: Any, info: TensorInfo) -> Any:
    if isinstance(value, (list, tuple)):
        kinds = (int, np.integer) if info.dtype in ("DT_INT64", "DT_INT32") else (int, float, np.number)
        for item in _flat(value):
            if isinstance(item, bool) or not isinstance(item, kinds):
                return item
        if kinds == (int, np.integer):
            # numpy has made floats of integers that no integer type of its own holds together.
            return int(max(_flat(value), key=lambda item: abs(int(item))))
    return array.flat[0]


def _shaped(name: str, array: Array, info: TensorInfo) -> Array:
    """Gives a plain feature the declared one of its two shapes, ``[batch]`` and ``[batch, 1]``."""
    if array.ndim == 0:
        raise _not_a_batch(name, array.item())
    sizes = info.shape[1:]
    plain = ((), (1,))
    if sizes in plain and array.shape[1:] in plain:
        return array.reshape(len(array), *sizes)
    if array.shape[1:] != sizes:
        expected = ", ".join(["rows", *map(str, sizes)])
        raise InvalidValueError(f"Input {name} must have the shape [{expected}], but has {list(array.shape)}.")
    return array


def _wrong(name: str, wanted: str, item: Any) -> InvalidValueError:
    item = item.item() if isinstance(item, np.generic) else item
    return InvalidValueError(f"Input {name} takes {wanted}, but has {item!r} ({type(item).__name__}).")


def _ragged(name: str) -> InvalidValueError:
    return InvalidValueError(f"Input {name} has rows of different lengths; every row must have the same shape.")


def _not_a_batch(name: str, item: Any) -> InvalidValueError:
    return InvalidValueError(f"Input {name} is the single value {item!r}; give a list with one value per row.")
