"""Exported models: load and run them with onnxruntime, without torch or onnx."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator import files
from torch_estimator.errors import ExportError, InvalidValueError
from torch_estimator.export.feeds import (
    EqualRows,
    ListFeed,
    NotANumberError,
    as_lists,
    as_tensor,
    equal_rows,
    filled,
    matched,
    read_examples,
    read_rows,
)
from torch_estimator.export.nan_predictions import check_predictions
from torch_estimator.export.signatures import (
    DATA_FILE,
    MODEL_FILE,
    SIGNATURES_FILE,
    Manifest,
    Signature,
)
from torch_estimator.export.unknown_names import UnknownNames
from torch_estimator.export.warmup import ASSETS_EXTRA, WARMUP_FILE
from torch_estimator.json_text import shortened
from torch_estimator.number_text import NOT_A_NUMBER

Array = npt.NDArray[Any]

_MOST_BYTES_OF_SIGNATURES = 2**28
_NOT_A_NUMBER = re.compile(rf"Name:'(Input .* {NOT_A_NUMBER})")
"""Pattern of onnxruntime's message where te.strings.to_number fails: it contains the name of the node."""


class ExportedModel:
    """Exported model that `load` has read from a directory, ready to predict with onnxruntime.

    An export contains no code. Only its graph is executed, and only with onnxruntime's own operators.

    Attributes:
        directory: Directory of the export.
        manifest: Content of ``signatures.json``.
        unknown: What is done with names that the model does not read.

    >>> x = fc.numeric_column("x")
    >>> estimator = te.LinearRegressor([x], "memory://ExportedModel")
    >>> estimator = estimator.train(lambda: ({"x": [1.0, 2.0]}, [2.0, 4.0]), steps=1)
    >>> path = estimator.export_saved_model("memory://ExportedModel/export", te.serving_input.raw_features([x]))
    >>> model = te.ExportedModel.load(path)
    >>> sorted(model.signatures)
    ['predict', 'serving_default']
    >>> model.signature("predict").inputs["x"].dtype
    'DT_FLOAT'
    >>> model.check({"x": [1.0, 2.0, 3.0]})
    >>> model.predict({"x": [1.0, 2.0, 3.0]})["predictions"].shape
    (3, 1)
    """

    def __init__(self, directory: str, manifest: Manifest, session: Any, *, ignore_unknown: bool = False) -> None:
        self.directory = directory
        self.manifest = manifest
        self.unknown = UnknownNames(ignore=ignore_unknown or bool(manifest.ignore_unknown))
        self._session = session

    @classmethod
    def load(cls, path: files.PathLike, *, threads: int = 1, ignore_unknown: bool = False) -> ExportedModel:
        """Load an exported model from a directory.

        Args:
            path: Directory of the export, or a directory of numbered exports, of which the newest is loaded.
            threads: Number of threads that one call of `predict` uses.
            ignore_unknown: Whether names that the model does not read are left out of the inputs, also if the export
                was not made with ``ignore_unknown=True``.

        Raises:
            ExportError: There is no export at `path`, or it is damaged.
        """
        directory, _ = find_export(path)
        manifest = read_manifest(directory)
        return cls(directory, manifest, _session(directory, threads), ignore_unknown=ignore_unknown)

    @property
    def signatures(self) -> dict[str, Signature]:
        """The signatures (ways to call the model), by name."""
        return self.manifest.signatures

    def signature(self, name: str) -> Signature:
        """Return the signature called `name`.

        Args:
            name: Name of the signature.

        Raises:
            InvalidValueError: The export has no such signature.
        """
        if name not in self.signatures:
            raise InvalidValueError(
                f"the signature {name!r} is not in {self.directory}, which has {', '.join(sorted(self.signatures))}."
            )
        return self.signatures[name]

    def predict(self, inputs: Mapping[str, Any], signature: str = "predict") -> dict[str, Array]:
        """Return the outputs of a signature for a batch of inputs.

        Args:
            inputs: Lists or arrays by name. A single value per row may be given as ``[batch]`` or ``[batch, 1]``.
                Strings may be `str` or UTF-8 `bytes`. Rows that are lists may differ in length, or be padded to
                ``[batch, n]`` with missing values (``''`` or -1). Sequences that a module takes unpadded may differ in
                length, too; each row is answered as if it came alone. Inputs with a default may be omitted, and None
                and NaN in them mean the default; None is a missing string also without one.
            signature: Name of the signature.

        Returns:
            The outputs by name. Strings are object arrays of `str`.

        Raises:
            InvalidValueError: An input is missing, unknown, of another type or shape, or has text that is not a number;
                or what a premade head predicts for a row is NaN.
            ExportError: onnxruntime failed, or an output has another number of rows than the inputs.
        """
        called = self.signature(signature)
        feeds, rows, groups = self._feeds(inputs, called)
        if rows == 0:
            # Answer an empty batch without running the graph, because some operators of onnxruntime fail on it.
            shapes = {name: [0, *(max(size, 0) for size in info.shape[1:])] for name, info in called.outputs.items()}
            return {name: np.empty(shapes[name], info.type.numpy) for name, info in called.outputs.items()}
        tensors = list(dict.fromkeys(info.tensor for info in called.outputs.values()))
        try:
            results = dict(zip(tensors, self._run(tensors, feeds, groups), strict=True))
        except Exception as error:
            problem = _not_a_number(error)
            if problem is not None:
                raise self._naming_row(problem, called, feeds, rows) from error
            raise ExportError(f"{self.directory} could not be run: {files.reason(error)}.") from error
        outputs = {name: results[info.tensor] for name, info in called.outputs.items()}
        check_rows(outputs, rows, self.directory)
        check_predictions(results, feeds, called, self.manifest)
        return outputs

    def _naming_row(self, problem: str, signature: Signature, feeds: Mapping[str, Array], rows: int) -> NotANumberError:
        """Return the error for text that is not a number; find the first row that has one by running halves.

        `problem` is what `_not_a_number` returned for the whole batch.
        """
        tensors = list(dict.fromkeys(info.tensor for info in signature.outputs.values()))
        start, stop = 0, rows
        while stop - start > 1:
            middle = (start + stop) // 2
            try:
                self._session.run(tensors, {tensor: array[start:middle] for tensor, array in feeds.items()})
            except Exception as error:
                refused = _not_a_number(error)
            else:
                refused = None
            start, stop = (middle, stop) if refused is None else (start, middle)
            problem = refused or problem
        named = problem.removeprefix("Input ").removesuffix(f" {NOT_A_NUMBER}").split(" or ")
        fed = [feeds.get(signature.inputs[name].tensor if name in signature.inputs else name) for name in named]
        values = [np.ravel(array[start]).tolist() for array in fed if array is not None]
        return NotANumberError(
            problem, [shortened(one[0] if len(one) == 1 else one) for one in values], row=start, rows=rows
        )

    def check(self, inputs: Mapping[str, Any], signature: str = "predict") -> None:
        """Check the inputs for `predict` without running the graph.

        Args:
            inputs: As for `predict`.
            signature: Name of the signature.

        Raises:
            InvalidValueError: As for `predict`.
        """
        self._feeds(inputs, self.signature(signature))

    def _run(self, tensors: list[str], feeds: dict[str, Array], groups: Sequence[EqualRows]) -> list[Array]:
        """Return the outputs of the graph. Rows whose sequences differ in length are run one group after another."""
        if not groups:
            outputs: list[Array] = self._session.run(tensors, feeds)
            return outputs
        parts = [self._session.run(tensors, group.of(feeds)) for group in groups]
        order = np.argsort(np.concatenate([group.rows for group in groups]))
        return [np.concatenate(arrays)[order] for arrays in zip(*parts, strict=True)]

    def _feeds(
        self, inputs: Mapping[str, Any], signature: Signature
    ) -> tuple[dict[str, Array], int, Sequence[EqualRows]]:
        """Return the arrays to feed to the graph's inputs, the number of rows, and the groups of rows to run apart.

        Without groups, all rows can be run together.
        """
        self.unknown.see(inputs, signature)
        examples = self.manifest.examples
        for name, info in signature.inputs.items():
            if examples is not None and info.tensor == examples.tensor:
                if name not in inputs:
                    raise InvalidValueError(f"Input {name} was missing; it takes serialized tf.Examples.")
                arrays, rows, lengths = read_examples(name, inputs[name], examples)
                return arrays, rows, equal_rows(lengths, signature)
        feeds: dict[str, Array] = {}
        lists: dict[str, ListFeed] = {}
        sizes: dict[str, int] = {}
        for name, info in signature.inputs.items():
            if name in inputs and info.varies:
                lists[name] = as_lists(name, inputs[name], info)
                sizes[name] = len(lists[name].lengths)
            elif name in inputs:
                feeds[info.tensor] = as_tensor(name, inputs[name], info)
                sizes[name] = len(feeds[info.tensor])
            elif info.default is None:
                raise InvalidValueError(f"Input {name} was missing; the inputs are {', '.join(signature.inputs)}.")
        if len(set(sizes.values())) > 1:
            raise InvalidValueError(f"the inputs must have the same number of rows, but have {sizes}.")
        if not sizes:
            raise InvalidValueError("no input was given, so that the number of rows is unknown; give at least one.")
        rows = next(iter(sizes.values()))
        for name, tensor in matched(lists, signature.inputs).items():
            feeds[signature.inputs[name].tensor] = tensor
        for name, info in signature.inputs.items():
            if name not in sizes:
                feeds[info.tensor] = filled(info, rows)
        csv = self.manifest.csv
        if csv is not None and csv.tensor in feeds:
            fields = read_rows(feeds[csv.tensor].ravel().tolist(), csv)
            if fields is not None:
                feeds[csv.fields_tensor] = fields
        exact = {name: feed.lengths for name, feed in lists.items() if signature.inputs[name].exact_lengths}
        return feeds, rows, equal_rows(exact, signature)


