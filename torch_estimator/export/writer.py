"""Writes exports: ``<base>/<unix seconds>/`` with the graph, its signatures and extra files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from torch_estimator import __version__, files
from torch_estimator.data.feature_structure import Structure
from torch_estimator.errors import ExportError
from torch_estimator.export.cleanup import TEMPORARY, owned, remove_leftovers
from torch_estimator.export.export_problems import in_module
from torch_estimator.export.forwarded import lower_forwarded, with_forwarded
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.heads import lower_predictions, signatures
from torch_estimator.export.intermediate_outputs import Taps
from torch_estimator.export.module_inputs import ModuleInputs, named_inputs, raw_inputs
from torch_estimator.export.names import export_names
from torch_estimator.export.network import is_canned, lower_functions, lower_network
from torch_estimator.export.receivers import Received, check_raw, lower_receiver
from torch_estimator.export.signatures import MODEL_FILE, SIGNATURES_FILE, Hashing, Manifest, TensorInfo
from torch_estimator.export.torch_callable import Inlined
from torch_estimator.feature_column.hashing import MURMUR3_SEED_HIGH, MURMUR3_SEED_LOW
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.heads import MultiHead
from torch_estimator.heads.function_head import FunctionHead
from torch_estimator.inner_layers import ForwardedLayers, all_layers, check_new_keys
from torch_estimator.models.networks import ROWS, RowCount
from torch_estimator.serving_input import ServingInput

PRODUCER = "torch-estimator"
ASSETS_EXTRA = "assets.extra"
ATTEMPTS = 10

_NOT_IMPLEMENTED = re.compile(r"implementation for (\w+)\(\d+\) node with name '([^']*)'")

# A protobuf message cannot be larger than 2 GiB.
LARGEST_MODEL = 2**31 - 2**24


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
    structure: Structure | None = None,
    clock: Callable[[], float] = time.time,
) -> str:
    """Writes a model as one ONNX graph from raw inputs to predictions; returns the new directory.

    The export is written under another name, checked and loaded once, and renamed when it is complete. What a killed
    process left unfinished in the same base is removed.

    Args:
        export_dir_base: Directory or URL; the export becomes a directory in it named by the time in seconds.
        module: From features to logits.
        transform: From raw columns to features; None where the module takes raw numeric columns.
        head: From logits to predictions.
        receiver: What a caller of the export gives.
        assets_extra: Files to put into ``assets.extra``, by their path in there.
        global_step: Step of the checkpoint, noted in the export.
        forward: Inputs that are given back among the predictions; None for all.
        layers: Inner layers whose outputs are given.
        structure: Of the features that the module was trained on, where it takes raw numbers.
        clock: Gives the time in seconds.

    Raises:
        ExportError: Something cannot be exported, or ten names in a row were taken.
    """
    if not isinstance(receiver, ServingInput):
        raise ExportError(
            f"the serving input must be made by te.serving_input.raw_features, json or csv, but got {receiver!r}."
        )
    graph, manifest = build(
        module=module,
        transform=transform,
        head=head,
        receiver=receiver,
        global_step=global_step,
        forward=forward,
        layers=layers,
        structure=structure,
    )
    base = files.as_url(export_dir_base)
    try:
        with _directory(base, clock) as (temporary, final):
            _write_model(graph, temporary, manifest.version)
            _copy_assets(assets_extra or {}, temporary)
            files.write_file(files.join(temporary, SIGNATURES_FILE), [manifest.to_json().encode()])
            _load_once(temporary, graph)
        return final
    except OSError as error:
        raise ExportError(f"the export into {base} cannot be written: {files.reason(error)}.") from error


def build(
    *,
    module: nn.Module,
    transform: FeatureTransform | None,
    head: Any,
    receiver: ServingInput,
    global_step: int | None = None,
    forward: Sequence[str] | None = (),
    layers: Sequence[ForwardedLayers] = (),
    structure: Structure | None = None,
) -> tuple[GraphBuilder, Manifest]:
    """Returns the graph and the description of an export; the arguments are those of `write_export`."""
    graph = GraphBuilder()
    received = lower_receiver(graph, receiver)
    inputs = _inputs(graph, transform, received, receiver, structure)
    taps = Taps(module, all_layers(layers))
    if isinstance(head, FunctionHead) and not is_canned(module):
        predictions = lower_functions(graph, module, inputs, head.predictions, taps)
    else:
        joined = head.joined if isinstance(head, MultiHead) else None
        logits = lower_network(graph, module, inputs, getattr(head, "logits_dimension", 1), taps, joined)
        predictions = lower_predictions(head, graph, logits)
    forwarded = lower_forwarded(forward, received, receiver)
    for what, more in (("layer", taps.outputs()), ("feature", forwarded)):
        check_new_keys(what, more, predictions)
        predictions |= more
    outputs = {}
    for key, prediction in predictions.items():
        # An input and an output of the graph cannot have one name.
        name = graph.name(key if key not in received.inputs else f"{key}_out")
        outputs[key] = prediction.info(name)
        graph.output(name, prediction.tensor, outputs[key])
    described = _with_lengths(received.inputs, transform)
    manifest = Manifest(
        signatures=with_forwarded(lambda joined: signatures(head, joined, described), outputs, layers, list(forwarded)),
        receiver=receiver.kind,
        producer=PRODUCER,
        version=__version__,
        global_step=global_step,
        hashing=_hashing(transform),
        csv=received.csv,
    )
    return graph, manifest


def _inputs(
    graph: GraphBuilder,
    transform: FeatureTransform | None,
    received: Received,
    receiver: ServingInput,
    structure: Structure | None,
) -> ModuleInputs:
    """What the module is called with."""
    if transform is None:
        return raw_inputs(received, receiver, structure)
    if isinstance(transform, RowCount):
        # Any input of the export tells how many rows there are.
        for raw in received.raw.values():
            return named_inputs({ROWS: Inlined(tensor=raw.tensor, row_shape=(0,), dtype="float32")})
        raise ExportError("a baseline needs a serving input with at least one column, to know how many rows there are.")
    # Here, not above: an export of a plain module needs no feature columns.
    from torch_estimator.export.columns import lower_features

    check_raw(received.raw, transform.raw_features)
    return named_inputs(lower_features(graph, transform, received.raw))


def _with_lengths(inputs: Mapping[str, TensorInfo], transform: FeatureTransform | None) -> dict[str, TensorInfo]:
    """The inputs, those of lists of weights knowing whose weights they are."""
    result = dict(inputs)
    for bag in transform.bags if transform is not None else ():
        column = bag.column
        if column.multivalent and bag.weights is not None:
            values, weights = (feature.key for feature in column.raw_features)
            if values in result and weights in result:
                result[weights] = dataclasses.replace(result[weights], lengths_of=values)
    return result


def _hashing(transform: FeatureTransform | None) -> Hashing:
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
    if transform.linear is not None:
        yield from (placed.column for placed in transform.linear.categorical)
    if transform.dnn is not None:
        yield from (placed.column for placed in transform.dnn.indicators)
        yield from (placed.column for table in transform.dnn.tables for placed in table.placed)
    for bag in transform.bags:
        yield getattr(bag.column, "categorical_column", bag.column)


@contextlib.contextmanager
def _directory(base: str, clock: Callable[[], float]) -> Iterator[tuple[str, str]]:
    """A directory to write into, and its final name, which it has after the block."""
    files.makedirs(base)
    if not files.is_local(base):
        final = _free_name(base, clock, lambda final: not files.exists(final))
        with tempfile.TemporaryDirectory(prefix="torch-estimator-export-") as local:
            yield local, final
            _upload(local, final)
        return
    remove_leftovers(base, clock())
    final = _free_name(base, clock, _claimed)
    temporary = _temporary(final)
    try:
        with owned(temporary):
            yield temporary, final
        files.commit_dir(temporary, final)
    except BaseException:
        files.remove_tree(temporary)
        raise


def _free_name(base: str, clock: Callable[[], float], is_free: Callable[[str], bool]) -> str:
    """The present second, or one of the next ones: exporters may share a base, or be quick. The last is the newest."""
    first = max([int(clock()), *(int(name) + 1 for name in export_names(base)[-1:])])
    for second in range(first, first + ATTEMPTS):
        final = files.join(base, str(second))
        if is_free(final):
            return final
    raise ExportError(
        f"no free name for an export in {base}: {first} to {first + ATTEMPTS - 1} are taken; "
        f"remove what is left of unfinished exports ({TEMPORARY}…) or try again."
    )


def _claimed(final: str) -> bool:
    """Makes the temporary directory of a name that is free; whoever makes it has the name."""
    if files.exists(final):
        return False
    try:
        os.mkdir(_temporary(final))
    except FileExistsError:
        return False
    if files.exists(final):
        os.rmdir(_temporary(final))
        return False
    return True


def _temporary(final: str) -> str:
    return files.join(files.parent(final), TEMPORARY + files.basename(final))


def _upload(local: str, final: str) -> None:
    """Copies a directory to an object store, the signatures last: they make the export complete."""
    names = [
        os.path.relpath(os.path.join(folder, name), local) for folder, _, found in os.walk(local) for name in found
    ]
    try:
        for name in sorted(names, key=lambda name: (name == SIGNATURES_FILE, name)):
            target = files.join(final, *name.split(os.sep))
            files.makedirs(files.parent(target))
            with open(os.path.join(local, name), "rb") as file:
                files.write_file(target, iter(lambda file=file: file.read(2**24), b""))  # type: ignore[misc]
    except BaseException:
        files.remove_tree(final)
        raise


def _write_model(graph: GraphBuilder, directory: str, version: str) -> None:
    import onnx

    path = os.path.join(directory, MODEL_FILE)
    model = graph.model(producer=PRODUCER, version=version)
    external = graph.size > LARGEST_MODEL
    if external:
        onnx.save_model(
            model,
            path,
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=f"{MODEL_FILE}.data",
            size_threshold=1024,
        )
    else:
        onnx.save_model(model, path)
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"the graph is not valid ONNX: {files.reason(error)}.") from error


def _load_once(directory: str, graph: GraphBuilder) -> None:
    from torch_estimator.export.exported_model import ExportedModel

    try:
        ExportedModel.load(directory)
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
            files.write_file(target, [files.read_bytes(source)])
        except FileNotFoundError as error:
            raise ExportError(f"assets_extra names {files.as_url(source)}, which does not exist.") from error
