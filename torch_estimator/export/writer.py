"""Writer of exports: build the ONNX graph and its signatures, write them into a new directory, load them as a test."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from torch import nn

from torch_estimator import __version__, files
from torch_estimator.data.feature_structure import Structure
from torch_estimator.errors import ExportError
from torch_estimator.export.any_module import ModuleInputs, named_inputs, raw_inputs
from torch_estimator.export.directory import new_export
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.extra_outputs import LayerRecorder, lower_forwarded, with_forwarded
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.half_tables import HalfTables
from torch_estimator.export.heads import is_premade, lower_predictions, signatures, tensor_info
from torch_estimator.export.network import is_canned, lower_functions, lower_network
from torch_estimator.export.receivers import Received, check_raw, lower_receiver
from torch_estimator.export.recording import check_count, record_warmup
from torch_estimator.export.signatures import (
    DATA_FILE,
    MODEL_FILE,
    SIGNATURES_FILE,
    ExampleField,
    ExampleFormat,
    Hashing,
    Manifest,
    TensorInfo,
)
from torch_estimator.export.torch_callable import Inlined, in_module
from torch_estimator.export.warmup import ASSETS_EXTRA, MOST_INSTANCES
from torch_estimator.feature_column.hashing import MURMUR3_SEED_HIGH, MURMUR3_SEED_LOW
from torch_estimator.feature_column.sequence_features import bags_of
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.heads import MultiHead
from torch_estimator.heads.function_head import FunctionHead
from torch_estimator.heads.serving import SERVING_DEFAULT, Signature
from torch_estimator.inner_layers import ForwardedLayers, all_layers, check_new_keys
from torch_estimator.networks import ROWS, RowCount
from torch_estimator.serving_input import ServingInput

logger = logging.getLogger("torch_estimator")

PRODUCER = "torch-estimator"

_Described = TypeVar("_Described", TensorInfo, ExampleField)

# Largest model in bytes that is written as one file. The initializers of a larger model that have 1 MiB or more are
# written into a second file, block by block. onnxruntime maps that file, while it parses and copies the first one,
# which is a protobuf message and limited to 2 GiB: a table of 0.77 GB is loaded in 0.1 instead of 3.6 s.
LARGEST_MODEL = 2**26
_DATA_SHARE = 64

# Pattern of onnxruntime's error message for an operator that is not implemented for a dtype.
_NOT_IMPLEMENTED = re.compile(r"implementation for (\w+)\(\d+\) node with name '([^']*)'")


def write_export(
    export_dir_base: files.PathLike,
    *,
    module: nn.Module,
    transform: FeatureTransform | None,
    head: Any,
    receiver: ServingInput,
    assets_extra: Mapping[str, files.PathLike] | None = None,
    global_step: int | None = None,
    forward: Sequence[str] | None = (),
    layers: Sequence[ForwardedLayers] = (),
    export_outputs: Mapping[str, Signature] | None = None,
    structure: Structure | None = None,
    rows: Sequence[Mapping[str, Any]] = (),
    warmup_instances: int = MOST_INSTANCES,
    dtype: str = "float32",
    clock: Callable[[], float] = time.time,
) -> str:
    """Write a model as one ONNX graph from raw inputs to predictions; return the new directory.

    The new directory in `export_dir_base`, named by the time in seconds since 1970, gets its final name after the
    export was written, checked and loaded once. Unfinished exports that killed processes left in the same directory are
    removed.

    `transform` maps raw columns to features; it is None if the module takes raw numbers, and `structure` is then the
    structure of the features that it was trained on. `head` maps logits to predictions, and `receiver` defines the
    inputs. `forward` names inputs that are outputs, too (None for all); `layers` are inner layers that are outputs.
    `assets_extra` are files to copy into ``assets.extra``, by their path in it. At most `warmup_instances` of `rows`,
    which are raw features, are recorded as warm-up instances; see `torch_estimator.export.warmup`. `dtype` is that of
    tables, ``"float32"`` or ``"float16"``. `clock` returns seconds since 1970.

    Raise an ExportError if a part of the model cannot be exported or the directory cannot be written, and an
    InvalidValueError if `warmup_instances` cannot be used.
    """
    check_count(warmup_instances)
    if not isinstance(receiver, ServingInput):
        raise ExportError(
            "the serving input must be made by te.serving_input.raw_features, json, csv, examples, like or receiver, "
            f"but got {receiver!r}."
        )
    if transform is None:
        receiver = _unpadded(receiver)
    graph, manifest = build(
        module=module,
        transform=transform,
        head=head,
        receiver=receiver,
        global_step=global_step,
        forward=forward,
        layers=layers,
        export_outputs=export_outputs,
        structure=structure,
    )
    half = HalfTables(graph) if dtype == "float16" else None
    base = files.as_url(export_dir_base)
    try:
        with new_export(base, clock) as (temporary, final):
            manifest = dataclasses.replace(manifest, data_bytes=_write_model(graph, temporary, manifest.version))
            if half is not None:
                half.log()
            _copy_assets(assets_extra or {}, temporary)
            # The end of the block syncs all files of the export.
            files.write_file(files.join(temporary, SIGNATURES_FILE), [manifest.to_json().encode()], synced=False)
            record_warmup(_loaded(temporary, graph), receiver, rows, warmup_instances)
        return final
    except OSError as error:
        raise ExportError(f"the export into {base} cannot be written: {files.reason(error)}.") from error


def _unpadded(receiver: ServingInput) -> ServingInput:
    """Return a serving input of a module without columns, whose lists of numbers are not padded."""
    if receiver.features:
        return receiver
    lists = (name for name, one in receiver.inputs.items() if one.shape[0] == -1 and one.dtype != "string")
    return dataclasses.replace(receiver, variable=tuple(lists))


def build(
    *,
    module: nn.Module,
    transform: FeatureTransform | None,
    head: Any,
    receiver: ServingInput,
    global_step: int | None = None,
    forward: Sequence[str] | None = (),
    layers: Sequence[ForwardedLayers] = (),
    export_outputs: Mapping[str, Signature] | None = None,
    structure: Structure | None = None,
) -> tuple[GraphBuilder, Manifest]:
    """Return the ONNX graph of an export, and its manifest (the content of ``signatures.json``).

    The arguments are those of `write_export`.
    """
    graph = GraphBuilder()
    received = lower_receiver(graph, receiver, for_columns=transform is not None)
    inputs = _inputs(graph, transform, received, receiver, structure)
    recorder = LayerRecorder(module, all_layers(layers))
    if isinstance(head, FunctionHead) and not is_canned(module):
        predictions = lower_functions(graph, module, inputs, head.predictions, recorder)
    else:
        joined = head.joined if isinstance(head, MultiHead) else None
        logits = lower_network(graph, module, inputs, getattr(head, "logits_dimension", 1), recorder, joined)
        predictions = lower_predictions(head, graph, logits)
    made = tuple(predictions) if is_premade(head) else ()
    forwarded = lower_forwarded(forward, received, receiver)
    for what, more in (("layer", recorder.outputs()), ("feature", forwarded)):
        check_new_keys(what, more, predictions)
        predictions |= more
    outputs = {}
    for key, prediction in predictions.items():
        # Rename an output that has the name of an input, because names in an ONNX graph must be unique.
        name = graph.name(key if key not in received.inputs else f"{key}_out")
        outputs[key] = tensor_info(prediction, name)
        graph.output(name, prediction.tensor, outputs[key])
    if not isinstance(transform, RowCount):
        _warn_of_unread(graph, received, receiver)
    described = _with_lengths(received.inputs, transform)
    manifest = Manifest(
        signatures=with_forwarded(
            lambda joined: signatures(head, joined, described, export_outputs),
            outputs,
            layers,
            list(forwarded),
            has_default=SERVING_DEFAULT in (export_outputs or {}),
        ),
        receiver=receiver.kind,
        producer=PRODUCER,
        version=__version__,
        global_step=global_step,
        hashing=_hashing(transform),
        csv=received.csv,
        examples=_examples(received.examples, transform),
        ignore_unknown=receiver.ignore_unknown or None,
        head_outputs=tuple(outputs[key].tensor for key in made if outputs[key].type.numpy.kind == "f"),
    )
    return graph, manifest


def _examples(examples: ExampleFormat | None, transform: FeatureTransform | None) -> ExampleFormat | None:
    if examples is None:
        return None
    return dataclasses.replace(examples, fields=_with_step_sizes(examples.fields, transform))


def _inputs(
    graph: GraphBuilder,
    transform: FeatureTransform | None,
    received: Received,
    receiver: ServingInput,
    structure: Structure | None,
) -> ModuleInputs:
    """Return the tensors that the module takes, after adding the nodes that compute them from the serving input."""
    if transform is None:
        return raw_inputs(received, receiver, structure)
    if isinstance(transform, RowCount):
        # Use any input, because a baseline needs only the number of rows.
        for raw in received.raw.values():
            return named_inputs({ROWS: Inlined(tensor=raw.tensor, row_shape=(0,), dtype="float32")})
        raise ExportError("a baseline needs a serving input with at least one column, to know how many rows there are.")
    # Import this module only here, since the export of a module without feature columns does not need it.
    from torch_estimator.export.columns import lower_features

    check_raw(received.raw, transform.raw_features)
    return named_inputs(lower_features(graph, transform, received.raw))


def _warn_of_unread(graph: GraphBuilder, received: Received, receiver: ServingInput) -> None:
    """Log the names of inputs that no output of the graph depends on."""
    needed = graph.needed()
    # What is forwarded is the input itself, of which the raw column may be another shape.
    unread = [key for key in receiver.inputs if needed.isdisjoint((key, received.given[key].tensor))]
    if unread:
        logger.warning(
            "The export takes %s, which the model does not read; name it in te.forward_features to return it.",
            ", ".join(map(repr, unread)),
        )


def _with_lengths(inputs: Mapping[str, TensorInfo], transform: FeatureTransform | None) -> dict[str, TensorInfo]:
    """Return the inputs, with `lengths_of` set for weights, and `step_size` for sequences; see `TensorInfo`."""
    result = dict(inputs)
    for bag in transform.bags if transform is not None else ():
        column = bag.column
        if column.multivalent and bag.weights is not None:
            values, weights = (feature.key for feature in column.raw_features)
            if values in result and weights in result:
                result[weights] = dataclasses.replace(result[weights], lengths_of=values)
    return _with_step_sizes(result, transform)


def _with_step_sizes(described: Mapping[str, _Described], transform: FeatureTransform | None) -> dict[str, _Described]:
    """Return the inputs, or fields of tf.Examples, with the `step_size` of those that sequence columns read."""
    if transform is None or transform.sequence is None:
        return dict(described)
    sizes = {bag.column.raw_features[0].key: 1 for bag in bags_of(transform.sequence)}
    sizes |= {placed.column.raw_features[0].key: placed.column.width for placed in transform.sequence.numeric}
    return {key: dataclasses.replace(one, step_size=sizes.get(key)) for key, one in described.items()}


def _hashing(transform: FeatureTransform | None) -> Hashing:
    """Return the hash functions that the feature columns apply to strings, for the manifest."""
    if transform is None:
        return Hashing()
    functions: dict[str, str] = {}
    for column in _categorical(transform):
        function = getattr(column, "hash_function", None)
        if function is not None and (getattr(column, "num_oov_buckets", True)):
            functions[column.name] = function
    if not functions:
        return Hashing()
    seen = {key: len(strings) for key, strings in transform.seen_strings().items()}
    return Hashing(functions=functions, seeds=(MURMUR3_SEED_HIGH, MURMUR3_SEED_LOW), seen_strings=seen)


def _categorical(transform: FeatureTransform) -> Iterator[Any]:
    """Yield every categorical column of the model."""
    for _, group, _, _ in transform.tensors_of_ids():
        yield from (placed.column for placed in group)
    for bag in transform.bags:
        yield getattr(bag.column, "categorical_column", bag.column)
    for bag in bags_of(transform.sequence) if transform.sequence is not None else ():
        yield getattr(bag.column, "categorical_column", bag.column)


def _write_model(graph: GraphBuilder, directory: str, version: str) -> int | None:
    """Write the files of a graph; return the size of the second one, None if there is only one."""
    import onnx

    path, data = os.path.join(directory, MODEL_FILE), os.path.join(directory, DATA_FILE)
    data_from = LARGEST_MODEL // _DATA_SHARE if graph.size > LARGEST_MODEL else None
    if data_from is not None:
        files.write_file(data, graph.data(data_from), synced=False)
    onnx.save_model(graph.model(producer=PRODUCER, version=version, data_from=data_from), path)
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"the graph is not valid ONNX: {files.reason(error)}.") from error
    return None if data_from is None else os.path.getsize(data)


def _loaded(directory: str, graph: GraphBuilder) -> ExportedModel:
    """Load the export as a test, since onnxruntime may lack an operator even if the graph is valid ONNX."""
    try:
        return ExportedModel.load(directory)
    except ExportError as error:
        missing = _NOT_IMPLEMENTED.search(str(error))
        if missing is None:
            raise
        operator, node = missing.groups()
        raise ExportError(
            f"onnxruntime has no {operator} for the dtypes that the model gives it{in_module(graph.scopes(node))}; "
            "compute it in float32 there."
        ) from error


def _copy_assets(assets: Mapping[str, files.PathLike], directory: str) -> None:
    for name, source in assets.items():
        parts = [part for part in str(name).split("/") if part]
        if not parts or ".." in parts or str(name).startswith("/"):
            raise ExportError(f"assets_extra has the path {name!r}, which does not lie within {ASSETS_EXTRA}.")
        target = files.join(directory, ASSETS_EXTRA, *parts)
        files.makedirs(files.parent(target))
        try:
            files.write_file(target, [files.read_bytes(source)], synced=False)
        except FileNotFoundError as error:
            raise ExportError(f"assets_extra names {files.as_url(source)}, which does not exist.") from error
