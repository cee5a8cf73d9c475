"""TFRecord files of tf.Examples as a source of rows. Ranges of whole records are read, and parsed many at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from torch_estimator.data import arrow
from torch_estimator.data.arguments import missing_column
from torch_estimator.data.chunk import Chunk
from torch_estimator.data.column_types import DEFAULT, schema_defaults, schema_missing, schema_types
from torch_estimator.data.columns import Array, Column, concat
from torch_estimator.data.label import LabelColumns, label_columns
from torch_estimator.data.lists import is_list_type
from torch_estimator.data.sources.base import Reader, ReadRequest, Source
from torch_estimator.data.sources.input_files import (
    ByteFile,
    Files,
    as_patterns,
    expand,
    file_version,
    files_signature,
    identify,
)
from torch_estimator.data.sources.left_out import LeftOut
from torch_estimator.data.sources.record_ranges import RecordPiece, RecordRanges, named, open_records
from torch_estimator.data.sources.text_lines import named_files
from torch_estimator.data.stream import Signature
from torch_estimator.errors import DataError, InvalidValueError, RowError
from torch_estimator.tfrecord.features import (
    Feature,
    FeatureList,
    FeatureSpec,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
    as_feature_lists,
    as_feature_spec,
)
from torch_estimator.tfrecord.in_python import feature_kinds, step_kinds
from torch_estimator.tfrecord.parser import Examples
from torch_estimator.tfrecord.records import FOOTER_BYTES, HEADER_BYTES

_BLOCK_BYTES = 2**19
_MOST_BYTES = 2**31
_DTYPES = {1: "string", 2: "float32", 3: "int64"}

Described: TypeAlias = Feature | FeatureList


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TFRecordSource:
    """Source of rows from TFRecord files (paths, URLs and globs) of tf.Examples.

    If `features` is None, the features of the first records are read, and so are their feature lists if `lists` is
    None, too. Columns in `labels` are read in addition to `features`. `ignore_errors` leaves out records that cannot be
    used.
    """

    patterns: tuple[str, ...]
    features: Mapping[str, Feature] | None = None
    lists: Mapping[str, FeatureList] | None = None
    labels: tuple[str, ...] = field(default=())
    ignore_errors: bool = False

    def open(self, request: ReadRequest) -> Reader:
        """Open the files, choose the features, and return a reader.

        Raise a DataError if there is no file or no record, a feature is not there, or the first records are damaged.
        """
        opened = [open_records(path) for path in expand(self.patterns)]
        records = RecordRanges(opened, ignore_errors=self.ignore_errors)
        sample = records.sample()
        if sample is None:
            raise DataError(f"{named_files(opened)} has no records.")
        features = self._features_to_read(request, opened, sample)
        return _TFRecordReader(records, opened, features, self, request, sample)

    def _features_to_read(
        self, request: ReadRequest, opened: Sequence[ByteFile], sample: RecordPiece
    ) -> dict[str, Described]:
        labels = request.label.columns if request.label is not None else ()
        known: dict[str, Described] = {**(self.features or {}), **(self.lists or {})}
        wanted = () if self.features is None else tuple(name for name in (*self.labels, *labels) if name not in known)
        if self.features is None or wanted:
            found = _inferred(
                opened[sample.file],
                sample,
                request,
                lists=self.features is None and self.lists is None,
                ignore_errors=self.ignore_errors,
            )
            for name in wanted:
                if name not in found:
                    raise missing_column(name, f"the first records of {named_files(opened)}", sorted(found))
            known = {**found, **known} if self.features is None else known | {name: found[name] for name in wanted}
        selected = [name for name in known if name not in labels]
        used = request.names(selected)
        for name in (*(used or ()), *labels):
            if name in labels and used is not None and name in used:
                raise DataError(f"column {name!r} is the label, so that it cannot be a feature, too.")
            if name not in known:
                where = "the schema" if self.features is not None else f"the first records of {named_files(opened)}"
                raise missing_column(name, where, sorted(known))
        names = selected if used is None else [name for name in selected if name in used]
        return {name: known[name] for name in (*names, *labels)}


def tfrecord_source(
    files: Files,
    *,
    schema: FeatureSpec | pa.Schema | None,
    sequence_schema: FeatureSpec | None,
    label: LabelColumns | None,
    ignore_errors: bool,
) -> Source:
    """Check the arguments of `Dataset.from_tfrecord`, and return a source of the files' records."""
    features: dict[str, Feature] | None = None
    if isinstance(schema, pa.Schema):
        features = _features_of(schema)
    elif schema is not None:
        features = as_feature_spec(schema)
    lists = None if sequence_schema is None else as_feature_lists(sequence_schema)
    if both := sorted((features or {}).keys() & (lists or {}).keys()):
        raise InvalidValueError(
            f"schema and sequence_schema both have {', '.join(map(repr, both))}; give the column of one another name, "
            "with RaggedFeature(dtype, value_key=…)."
        )
    return TFRecordSource(
        patterns=as_patterns(files),
        features=features,
        lists=lists,
        labels=tuple(label_columns(label)),
        ignore_errors=ignore_errors,
    )


