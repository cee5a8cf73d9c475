"""The versions of all models: found, loaded, warmed, switched to, and let go.

A thread looks for changes several times a second. A new version is loaded and warmed before it takes requests, and
requests keep the version that they began with, so none fails when versions change. A version that cannot be loaded is
logged and left out, while the versions before it stay.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch_estimator import files
from torch_estimator.errors import ExportError, InvalidValueError, UserError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.feeds import PADDING
from torch_estimator.export.signatures import SIGNATURES_FILE, TensorInfo
from torch_estimator.serving.batcher import Batcher, BatchLimits, Columns, Outputs
from torch_estimator.serving.errors import RequestError
from torch_estimator.serving.options import ServedModel, VersionPolicy

logger = logging.getLogger("torch_estimator")

# A batch that takes longer than this is run in a thread, so that the event loop goes on reading requests.
_FAST_SECS = 0.004


@dataclass(frozen=True, slots=True)
class Found:
    """What a source of versions holds.

    Attributes:
        versions: Directory of each version.
        default: The version that is set as the default, or None for the newest one.
        labels: Versions by label.
    """

    versions: Mapping[int, str]
    default: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


class Source(Protocol):
    """Place where the versions of a model are found."""

    def find(self) -> Found:
        """Return the versions that are there now."""


class DirectorySource:
    """Directory of numbered exports, as exporters write it, or a single export.

    Args:
        path: The directory.
    """

    def __init__(self, path: str) -> None:
        self._path = files.as_url(path)
        # An export is complete once it has its signatures, and then never changes.
        self._complete: set[int] = set()

    def find(self) -> Found:
        if files.exists(files.join(self._path, SIGNATURES_FILE)):
            name = files.basename(self._path)
            return Found({int(name) if name.isascii() and name.isdigit() else 1: self._path})
        versions = {}
        for name in (entry.strip("/") for entry in files.listdir(self._path)):
            if not (name.isascii() and name.isdigit()):
                continue
            directory = files.join(self._path, name)
            if int(name) in self._complete or files.exists(files.join(directory, SIGNATURES_FILE)):
                versions[int(name)] = directory
        self._complete = set(versions)
        return Found(versions)


class Version:
    """A loaded version of a model.

    Args:
        model: Name of the model.
        number: Number of the version.
        directory: Directory of the export.
        threads: Threads of onnxruntime.
        limits: Limits of the batches.
        executor: Runs what would hold up the event loop.
        observe: Called with the number of instances of each batch.

    Attributes:
        export: The loaded export.
        batcher: Runs requests.

    Raises:
        ExportError: The export cannot be loaded or run.
    """

    def __init__(
        self,
        model: str,
        number: int,
        directory: str,
        *,
        threads: int,
        limits: BatchLimits,
        executor: ThreadPoolExecutor,
        observe: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.model = model
        self.number = number
        self.directory = directory
        self.export = ExportedModel.load(directory, threads=threads)
        is_fast = self._warm_up(limits.max_batch)
        self.batcher = Batcher(self._run, limits, executor, is_fast=is_fast, observe=observe)

    def _run(self, columns: Columns, signature: str) -> Outputs:
        return self.export.predict(columns, signature)

    def _warm_up(self, max_batch: int) -> bool:
        """Run each signature once; return whether the largest batch is fast enough for the event loop.

        Raises:
            ExportError: The graph cannot be run.
        """
        slowest = 0.0
        for name in self.export.signatures:
            for rows in (1, max_batch, max_batch):
                columns = self.example(name, rows)
                began = time.perf_counter()
                try:
                    self.export.predict(columns, name)
                except InvalidValueError:
                    # The example may not be valid, for instance as a row of CSV. Then there is nothing to warm.
                    break
                took = time.perf_counter() - began
            else:
                slowest = max(slowest, took)
        return slowest <= _FAST_SECS

    def example(self, signature: str, rows: int) -> dict[str, Any]:
        """Return inputs of the right types for a signature, to run it with."""
        inputs = self.export.signature(signature).inputs
        return {name: [_example_value(info)] * rows for name, info in inputs.items()}


def _example_value(info: TensorInfo) -> Any:
    value = info.default if info.default is not None else PADDING.get(info.dtype, False)
    if info.holds_lists:
        return value if isinstance(value, list) else [value]
    for size in reversed(info.shape[1:]):
        value = value if isinstance(value, list) else [value] * max(size, 1)
    return value


@dataclass(frozen=True, slots=True)
class ModelState:
    """The versions of one model at one moment; replaced as a whole when they change.

    Attributes:
        versions: The loaded versions.
        default: Number of the version that answers requests without a version; None if none is loaded.
        labels: Versions by label.
        states: State of each known version, in TensorFlow Serving's words: ``LOADING``, ``AVAILABLE``, ``UNLOADING`` or
            ``END``, with an error message if loading failed.
    """

    versions: Mapping[int, Version] = field(default_factory=dict)
    default: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)


class _Model:
    """A model: where its versions are found, and what is loaded."""

    def __init__(self, source: Source, policy: VersionPolicy) -> None:
        self.source = source
        self.policy = policy
        self.state = ModelState()
        self.problem = ""


class Catalog:
    """All models that are served.

    Args:
        limits: Limits of the batches.
        threads: Threads of one onnxruntime session.
        poll_secs: Seconds between two looks for changes.
        observe: Called with the model, the version and the number of instances of each batch.
    """

    def __init__(
        self,
        limits: BatchLimits,
        *,
        threads: int,
        poll_secs: float,
        observe: Callable[[str, int, int], None] = lambda model, version, rows: None,
    ) -> None:
        self._limits = limits
        self._threads = threads
        self._poll_secs = poll_secs
        self._observe = observe
        self._executor = ThreadPoolExecutor(max(2, threads), thread_name_prefix="predict")
        self._models: dict[str, _Model] = {}
        # Names of models in TensorFlow Serving's URLs do not depend on case.
        self._by_lower_name: dict[str, _Model] = {}
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="versions", daemon=True)

    def add(self, name: str, source: Source, policy: VersionPolicy) -> None:
        """Serve another model. Its versions are loaded by the next `refresh`."""
        model = _Model(source, policy)
        self._models[name] = model
        self._by_lower_name[name.lower()] = model

    def start(self) -> None:
        """Load what is there, then look for changes in the background."""
        self.refresh()
        self._watcher.start()

    def close(self) -> None:
        """Stop looking for changes."""
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self._executor.shutdown(wait=False)

    def names(self) -> list[str]:
        """Return the names of the models, sorted."""
        return sorted(self._models)

    def state(self, name: str) -> ModelState:
        """Return the versions of a model.

        Raises:
            RequestError: There is no such model.
        """
        model = self._models.get(name) or self._by_lower_name.get(name.lower())
        if model is None:
            raise RequestError(404, f"Servable not found for request: Latest({name})")
        return model.state

    def version(self, name: str, number: int | None = None, label: str | None = None) -> Version:
        """Return the version that a request is for.

        Args:
            name: Name of the model.
            number: The version, if the request names one.
            label: The label, if the request names one.

        Raises:
            RequestError: There is no such model, version or label.
        """
        state = self.state(name)
        if label is not None:
            if label not in state.labels:
                raise RequestError(400, f"Unrecognized servable version label: {label}")
            number = state.labels[label]
        version = state.versions.get(state.default if number is None else number)  # type: ignore[arg-type]
        if version is None:
            what = f"Latest({name})" if number is None else f"Specific({name}, {number})"
            raise RequestError(404, f"Servable not found for request: {what}")
        return version

    def _watch(self) -> None:
        while not self._ended.wait(self._poll_secs):
            self.refresh()

    def refresh(self) -> None:
        """Look for changes now; load and let go of versions."""
        for name, model in self._models.items():
            try:
                self._refresh_model(name, model)
                model.problem = ""
            except Exception as error:
                # The store may be unreachable for a while. Serve what is loaded, and log each problem once.
                if str(error) != model.problem:
                    model.problem = str(error)
                    logger.warning("The versions of model %s cannot be read: %s", name, files.reason(error))

    def _refresh_model(self, name: str, model: _Model) -> None:
        found = model.source.find()
        wanted = model.policy.chosen(list(found.versions))
        if found.default is not None and found.default in found.versions:
            wanted = sorted({*wanted, found.default})
        for number in wanted:
            state = model.state.states.get(number, ("START", ""))
            # A version that could not be loaded is not tried again: exports never change.
            if number in model.state.versions or state[1]:
                continue
            self._load(name, model, number, found.versions[number])
        loaded = {number: version for number, version in model.state.versions.items() if number in wanted}
        if not loaded and model.state.versions and wanted:
            # No wanted version can be loaded: keep those that are there.
            loaded = dict(model.state.versions)
        default = found.default if found.default in loaded else max(loaded, default=None)
        gone = model.state.versions.keys() - loaded.keys()
        if default != model.state.default and default is not None:
            logger.info("Model %s answers with version %d by default.", name, default)
        for number in gone:
            logger.info("Model %s lets go of version %d.", name, number)
        states = {number: one for number, one in model.state.states.items() if number in found.versions}
        states.update(dict.fromkeys(gone, ("END", "")))
        states.update(dict.fromkeys(loaded, ("AVAILABLE", "")))
        labels = {label: number for label, number in found.labels.items() if number in found.versions}
        model.state = ModelState(loaded, default, labels, states)

    def _load(self, name: str, model: _Model, number: int, directory: str) -> None:
        def state(word: str, problem: str = "") -> Mapping[int, tuple[str, str]]:
            return {**model.state.states, number: (word, problem)}

        model.state = replace(model.state, states=state("LOADING"))
        began = time.monotonic()
        try:
            version = Version(
                name,
                number,
                directory,
                threads=self._threads,
                limits=self._limits,
                executor=self._executor,
                observe=lambda rows: self._observe(name, number, rows),
            )
        except UserError as error:
            logger.error("Version %d of model %s is left out: %s", number, name, error)
            model.state = replace(model.state, states=state("END", str(error)))
            return
        logger.info("Model %s has loaded version %d in %.2f s.", name, number, time.monotonic() - began)
        versions = {**model.state.versions, number: version}
        model.state = replace(model.state, versions=versions, states=state("AVAILABLE"))


def sources(models: tuple[ServedModel, ...], registry: str | None) -> dict[str, tuple[Source, VersionPolicy]]:
    """Return where each model's versions are found.

    Raises:
        ExportError: A directory does not exist.
    """
    found: dict[str, tuple[Source, VersionPolicy]] = {}
    for model in models:
        if model.path is not None:
            if not files.exists(model.path):
                raise ExportError(f"the directory of model {model.name}, {model.path}, does not exist.")
            found[model.name] = (DirectorySource(model.path), model.policy)
    return found
