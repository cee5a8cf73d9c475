"""Description of an export with its inputs and outputs, stored in the file ``signatures.json``."""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from torch_estimator.errors import ExportError
from torch_estimator.export.dtypes import DTYPES, DType
from torch_estimator.json_text import parse_json
from torch_estimator.runs.state_file import dataclass_from_json
from torch_estimator.tfrecord.features import FixedLenFeature, FixedLenSequenceFeature, ServedFeature, VarLenFeature

FORMAT = "torch-estimator-export"
FORMAT_VERSION = 1
SIGNATURES_FILE = "signatures.json"
MODEL_FILE = "model.onnx"
DATA_FILE = f"{MODEL_FILE}.data"

PREDICT = "tensorflow/serving/predict"
CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"

_MOST_SIZE = 2**31

Default = str | float | int | list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Description of one input or output of an exported model; `dtype` is TensorFlow's name, such as ``DT_STRING``.

    Sizes in `shape` are -1 for the batch; ``(-1, -1)`` describes lists of any length. `tensor` is the name in the ONNX
    graph. `default` is the value of a row that lacks one, or of every row if a caller omits the input, and None makes
    the input mandatory.

    An input of weights names that of its values in `lengths_of`; their lists must be equally long. Sequences with
    `exact_lengths` must not be padded, so rows of different lengths are run apart. For lists that a sequence column
    reads, `step_size` is the number of values in each step. All of these inputs must have equally many steps in a row,
    and short lists are padded with missing values; that of a float is NaN.
    """

    dtype: str
    shape: tuple[int, ...]
    tensor: str
    default: Default | None = None
    lengths_of: str | None = None
    exact_lengths: bool | None = None
    step_size: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ExportError(f"tensor {self.tensor!r} has the unknown type {self.dtype!r}.")

    @property
    def type(self) -> DType:
        """The type, with what can be done with its values."""
        return DTYPES[self.dtype]

    @property
    def is_single(self) -> bool:
        """Whether the rows are single values. They may be given as ``[rows]`` or as ``[rows, 1]``."""
        return len(self.shape) == 1 or self.shape[1:] == (1,)

    @property
    def missing(self) -> Default | None:
        """What stands for a row that is null or left out: the default in the row's shape; None if there is none."""
        default = "" if self.default is None and self.dtype == "DT_STRING" else self.default
        if default is None or self.varies:
            return self.default
        if self.is_single:
            return default[0] if isinstance(default, list) else default
        row: list[Any] = np.resize(np.array(default, dtype=self.type.numpy), self.shape[1:]).tolist()
        return row

    @property
    def holds_lists(self) -> bool:
        """Whether each row is a list, whose length may vary from row to row."""
        return self.shape == (-1, -1)

    @property
    def varies(self) -> bool:
        """Whether the first size of a row may vary: it holds a list of values, or a list of vectors."""
        return self.shape[1:2] == (-1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One way to call an exported model, with its inputs and outputs by name, in the order in which they are shown.

    `method_name` is TensorFlow Serving's name of the kind of call, such as `PREDICT`.
    """

    method_name: str
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]

    def inputs_near(self, name: str) -> str:
        """Return the end of a message about an unknown input: the input with the nearest name, or all of them."""
        if self.method_name != PREDICT and list(self.inputs) == ["inputs"]:
            return "this signature takes the one string of a row as inputs, and the signature predict takes it by name."
        near = difflib.get_close_matches(name, self.inputs, n=1)
        return f"the nearest input is {near[0]}." if near else f"the inputs are {', '.join(self.inputs)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvField:
    """Type, for instance ``DT_FLOAT``, and default of one CSV field that the model uses.

    The default is the text that replaces an empty field. None makes an empty field of a number an error.
    """

    dtype: str
    default: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"unknown type {self.dtype!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """Format of an input whose rows are lines of CSV.

    `tensor` is the graph input for rows of text without quotes, ``[rows]``; `fields_tensor` an optional one for rows
    that the caller split, ``[rows, len(column_names)]``. `column_names` are all fields of a row, `fields` those that
    the model uses.
    """

    tensor: str
    fields_tensor: str
    column_names: tuple[str, ...]
    fields: dict[str, CsvField]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleField:
    """One feature of serialized tf.Examples that the model uses; `dtype` is ``float32``, ``int64`` or ``string``.

    `shape` is that of one row's values: None if there may be any number of them, ``(-1, …)`` for steps of a shape.
    `default` replaces a missing feature; without one, a missing feature is an error, unless it is a list. `step_size`
    and `exact_lengths` are as in `TensorInfo`.
    """

    dtype: str
    shape: tuple[int, ...] | None = None
    default: tuple[Any, ...] | None = None
    step_size: int | None = None
    exact_lengths: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleFormat:
    """Format of an input whose rows are serialized tf.Examples. They are parsed before the graph runs.

    `tensor` is the `TensorInfo.tensor` of such an input. The graph does not have it. The features in `fields` have the
    names of the graph's inputs.
    """

    tensor: str
    fields: dict[str, ExampleField]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashing:
    """Hash functions that the ONNX graph applies to strings; `functions` has that of each hashed column.

    `seeds` are those of the two 32-bit MurmurHash3 values that form one 64-bit hash. `seen_strings` has, for columns
    hashed with farmhash, the number of strings whose hash the graph contains; other strings are hashed with murmur3.
    """

    functions: dict[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    seen_strings: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Description of an export, which is the content of ``signatures.json``.

    `receiver` is the kind of the serving input: ``raw_features``, ``json``, ``csv`` or ``examples``; `csv` and
    `examples` are the format of such an input. `producer` is the program that wrote the export, and `version` that of
    the program. `data_bytes` is the size of the file with the large initializers, or None if the export has no such
    file. `ignore_unknown` is True if names that the model does not read are left out, and None if they are refused.
    `head_outputs` are the tensors of numbers that premade heads made, which must not be NaN; None in older exports.
    """

    signatures: dict[str, Signature]
    receiver: str
    producer: str
    version: str
    global_step: int | None = None
    hashing: Hashing = field(default_factory=Hashing)
    csv: CsvFormat | None = None
    examples: ExampleFormat | None = None
    data_bytes: int | None = None
    ignore_unknown: bool | None = None
    head_outputs: tuple[str, ...] | None = None

    def to_json(self) -> str:
        """Return the manifest as JSON text, for the file ``signatures.json``."""
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": MODEL_FILE, **asdict(self)}
        return json.dumps(_without_none(content), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Manifest:
        """Parse a manifest from the JSON text of ``signatures.json``, which has the path `where`."""
        try:
            content = parse_json(text)
            if content["format"] != FORMAT or content["format_version"] > FORMAT_VERSION:
                found = f"{content['format']!r}, version {content['format_version']!r}"
                raise ExportError(
                    f"{where} has the format {found}; this version reads {FORMAT!r} up to version {FORMAT_VERSION}."
                )
            manifest = dataclass_from_json(cls, content)
            for signature in manifest.signatures.values():
                _check_signature(signature)
            for one in manifest.examples.fields.values() if manifest.examples is not None else ():
                feature_of(one)
            _check_csv(manifest)
            return manifest
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise ExportError(f"{where} is not the description of an export ({problem}).") from error


def _check_signature(signature: Signature) -> None:
    for name, info in signature.inputs.items():
        if info.lengths_of is not None and info.lengths_of not in signature.inputs:
            raise ValueError(f"the lengths of input {name!r} are those of {info.lengths_of!r}, which is no input")
    for info in (*signature.inputs.values(), *signature.outputs.values()):
        if not all(-1 <= size < _MOST_SIZE for size in info.shape):
            raise ValueError(f"tensor {info.tensor!r} has the shape {list(info.shape)}")
        if info.default is not None:
            _check_default(info)


def _check_default(info: TensorInfo) -> None:
    """Check that the default value of an input has the input's type and the shape of a row."""
    row = np.array(info.default, dtype=info.type.numpy)
    if info.dtype == "DT_STRING" and not all(isinstance(text, str) for text in row.flat):
        raise TypeError(f"the default {info.default!r:.100} must be text")
    if info.holds_lists:
        fits = row.ndim <= 1
    else:
        sizes = info.shape[1:]
        fits = min(sizes, default=1) > 0 and (row.size == 1 or row.shape == sizes or row.shape == (math.prod(sizes),))
    if not fits:
        raise ValueError(f"the default {info.default!r:.100} has not the shape {list(info.shape[1:])} of a row")


def feature_of(field: ExampleField) -> ServedFeature:
    """Return the feature that a field of tf.Examples describes."""
    if field.shape is None:
        return VarLenFeature(field.dtype)
    if field.shape[:1] == (-1,):
        return FixedLenSequenceFeature(field.shape[1:], field.dtype, allow_missing=True)
    return FixedLenFeature(field.shape, field.dtype, field.default)


def _check_csv(manifest: Manifest) -> None:
    """Check that a manifest's CSV fields are columns of the CSV format, and that the CSV rows are strings."""
    csv = manifest.csv
    if csv is None:
        return
    for name in csv.fields:
        if name not in csv.column_names:
            raise ValueError(f"the CSV field {name!r} is not in column_names")
    for signature in manifest.signatures.values():
        for name, info in signature.inputs.items():
            if info.tensor == csv.tensor and info.dtype != "DT_STRING":
                raise ValueError(f"the CSV rows are the input {name!r}, which is not of the type DT_STRING")


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