def _not_a_number(error: Exception) -> str | None:
    """Return what onnxruntime's message says about text that is not a number; None if it is about something else."""
    found = _NOT_A_NUMBER.search(str(error))
    return None if found is None else found[1]


def find_export(path: files.PathLike) -> tuple[str, int]:
    """Return the directory of the newest export at `path`, and the number of exports among which it was chosen.

    `path` is the directory of an export (the number is then 0), or a directory of numbered exports.
    """
    directory = files.as_url(path)
    if files.exists(files.join(directory, SIGNATURES_FILE)):
        return directory, 0
    if files.exists(directory) and not files.is_dir(directory):
        raise ExportError(f"there is no export in {directory}: it is a file; name the directory of the export.")
    numbered = _numbered(directory)
    if not numbered:
        problem = (
            f"has neither {SIGNATURES_FILE} nor a numbered directory with one"
            if files.exists(directory)
            else "does not exist"
        )
        # Exporters write into <model_dir>/export/<name>.
        parent = directory if files.basename(directory) == "export" else files.join(directory, "export")
        below = [files.join(parent, name) for name in files.listdir(parent) if _numbered(files.join(parent, name))]
        hint = f"; name {' or '.join(below)}" if below else saved_model_hint(directory)
        raise ExportError(f"there is no export in {directory}: it {problem}{hint}.")
    return files.join(directory, max(numbered, key=int)), len(numbered)