def _features_of(schema: pa.Schema) -> dict[str, Feature]:
    """Convert an Arrow schema, such as that of feature columns, to features. A missing string is ''."""
    defaults, missing = schema_defaults(schema), schema_missing(schema)
    features: dict[str, Feature] = {}
    for name, kind in schema_types(schema).items():
        if pa.types.is_fixed_size_list(kind):
            metadata = schema.field(name).metadata or {}
            default = json.loads(metadata.get(DEFAULT, b"null"))
            features[name] = FixedLenFeature([kind.list_size], _dtype_of(kind.value_type), default)
        elif is_list_type(kind):
            features[name] = VarLenFeature(_dtype_of(kind.value_type))
        else:
            dtype = _dtype_of(kind)
            absent = "" if dtype == "string" else missing.get(name)
            features[name] = FixedLenFeature([], dtype, defaults.get(name, absent))
    return features


def _dtype_of(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):
        return "string"
    return "int64" if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else "float32"


def _inferred(
    file: ByteFile, sample: RecordPiece, request: ReadRequest, *, lists: bool, ignore_errors: bool
) -> dict[str, Described]:
    """Return the features of the first records: one value if each record has exactly one, else lists.

    With `lists`, return the feature lists of SequenceExamples, too; with `ignore_errors`, records may be damaged.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    found_lists: dict[str, list[tuple[int, int]]] = {}
    for start, length in zip(sample.starts.tolist(), sample.lengths.tolist(), strict=True):
        try:
            for name, one in feature_kinds(sample.data, start, length).items():
                found.setdefault(name, []).append(one)
            for name, steps in step_kinds(sample.data, start, length).items() if lists else ():
                found_lists.setdefault(name, []).extend(steps)
        except ValueError as error:
            if ignore_errors:
                continue
            where = named(file, sample.start + start - HEADER_BYTES)
            raise DataError(f"{where}: the record is not a tf.Example.") from error
    features: dict[str, Described] = {}
    for name, values in sorted(found.items()):
        dtype = _inferred_dtype(name, values, file)
        wanted = request.columns.get(name) if request.columns is not None else None
        if {count for _, count in values} <= {0, 1} and not (wanted is not None and is_list_type(wanted)):
            absent: str | float | None = "" if dtype == "string" else request.missing.get(name)
            if dtype == "int64" and absent is not None and not float(absent).is_integer():
                # The reader has no integer for NaN, or for a fraction, which the model wants to see.
                absent = None
            features[name] = FixedLenFeature([], dtype, absent)
        else:
            features[name] = VarLenFeature(dtype)
    for name, steps in sorted(found_lists.items()):
        if name in features:
            raise DataError(
                f"{file.url}: {name!r} is a feature and a feature list; give schema and sequence_schema, with other "
                "names of columns by RaggedFeature(dtype, value_key=…)."
            )
        dtype = _inferred_dtype(name, steps, file)
        is_single = {count for _, count in steps} == {1}
        features[name] = FeatureList(
            FixedLenSequenceFeature([], dtype, allow_missing=True) if is_single else VarLenFeature(dtype)
        )
    return features


def _inferred_dtype(name: str, values: Sequence[tuple[int, int]], file: ByteFile) -> str:
    kinds = {kind for kind, _ in values} - {0}
    if len(kinds) > 1:
        raise DataError(
            f"{file.url}: feature {name!r} holds values of several types; give a schema that leaves it out."
        )
    return _DTYPES[next(iter(kinds), 1)]


class _TFRecordReader(Reader):
    def __init__(
        self,
        records: RecordRanges,
        opened: Sequence[ByteFile],
        features: Mapping[str, Described],
        source: TFRecordSource,
        request: ReadRequest,
        sample: RecordPiece,
    ) -> None:
        self._records = records
        self._files = opened
        self._features = features
        self._source = source
        self._request = request
        self._left_out = LeftOut("damaged record", lambda file, position: named(opened[file], position))
        self.ranges = len(records)
        self.bytes_per_row = float(sample.lengths.mean()) + HEADER_BYTES + FOOTER_BYTES
        self.rows_per_range = records.bytes / max(len(records), 1) / self.bytes_per_row

    def read(self, ranges: Array) -> Chunk:
        parts = [self._parsed(block) for block in _blocks(self._records.read(ranges))]
        self._left_out.report([one for part in parts for one in part.damage])
        columns: dict[str, Column] = {}
        for name, feature in self._features.items():
            column = _concat([part.columns[name] for part in parts], feature) if parts else _no_rows(feature)
            if isinstance(column, pa.Array) and _is_single_text(feature):
                column = column.dictionary_encode()
            columns[name] = column
        origin = _Origin(
            self._files,
            _joined([part.origin.numbers for part in parts]),
            _joined([part.origin.positions for part in parts]),
        )
        return self._request.labelled(Chunk(columns, None, len(origin.positions), origin))

    def _parsed(self, block: Sequence[RecordPiece]) -> _Part:
        """Parse the records of a block; with `ignore_errors`, leave out those that cannot be used."""
        data = block[0].data if len(block) == 1 else b"".join(piece.data for piece in block)
        begins = np.cumsum([0, *(len(piece.data) for piece in block)])
        starts = _joined([piece.starts + begin for piece, begin in zip(block, begins, strict=False)])
        origin = _Origin(
            self._files,
            _joined([np.full(len(piece.starts), piece.file) for piece in block]),
            _joined([piece.starts + (piece.start - HEADER_BYTES) for piece in block]),
        )
        damage = [(piece.file, position, reason) for piece in block for position, reason in piece.damage]
        examples = Examples(self._features, data, starts, _joined([piece.lengths for piece in block]))
        wrong = examples.wrong()
        if wrong.any():
            if not self._source.ignore_errors:
                raise self._error(examples, int(np.flatnonzero(wrong)[0]), origin)
            damage += [origin.damage(row, examples.problem(row).text) for row in np.flatnonzero(wrong).tolist()]
            examples.drop(wrong)
            origin = origin.kept(~wrong)
        while True:
            try:
                columns = {name: self._column(name, feature, examples) for name, feature in self._features.items()}
                return _Part(columns, origin, damage)
            except RowError as error:
                if not self._source.ignore_errors:
                    raise DataError(f"{origin(error.row)}: column {error.column!r}: {error.problem}.") from error
                damage.append(origin.damage(error.row, error.problem))
                wrong = np.arange(len(examples)) == error.row
                examples.drop(wrong)
                origin = origin.kept(~wrong)

    def signature(self) -> Signature:
        return {"source": "tfrecord", "files": files_signature([identify(file) for file in self._files])}

    def identity(self) -> Signature:
        return {
            **self.signature(),
            "versions": [file_version(file.url) for file in self._files],
            "features": {name: repr(feature) for name, feature in self._features.items()},
            "ignore_errors": self._source.ignore_errors,
        }

    def _error(self, examples: Examples, row: int, origin: _Origin) -> DataError:
        problem = examples.problem(row)
        column = "" if problem.column is None else f"column {problem.column!r}: "
        cure = problem.cure and f"; {problem.cure}"
        return DataError(f"{origin(row)}: {column}{problem.text}{cure}.")

    def _column(self, name: str, feature: Described, examples: Examples) -> Column:
        if isinstance(feature, FeatureList):
            counts, steps = examples.steps(name)
            try:
                values = self._column("", feature.step, steps)
            except RowError as error:
                row = int(np.searchsorted(np.cumsum(counts), error.row, side="right"))
                raise RowError(error.problem, row=row, column=name) from error
            return _lists(counts, arrow.nested(values) if isinstance(values, np.ndarray) else values)
        if feature.dtype not in ("string", "bytes"):
            values = examples.numbers(name)
            if isinstance(feature, FixedLenFeature | SparseFeature):
                return values
            return _lists(self._lengths(name, feature, examples), arrow.nested(values))
        texts = self._texts(name, feature, examples)
        if isinstance(feature, VarLenFeature | RaggedFeature):
            return _lists(examples.counts(name), texts)
        if isinstance(feature, FixedLenSequenceFeature):
            if feature.size > 1:
                texts = _lists(np.full(len(texts) // feature.size, feature.size), texts)
            return _lists(self._lengths(name, feature, examples), texts)
        assert isinstance(feature, FixedLenFeature)
        missing = examples.is_missing(name)
        if missing.any():
            places = np.cumsum(np.repeat(~missing, feature.size)) - 1
            places[np.repeat(missing, feature.size)] = len(texts) + np.tile(
                np.arange(feature.size), np.count_nonzero(missing)
            )
            both = pa.concat_arrays([texts, pa.array(feature.default_value, texts.type)])
            texts = both.take(arrow.from_numpy(places))
        if feature.size == 1:
            return texts
        return _lists(np.full(len(examples), feature.size), texts)

    def _lengths(self, name: str, feature: Feature, examples: Examples) -> Array:
        counts = examples.counts(name)
        return counts // feature.size if isinstance(feature, FixedLenSequenceFeature) else counts

    def _texts(self, name: str, feature: Feature, examples: Examples) -> pa.Array:
        data, offsets = examples.texts(name)
        is_text = feature.dtype == "string"
        if offsets[-1] < 2**31:
            kind = pa.string() if is_text else pa.binary()
            offsets = offsets.astype(np.int32)
        else:
            kind = pa.large_string() if is_text else pa.large_binary()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        array = pa.Array.from_buffers(kind, len(offsets) - 1, buffers)
        if not is_text:
            return array
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            texts = pa.Array.from_buffers(
                pa.binary() if kind == pa.string() else pa.large_binary(), len(array), buffers
            )
            value = next(place for place, text in enumerate(texts.to_pylist()) if not _is_utf8(text))
            row = int(np.searchsorted(np.cumsum(examples.counts(name)), value, side="right"))
            problem = "a value is not UTF-8 text; read it with the dtype 'bytes' in the schema"
            raise RowError(problem, row=row, column=name) from error
        return array


@dataclass(frozen=True, slots=True)
class _Origin:
    """Callable that names the file and byte offset of a row, for error messages."""

    files: Sequence[ByteFile]
    numbers: Array
    positions: Array

    def __call__(self, row: int) -> str:
        return named(self.files[self.numbers[row]], int(self.positions[row]))

    def damage(self, row: int, reason: str) -> tuple[int, int, str]:
        return int(self.numbers[row]), int(self.positions[row]), reason

    def kept(self, rows: Array) -> _Origin:
        return _Origin(self.files, self.numbers[rows], self.positions[rows])


@dataclass(frozen=True, slots=True)
class _Part:
    """Columns of some records, where the records are, and the records that were left out: file, position, reason."""

    columns: Mapping[str, Column]
    origin: _Origin
    damage: Sequence[tuple[int, int, str]]


def _blocks(pieces: Sequence[RecordPiece]) -> Iterator[list[RecordPiece]]:
    """Yield the records of all pieces, in order, in blocks that fit into the processor's cache."""
    block: list[RecordPiece] = []
    size = 0
    for piece in pieces:
        if len(piece.data) > _BLOCK_BYTES:
            if block:
                yield block
            yield from ([part] for part in piece.parts(_BLOCK_BYTES))
            block, size = [], 0
            continue
        block.append(piece)
        size += len(piece.data)
        if size > _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _concat(columns: Sequence[Any], feature: Described) -> Column:
    """Return the parts of a column as one. Bytes, such as images, may be more than an ordinary array of Arrow holds."""
    is_single = isinstance(feature, FixedLenFeature) and feature.size == 1 and feature.dtype == "bytes"
    if is_single and sum(column.nbytes for column in columns) >= _MOST_BYTES:
        columns = [column.cast(pa.large_binary()) for column in columns]
    return concat(columns)


