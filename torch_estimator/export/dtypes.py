"""Types of an export's inputs and outputs: one object a type, which has all that depends on the type.

`DTYPES` has them by name. A caller's values go through `DType.check` and the text of a form through `DType.parse`.
`DType.encode` and `DType.schema` describe values to others: in binary form, and as a JSON schema.

onnxruntime converts bytes and None to their `repr` and reads past the end of fixed-width strings. Strings are therefore
always passed as object arrays of `str`.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from torch_estimator import number_text
from torch_estimator.errors import InvalidValueError
from torch_estimator.json_text import shortened

Array = npt.NDArray[Any]

_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
BYTES_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"b64": {"type": "string", "contentEncoding": "base64", "pattern": _BASE64}},
    "required": ["b64"],
    "additionalProperties": False,
}
"""JSON schema of bytes, to which schemas refer as ``#/components/schemas/Bytes``: generators of clients need a name."""


@dataclass(frozen=True)
class DType(ABC):
    """One type of an export's inputs and outputs, with its names in other formats.

    `name` is TensorFlow's, as in ``signatures.json``, and without ``DT_`` ONNX's, too; `datatype` is the Open Inference
    Protocol's, and `json` a JSON schema's. `padding` stands for a missing value in a list. `kinds` are numpy's kinds of
    the values that a caller may give, and `wanted` says in messages what that is. `pattern` is what the text of a value
    looks like in a row of CSV, or None if any text is a value.
    """

    name: str
    numpy: np.dtype[Any]
    datatype: str
    padding: Any
    kinds: ClassVar[str]
    wanted: ClassVar[str]
    pattern: ClassVar[re.Pattern[str] | None] = None
    json: ClassVar[str]

    @property
    def column(self) -> str:
        """Name of the type in columns and in features of tf.Examples, such as ``float32``."""
        return "string" if self.numpy.kind == "O" else self.numpy.name

    @functools.cached_property
    def wire(self) -> np.dtype[Any]:
        """Type of arrays in the Open Inference Protocol's binary form."""
        return self.numpy.newbyteorder("<")

    @abstractmethod
    def check(self, name: str, value: Any) -> Array:
        """Convert a batch of an input to an array; raise InvalidValueError if a value has another type."""

    def parse(self, name: str, text: str) -> Any:
        """Return the value that a person wrote for an input; raise InvalidValueError if it is none of this type."""
        return text

    def schema(self, *, is_input: bool) -> dict[str, Any]:
        """Return the JSON schema of a single value in a request, or else in an answer."""
        return {"type": self.json}

    def encode(self, array: Array) -> bytes:
        """Return an array in the Open Inference Protocol's binary form."""
        return array.astype(self.wire, copy=False).tobytes()

    def _wrong(self, name: str, item: Any) -> InvalidValueError:
        item = item.item() if isinstance(item, np.generic) else item
        return InvalidValueError(f"Input {name} takes {self.wanted}, but has {item!r} ({type(item).__name__}).")


class Strings(DType):
    """Text."""

    kinds = "OUS"
    wanted = "strings"
    json = "string"

    def check(self, name: str, value: Any) -> Array:
        if isinstance(value, (str, bytes)):
            raise not_a_batch(name, value)
        if type(value) is list and all_texts(value):
            return np.fromiter(value, object, len(value))
        array = np.asarray(value, dtype=object) if not isinstance(value, np.ndarray) else value
        if array.size == 0:
            return np.empty(array.shape, object)
        if array.dtype.kind not in self.kinds:
            raise self._wrong(name, array.flat[0])
        if array.dtype.kind != "O":
            array = array.astype(object)
        if all(type(item) is str for item in array.flat):
            return array
        texts = np.empty(array.size, object)
        texts[:] = [self._text(name, item) for item in array.flat]
        return texts.reshape(array.shape)

    def schema(self, *, is_input: bool) -> dict[str, Any]:
        # An answer, too, has bytes that are no UTF-8 as an object.
        return {"anyOf": [{"type": self.json}, {"$ref": "#/components/schemas/Bytes"}]}

    def encode(self, array: Array) -> bytes:
        r"""Return strings in binary form: the length of each one as four bytes, and its text.

        >>> DTYPES["DT_STRING"].encode(np.array(["a", "bc"]))
        b'\x01\x00\x00\x00a\x02\x00\x00\x00bc'
        """
        encoded = [text.encode() for text in array.ravel().tolist()]
        return b"".join([part for text in encoded for part in (len(text).to_bytes(4, "little"), text)])

    def _text(self, name: str, item: Any) -> str:
        if isinstance(item, str):
            return str(item)
        if isinstance(item, bytes):
            try:
                return item.decode()
            except UnicodeDecodeError as error:
                raise InvalidValueError(f"Input {name} has {item!r}, which is not UTF-8.") from error
        if isinstance(item, (list, tuple, np.ndarray)):
            raise _ragged(name)
        raise self._wrong(name, item)