def check_rows(outputs: Mapping[str, Any], rows: int, what: str) -> None:
    """Check that outputs have a row for each row of the input; errors name the export `what`.

    A server joins requests of several clients in one batch, and divides the answers by rows.
    """
    for name, array in outputs.items():
        if array.shape[:1] != (rows,):
            raise ExportError(
                f"{what} does not answer row by row: for {rows} rows, its output {name!r} has the shape "
                f"{list(array.shape)}; the first size must be the number of rows."
            )


def saved_model_hint(directory: str) -> str:
    """Return the end of a sentence about an export of TensorFlow in a directory, or an empty string without one."""
    for name in ("", *filter(str.isdecimal, files.listdir(directory))):
        path = files.join(directory, name) if name else directory
        if files.exists(files.join(path, "saved_model.pb")):
            return (
                f"; {path} is a SavedModel of TensorFlow, which cannot run here: `estimator import-checkpoint {path} "
                "--into DIR` takes its weights over into the model_dir of the same model here, which exports anew"
            )
    return ""


def _numbered(directory: str) -> list[str]:
    """Return the names of the numbered exports in a directory."""
    return [
        name
        for name in files.listdir(directory)
        if name.isascii() and name.isdigit() and files.exists(files.join(directory, name, SIGNATURES_FILE))
    ]