def _is_single_text(feature: Described) -> bool:
    return isinstance(feature, FixedLenFeature) and feature.size == 1 and feature.dtype == "string"


def _no_rows(feature: Described) -> Column:
    """Return a column without rows."""
    if isinstance(feature, FeatureList):
        steps = _no_rows(feature.step)
        return _lists(np.empty(0, np.int64), arrow.nested(steps) if isinstance(steps, np.ndarray) else steps)
    if isinstance(feature, SparseFeature):
        return np.empty((0, feature.size), feature.dtype)
    kind = {"float32": pa.float32(), "int64": pa.int64(), "string": pa.string(), "bytes": pa.binary()}[feature.dtype]
    is_number = feature.dtype in ("float32", "int64")
    if isinstance(feature, FixedLenFeature):
        if is_number:
            return np.empty((0, *feature.shape), feature.dtype)
        return pa.array([], kind if feature.size == 1 else pa.list_(kind))
    if isinstance(feature, FixedLenSequenceFeature):
        if is_number:
            kind = arrow.nested(np.empty((0, *feature.shape), feature.dtype)).type
        elif feature.size > 1:
            kind = pa.list_(kind)
    return pa.array([], pa.list_(kind))


def _lists(counts: Array, values: pa.Array) -> pa.ListArray:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(arrow.from_numpy(offsets), values)


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate(arrays).astype(np.int64, copy=False) if arrays else np.empty(0, np.int64)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