class _Numbers(DType):
    """Base class of numbers and booleans. `read` converts text to a value; `one` is what messages call it."""

    python: ClassVar[tuple[type, ...]]
    read: ClassVar[type]
    one: ClassVar[str]

    def check(self, name: str, value: Any) -> Array:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise _ragged(name) from error
        if array.size == 0:
            return np.empty(array.shape, self.numpy)
        if array.dtype.kind not in self.kinds or _has_boolean(value, array):
            raise self._wrong(name, self._first_wrong(name, value, array))
        self._check_range(name, array)
        with np.errstate(over="ignore"):
            return array.astype(self.numpy, copy=False)

    def parse(self, name: str, text: str) -> Any:
        try:
            return self.read(text)
        except ValueError:
            got = f"got {shortened(text)}" if text.strip() else "its field is empty"
            raise InvalidValueError(f"Input {name} must be {self.one}, but {got}.") from None

    def _check_range(self, name: str, array: Array) -> None:
        """Raise InvalidValueError if a number does not fit into the type."""

    def _takes(self, item: Any) -> bool:
        return isinstance(item, self.python) and not isinstance(item, bool)

    def _first_wrong(self, name: str, value: Any, array: Array) -> Any:
        """Return the first value of a wrong type. `array` is `value` after numpy's conversion."""
        items = _flat(value) if isinstance(value, (list, tuple)) else []
        return next((item for item in items if not self._takes(item)), array.flat[0])


class Floats(_Numbers):
    """Floating-point numbers, for which a caller may give integers, too."""

    kinds = "fiu"
    wanted = "numbers"
    pattern = re.compile(number_text.FLOAT)
    json = "number"
    python = (int, float, np.number)
    read = float
    one = "a number"


class Integers(_Numbers):
    """Integers of a fixed size."""

    kinds = "iu"
    wanted = "integers"
    pattern = re.compile(number_text.INTEGER)
    json = "integer"
    python = (int, np.integer)
    read = int
    one = "a whole number"

    def schema(self, *, is_input: bool) -> dict[str, Any]:
        limits = np.iinfo(self.numpy)
        return {"type": self.json, "minimum": limits.min, "maximum": limits.max}

    def too_large(self, name: str, item: int) -> InvalidValueError:
        """Return the error for an integer that does not fit into the type."""
        return InvalidValueError(
            f"Input {name} takes integers, but has {item}, which does not fit into {self.numpy.name}."
        )

    def _check_range(self, name: str, array: Array) -> None:
        limits = np.iinfo(self.numpy)
        for extreme in (array.min().item(), array.max().item()):
            if not limits.min <= extreme <= limits.max:
                raise self.too_large(name, extreme)

    def _first_wrong(self, name: str, value: Any, array: Array) -> Any:
        wrong = super()._first_wrong(name, value, array)
        if isinstance(value, (list, tuple)) and all(map(self._takes, _flat(value))):
            # All values are integers, but one is too large for numpy's integer types. Name the largest one.
            wrong = int(max(_flat(value), key=lambda item: abs(int(item))))
        if type(wrong) is int:
            raise self.too_large(name, wrong)
        return wrong


class Booleans(_Numbers):
    """True and false."""

    kinds = "b"
    wanted = "booleans"
    json = "boolean"

    def parse(self, name: str, text: str) -> bool:
        if text.strip() not in ("true", "false"):
            raise InvalidValueError(f"Input {name} must be true or false, but got {shortened(text)}.")
        return text.strip() == "true"

    def _takes(self, item: Any) -> bool:
        return isinstance(item, bool | np.bool_)


DTYPES: Mapping[str, DType] = {
    one.name: one
    for one in (
        Strings("DT_STRING", np.dtype(np.object_), "BYTES", ""),
        Floats("DT_FLOAT", np.dtype(np.float32), "FP32", 0.0),
        Floats("DT_DOUBLE", np.dtype(np.float64), "FP64", 0.0),
        Integers("DT_INT64", np.dtype(np.int64), "INT64", -1),
        Integers("DT_INT32", np.dtype(np.int32), "INT32", -1),
        Booleans("DT_BOOL", np.dtype(np.bool_), "BOOL", False),
    )
}
"""The types by TensorFlow's name."""

BY_COLUMN: Mapping[str, DType] = {one.column: one for one in DTYPES.values()}
"""The types by `DType.column`."""


def is_missing(value: Any) -> bool:
    """Return whether a caller's value is null: None, NaN, or pandas' NA."""
    is_nan = isinstance(value, float | np.floating) and value != value
    return value is None or is_nan or type(value).__name__ == "NAType"


def all_texts(values: Sequence[Any]) -> bool:
    """Return whether all values are strings, several times faster than by looking at the type of each."""
    try:
        "".join(values)
    except TypeError:
        return False
    return True


def not_a_batch(name: str, item: Any) -> InvalidValueError:
    """Return the error for a single value in place of a batch."""
    return InvalidValueError(f"Input {name} is the single value {item!r}; give a list with one value per row.")


def _ragged(name: str) -> InvalidValueError:
    return InvalidValueError(f"Input {name} has rows of different lengths; every row must have the same shape.")


def _has_boolean(value: Any, array: Array) -> bool:
    """Return whether a list mixes booleans with numbers. numpy would convert the booleans to 0 and 1."""
    if isinstance(value, np.ndarray) or array.dtype.kind == "b" or not isinstance(value, (list, tuple)):
        return False
    if set(map(type, value)) <= {int, float}:
        return False
    return any(isinstance(item, bool) for item in _flat(value))


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        return [value]
    return [item for part in value for item in _flat(part)]