def read_manifest(directory: str) -> Manifest:
    """Return the content of ``signatures.json`` in an export's directory."""
    path = files.join(directory, SIGNATURES_FILE)
    _check_files(directory)
    try:
        text = files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path} cannot be read: {files.reason(error)}.") from error
    manifest = Manifest.from_json(text, where=path)
    _check_data(directory, manifest)
    return manifest


def _check_files(directory: str) -> None:
    """Check that the files of an export are files, and not pipes or devices that never end, and of a sensible size."""
    for name in (SIGNATURES_FILE, MODEL_FILE, f"{ASSETS_EXTRA}/{WARMUP_FILE}"):
        path = files.join(directory, name)
        if files.is_local(path) and os.path.exists(path) and not os.path.isfile(path):
            raise ExportError(f"{path} must be a file, but is a directory or a special file.")
    size = files.sizes(directory).get(SIGNATURES_FILE, 0)
    if size > _MOST_BYTES_OF_SIGNATURES:
        raise ExportError(f"{directory}/{SIGNATURES_FILE} has {size:,} bytes, which no description of signatures has.")


def _check_data(directory: str, manifest: Manifest) -> None:
    """Check that the file with the large initializers, if there is one, is a file of the length that was written."""
    path = files.join(directory, DATA_FILE)
    if files.is_local(path) and (os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path))):
        raise ExportError(f"{path} must be a file in the directory of the export, but is a link or a special file.")
    expected = manifest.data_bytes
    found = None if expected is None else files.sizes(directory).get(DATA_FILE)
    if found != expected:
        has = "is missing" if found is None else f"has {found:,} bytes"
        raise ExportError(f"{path} {has}, but the export was written with {expected:,} bytes of weights; copy it anew.")


def import_onnxruntime() -> Any:
    """Import onnxruntime with its telemetry turned off, unless the user has set ``ORT_DISABLE_TELEMETRY``."""
    # Set this variable before the import, because onnxruntime reads it at the import.
    # By default, onnxruntime 1.31 and later stores a device id and events in ~/.cache/Microsoft, and uploads them.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def open_session(model: str | bytes, threads: int = 1) -> Any:
    """Return onnxruntime's session for a model, given by path or content; one call uses `threads` threads."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _session(directory: str, threads: int) -> Any:
    path = files.join(directory, MODEL_FILE)
    if not files.exists(path):
        raise ExportError(f"{directory} has no {MODEL_FILE}.")
    with tempfile.TemporaryDirectory(prefix="torch-estimator-load-") as folder:
        try:
            return open_session(path if files.is_local(path) else _downloaded(directory, folder), threads)
        except Exception as error:
            raise ExportError(f"{path} cannot be loaded: {files.reason(error)}.") from error


def _downloaded(directory: str, folder: str) -> str:
    """Copy the model's files from a remote directory into a local folder; return the path of the model."""
    for name in files.listdir(directory):
        if name.startswith(MODEL_FILE):
            with open(os.path.join(folder, name), "wb") as file:
                file.writelines(files.read_chunks(files.join(directory, name)))
    return os.path.join(folder, MODEL_FILE)
