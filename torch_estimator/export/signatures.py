"""What an export takes and gives: the content of ``signatures.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import ExportError

FORMAT = "torch-estimator-export"
FORMAT_VERSION = 1
SIGNATURES_FILE = "signatures.json"
MODEL_FILE = "model.onnx"

PREDICT = "tensorflow/serving/predict"
CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"

NUMPY_TYPES: Mapping[str, npt.DTypeLike] = {
    "DT_STRING": np.object_,
    "DT_FLOAT": np.float32,
    "DT_DOUBLE": np.float64,
    "DT_INT64": np.int64,
    "DT_INT32": np.int32,
    "DT_BOOL": np.bool_,
}

Default = str | float | int | list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One input or output of a signature.

    Attributes:
        dtype: TensorFlow's name of the type, for instance ``DT_STRING``.
        shape: Sizes, -1 for the batch; ``(-1, -1)`` for lists of any length.
        tensor: Name in the ONNX graph.
        default: Value of every row where a caller leaves the input out; None makes the input mandatory.
        lengths_of: An input of lists that every list of this one must be as long as; that of the values, for weights.
    """

    dtype: str
    shape: tuple[int, ...]
    tensor: str
    default: Default | None = None
    lengths_of: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in NUMPY_TYPES:
            raise ExportError(f"tensor {self.tensor!r} has the unknown type {self.dtype!r}.")

    @property
    def holds_lists(self) -> bool:
        """Whether rows are lists of any length."""
        return self.shape == (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One way to call an export: names of inputs and outputs, in the order they are shown."""

    method_name: str
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvField:
    """A field of a CSV row that the model uses; `default` replaces an empty one."""

    dtype: str
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """How the rows of a CSV input are read.

    Attributes:
        tensor: Graph input that takes the rows as text, without quoting.
        fields_tensor: Optional graph input that takes the rows already split, ``[rows, len(column_names)]``.
        column_names: The fields of a row.
        fields: Those the model uses.
    """

    tensor: str
    fields_tensor: str
    column_names: tuple[str, ...]
    fields: dict[str, CsvField]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashing:
    """How strings become numbers in the graph.

    Attributes:
        functions: Hash function of each hashed key.
        seeds: Seeds of the two 32-bit MurmurHash3 that make one 64-bit hash.
        seen_strings: For keys hashed with farmhash, how many strings the graph knows; others get murmur3.
    """

    functions: dict[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    seen_strings: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything ``signatures.json`` says."""

    signatures: dict[str, Signature]
    receiver: str
    producer: str
    version: str
    global_step: int | None = None
    hashing: Hashing = field(default_factory=Hashing)
    csv: CsvFormat | None = None

    def to_json(self) -> str:
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": MODEL_FILE, **asdict(self)}
        return json.dumps(_without_none(content), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Manifest:
        """Reads `to_json`'s text; anything else is an `ExportError` that names `where` it came from."""
        try:
            content = json.loads(text)
            if content["format"] != FORMAT or content["format_version"] > FORMAT_VERSION:
                found = f"{content['format']!r}, version {content['format_version']!r}"
                raise ExportError(
                    f"{where} has the format {found}; this version reads {FORMAT!r} up to version {FORMAT_VERSION}."
                )
            return cls(
                signatures={name: _signature(value) for name, value in content["signatures"].items()},
                receiver=content["receiver"],
                producer=content["producer"],
                version=content["version"],
                global_step=content.get("global_step"),
                hashing=_hashing(content["hashing"]),
                csv=_csv(content.get("csv")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise ExportError(f"{where} is not the description of an export ({problem}).") from error


def _signature(content: Mapping[str, Any]) -> Signature:
    return Signature(
        method_name=content["method_name"],
        inputs={name: _tensor_info(value) for name, value in content["inputs"].items()},
        outputs={name: _tensor_info(value) for name, value in content["outputs"].items()},
    )


def _tensor_info(content: Mapping[str, Any]) -> TensorInfo:
    shape: Sequence[int] = content["shape"]
    return TensorInfo(
        dtype=content["dtype"],
        shape=tuple(shape),
        tensor=content["tensor"],
        default=content.get("default"),
        lengths_of=content.get("lengths_of"),
    )


def _hashing(content: Mapping[str, Any]) -> Hashing:
    return Hashing(
        functions=dict(content["functions"]),
        seeds=tuple(content["seeds"]),
        seen_strings=dict(content["seen_strings"]),
    )


def _csv(content: Mapping[str, Any] | None) -> CsvFormat | None:
    if content is None:
        return None
    return CsvFormat(
        tensor=content["tensor"],
        fields_tensor=content["fields_tensor"],
        column_names=tuple(content["column_names"]),
        fields={name: CsvField(**value) for name, value in content["fields"].items()},
    )


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
