"""Find, load, warm up, activate and unload versions of models.

One thread looks for changes several times a second, and another one loads. A new version is loaded and warmed before it
takes requests, and requests keep the version that they began with, so none fails when versions change. A version that
cannot be loaded is logged, while loaded versions keep serving.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from torch_estimator import files
from torch_estimator.errors import ExportError, InvalidValueError, RegistryError, UserError
from torch_estimator.export.exported_model import ExportedModel, saved_model_hint
from torch_estimator.export.signatures import SIGNATURES_FILE, TensorInfo
from torch_estimator.export.unknown_names import UnknownNames
from torch_estimator.export.warmup import batches_of, read_warmup
from torch_estimator.registry import Registry
from torch_estimator.serving.batcher import Batcher, BatchLimits, Columns, Executed
from torch_estimator.serving.loader import Loader, in_thread
from torch_estimator.serving.options import ServedModel, VersionPolicy
from torch_estimator.web.errors import RequestError

logger = logging.getLogger("torch_estimator")

# A batch that takes longer than this is run in a thread, so that the event loop goes on reading requests.
_FAST_SECS = 0.004

# Seconds until the first new attempt to load a version. It may have failed because its files are still being copied.
_FIRST_RETRY_SECS = 1.0

# A look at a store that takes longer holds back neither other models nor the end.
_MOST_SECS_OF_A_LOOK = 5.0
_MOST_SECS_OF_A_FURTHER_LOOK = 0.2

# Requests have been answered or given up by then.
_MOST_SECS_OF_A_BATCH = 0.2

# Seconds between two looks for new models in a registry.
_DISCOVER_SECS = 2.0

# Seconds after which the versions of a model in a registry are listed again even if the model has not changed. On an
# object store a version becomes visible a moment after the change that created it.
_LIST_SECS = 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a source holds, with the directory of each version.

    A default of None stands for the newest version.
    """

    versions: Mapping[int, str]
    default: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


class Source(Protocol):
    """Place, such as the path or URL `where`, in which the versions of a model are found."""

    where: str

    def find(self) -> Found:
        """Return the versions that are there now.

        Raise a UserError if the place is unreadable, or is empty although it had versions, as a lost mount is.
        """


class DirectorySource:
    """Directory of numbered exports, as exporters write it, or a single export."""

    def __init__(self, path: str) -> None:
        self.where = files.as_url(path)
        # An export is complete once it has its signatures, and then never changes.
        self._complete: set[int] = set()

    def find(self) -> Found:
        versions = self._list()
        if self._complete and not versions:
            raise ExportError(f"{self.where} had versions and has none now; those that are loaded stay.")
        self._complete = set(versions)
        return Found(versions)

    def _list(self) -> dict[int, str]:
        if files.exists(files.join(self.where, SIGNATURES_FILE)):
            name = files.basename(self.where)
            return {int(name) if name.isascii() and name.isdigit() else 1: self.where}
        versions = {}
        for name in (entry.strip("/") for entry in files.listdir(self.where)):
            if not (name.isascii() and name.isdigit()):
                continue
            directory = files.join(self.where, name)
            if int(name) in self._complete or files.exists(files.join(directory, SIGNATURES_FILE)):
                versions[int(name)] = directory
        return versions


class RegistrySource:
    """Model of a registry."""

    def __init__(self, registry: Registry, model: str) -> None:
        self.where = files.join(registry.url, model)
        self._registry = registry
        self._model = model
        self._changes = -1
        self._versions: Mapping[int, str] = {}
        self._listed = 0.0

    def find(self) -> Found:
        info = self._registry.read_model(self._model)
        now = time.monotonic()
        # Reading the state of a model is one small file, listing its versions may be a thousand requests.
        if info.changes != self._changes or info.default not in self._versions or now - self._listed > _LIST_SECS:
            self._versions = {
                number: files.join(self.where, str(number)) for number in self._registry.versions(self._model)
            }
            self._changes, self._listed = info.changes, now
        return Found(self._versions, info.default, info.labels)


class Version:
    """A loaded version of a model; creating it raises an ExportError if the export cannot be loaded or run."""

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
        executed: Executed | None = None,
        ignore_unknown: bool = False,
        observe_unknown: Callable[[int], None] = lambda names: None,
    ) -> None:
        self.model = model
        self.number = number
        self.directory = directory
        self.export = ExportedModel.load(directory, threads=threads, ignore_unknown=ignore_unknown)
        self.export.unknown = UnknownNames(
            ignore=self.export.unknown.ignore,
            reader=f"Version {number} of model {model}",
            observe=observe_unknown,
        )
        self._recorded = self._read_recorded()
        fast_rows = self._warm_up(limits.max_batch)
        if threads > 1:
            # Another core can run a large request while the event loop reads the next one.
            fast_rows = min(fast_rows, limits.max_batch)
        # The batcher gets no reference to this object. A cycle would keep the memory of an old version for a while.
        self.batcher = Batcher(
            self.export.predict, limits, executor, fast_rows=fast_rows, observe=observe, executed=executed
        )

    def check(self, columns: Columns, signature: str) -> None:
        """Check inputs as a prediction does, without running the graph."""
        self.export.check(columns, signature)

    def _read_recorded(self) -> dict[str, dict[str, list[Any]]]:
        """Return the recorded instances by signature, as columns."""
        try:
            batches = batches_of(read_warmup(self.directory), self.export.signatures)
        except InvalidValueError as error:
            raise ExportError(f"the warm-up instances of {self.directory} do not fit it: {error}") from error
        return {name: columns for name, (columns, _) in batches.items()}

    def _warm_up(self, max_batch: int) -> int:
        """Run each signature a few times; return how many instances the event loop may run together."""
        slowest = 0.0
        for name in self.export.signatures:
            fastest = float("inf")
            # The first calls are slow, and any call is if the machine is busy. So take the fastest of several.
            for rows in (1, *[max_batch] * 4):
                columns = self.example(name, rows)
                began = time.perf_counter()
                try:
                    self.export.predict(columns, name)
                except InvalidValueError:
                    # The example may not be valid, for instance as a row of CSV. Then there is nothing to warm.
                    break
                if rows == max_batch:
                    fastest = min(fastest, time.perf_counter() - began)
            else:
                slowest = max(slowest, fastest)
        return int(max_batch * _FAST_SECS / slowest) if slowest else max_batch

    def example(self, signature: str, rows: int) -> dict[str, Any]:
        """Return inputs of the right types for a signature, to run it with: recorded ones, if the export has them."""
        if recorded := self._recorded.get(signature):
            return {name: [values[row % len(values)] for row in range(rows)] for name, values in recorded.items()}
        inputs = self.export.signature(signature).inputs
        return {name: [_example_value(info)] * rows for name, info in inputs.items()}


def _example_value(info: TensorInfo) -> Any:
    value = info.default if info.default is not None else info.type.padding
    if info.holds_lists:
        return value if isinstance(value, list) else [value]
    for size in reversed(info.shape[1:]):
        value = value if isinstance(value, list) else [value] * max(size, 1)
    return value


@dataclass(frozen=True, slots=True)
class ModelState:
    """The versions of one model at one moment; replaced as a whole when they change.

    `default` is the number of the version that answers requests without a version, or None if none is loaded. `states`
    has the state of each known version, in TensorFlow Serving's words (``LOADING``, ``AVAILABLE``, ``UNLOADING`` or
    ``END``), with an error message if loading failed. `slow` are the versions that have been loading for long.
    """

    versions: Mapping[int, Version] = field(default_factory=dict)
    default: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    slow: frozenset[int] = frozenset()

    def number_of(self, label: str) -> int:
        """Return the version that a label names, or raise a RequestError."""
        if label not in self.labels:
            raise RequestError(400, f"Unrecognized servable version label: {label}")
        return self.labels[label]


class _Model:
    """A model: where its versions are found, what is loaded, and what is being loaded.

    A server is not ready without a model that `is_expected`. The server that follows a registry expects a model there
    once it has a version, and a model that `is_added` while it serves others once a version of it is loaded: a large or
    a broken one must not take the server from its clients.
    """

    def __init__(
        self,
        source: Source,
        policy: VersionPolicy,
        labels: Mapping[str, int],
        *,
        is_expected: bool = False,
        is_added: bool = False,
    ) -> None:
        self.source = source
        self.policy = policy
        self.labels = labels
        self.is_expected = is_expected
        self.is_added = is_added
        self.lacks_versions = False
        self.state = ModelState()
        self.problem = ""
        self.loads: dict[int, Future[Version]] = {}
        self.finding: Future[Found] | None = None
        self.failures: dict[int, _Failure] = {}


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a version could not be loaded, and when to try again.

    File sizes are empty if they cannot be read; `retry_at` is in the seconds of `time.monotonic`.
    """

    problem: str
    sizes: Mapping[str, int]
    pause_secs: float
    retry_at: float


class Catalog:
    """All models that are served; every `poll_secs` it looks for changes.

    A version that could not be loaded is tried again after `retry_secs`. Exports never change, but a store may have
    failed for a while. While files of the version still change, as in a copy, it is tried earlier: after one second,
    then after twice as long each time. A load no longer holds back those of other versions after `slow_secs`. `threads`
    are those of one onnxruntime session. `observe` is called with the model, the version and the number of instances of
    each batch, and `executed` returns where a version adds up what it answers. With `ignore_unknown`, names that a
    model does not read are left out, also if its export does not say so; `observe_unknown` is called with the model,
    the version and their number.
    """

    def __init__(
        self,
        limits: BatchLimits,
        *,
        threads: int,
        poll_secs: float,
        retry_secs: float = 60.0,
        slow_secs: float = 30.0,
        observe: Callable[[str, int, int], None] = lambda model, version, rows: None,
        executed: Callable[[str, int], Executed] = lambda model, version: Executed(),
        ignore_unknown: bool = False,
        observe_unknown: Callable[[str, int, int], None] = lambda model, version, names: None,
    ) -> None:
        self._limits = limits
        self._threads = threads
        self._poll_secs = poll_secs
        self._retry_secs = retry_secs
        self._observe = observe
        self._executed = executed
        self._ignore_unknown = ignore_unknown
        self._observe_unknown = observe_unknown
        self._executor = ThreadPoolExecutor(max(2, threads), thread_name_prefix="predict")
        self._loader = Loader(slow_secs)
        self._models: Mapping[str, _Model] = {}
        # Names of models in TensorFlow Serving's URLs do not depend on case.
        self._by_lower_name: Mapping[str, _Model] = {}
        self._registry: Registry | None = None
        self._registry_policy = VersionPolicy()
        self._registry_problem = ""
        self._discovered = float("-inf")
        self._looking = threading.Lock()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="versions", daemon=True)

    def add(self, name: str, source: Source, policy: VersionPolicy, labels: Mapping[str, int] | None = None) -> None:
        """Serve another model. Its versions are loaded by the next `refresh`."""
        self._set_models({**self._models, name: _Model(source, policy, labels or {}, is_expected=True)})

    def follow(self, registry: Registry, policy: VersionPolicy) -> None:
        """Serve all models of a registry, also those that are created later."""
        self._registry, self._registry_policy = registry, policy

    def replace(
        self, named: Sequence[tuple[ServedModel, Source]], registry: Registry | None, policy: VersionPolicy
    ) -> None:
        """Serve these models from now on, and all of a registry's if there is one, with the policy.

        What answers is unloaded once what is wanted instead is loaded. A model that is not named any more is unknown at
        once; its running requests are answered, and the last of them frees its memory.
        """
        with self._looking:
            before = self._models
            models = {model.name: _renewed(before.get(model.name), model, source) for model, source in named}
            for name, one in before.items():
                is_of_registry = registry is not None and one.source.where == files.join(registry.url, name)
                if name not in models and is_of_registry:
                    one.policy = policy
                    models[name] = one
            self._registry, self._registry_policy, self._discovered = registry, policy, float("-inf")
            for name in models.keys() - before.keys():
                logger.info("Model %s is served.", name)
            for name in before.keys() - models.keys():
                logger.info("Model %s is no longer served.", name)
                for load in before[name].loads.values():
                    load.cancel()
            self._set_models(models)
        self._wake.set()

    def start(self) -> None:
        """Load what is there, then look for changes in the background."""
        self.refresh()
        self._watcher.start()

    def close(self) -> bool:
        """Stop looking for changes; return whether a load or a graph is still running, which may never end."""
        self._ended.set()
        self._wake.set()
        if self._watcher.is_alive():
            # Do not wait for a store that does not answer.
            self._watcher.join(_MOST_SECS_OF_A_LOOK)
        is_loading = self._loader.close()
        running = list(self._executor._threads)
        self._executor.shutdown(wait=False, cancel_futures=True)
        for thread in running:
            thread.join(_MOST_SECS_OF_A_BATCH)
        return is_loading or any(thread.is_alive() for thread in running)

    def names(self) -> list[str]:
        """Return the names of the models, sorted."""
        return sorted(self._models)

    @property
    def is_ready(self) -> bool:
        """Whether each model has a version that answers, and there is any. New models of a registry may have none."""
        answers = [model.state.default is not None for model in self._models.values() if model.is_expected]
        return all(answers) and any(answers)

    def has(self, name: str) -> bool:
        """Return whether there is such a model, even if no version of it is loaded."""
        return name in self._models or name.lower() in self._by_lower_name

    def state(self, name: str) -> ModelState:
        """Return the versions of a model, or raise a RequestError if there is no such model."""
        model = self._models.get(name) or self._by_lower_name.get(name.lower())
        if model is None:
            raise RequestError(404, f"Servable not found for request: Latest({name})")
        return model.state

    def version(self, name: str, number: int | None = None, label: str | None = None) -> Version:
        """Return the version that a request is for, by number or label, or else the default.

        Raise a RequestError if there is none.
        """
        state = self.state(name) if self.has(name) else ModelState()
        if label is not None:
            number = state.number_of(label)
        version = state.versions.get(state.default if number is None else number)  # type: ignore[arg-type]
        if version is None:
            what = f"Latest({name})" if number is None else f"Specific({name}, {number})"
            raise RequestError(404, f"Servable not found for request: {what}")
        return version

    def refresh(self) -> None:
        """Look for changes now, and wait for each load until it has ended or is slow."""
        self._look()
        self._loader.wait([load for model in self._models.values() for load in model.loads.values()])
        self._look()
        # In place of a version that could not be loaded, an older one may be loading now.
        while loads := [
            load
            for model in self._models.values()
            for number, load in model.loads.items()
            if number not in model.failures and not self._loader.seconds_of_slow(load)
        ]:
            self._loader.wait(loads)
            self._look()

    def _watch(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(self._poll_secs)
            self._wake.clear()
            self._look()

    def _look(self) -> None:
        """Look for changes: activate loaded versions, begin to load new ones, unload old ones."""
        self._loader.go_on()
        with self._looking:
            self._discover()
            for name, model in self._models.items():
                try:
                    self._update(name, model)
                    model.problem = ""
                except Exception as error:
                    # The store may be unreachable for a while. Serve what is loaded, and log each problem once.
                    if str(error) != model.problem:
                        model.problem = str(error)
                        logger.warning("The versions of model %s cannot be read: %s", name, files.reason(error))

    def _set_models(self, models: Mapping[str, _Model]) -> None:
        # Replace the dictionaries as a whole, because requests read them in another thread.
        self._models = models
        self._by_lower_name = {name.lower(): model for name, model in models.items()}

    def _discover(self) -> None:
        """Add models that are new in the registry, and remove those that are gone."""
        if self._registry is None or time.monotonic() - self._discovered < _DISCOVER_SECS:
            return
        self._discovered = time.monotonic()
        try:
            names = self._registry.models()
            # A model that is deleted leaves the directory of its history. One without a directory is away, with the
            # registry or alone, and may come back.
            gone = [
                name
                for name, model in self._models.items()
                if name not in names and isinstance(model.source, RegistrySource) and files.exists(model.source.where)
            ]
        except Exception as error:
            if str(error) != self._registry_problem:
                self._registry_problem = str(error)
                logger.warning("The models of the registry cannot be read: %s", files.reason(error))
            return
        self._registry_problem = ""
        models = dict(self._models)
        for name in names:
            if name not in models:
                logger.info("Model %s is served.", name)
                models[name] = _Model(RegistrySource(self._registry, name), self._registry_policy, {})
        for name in gone:
            logger.info("Model %s is gone from the registry.", name)
            del models[name]
        if models.keys() != self._models.keys():
            self._set_models(models)

    def _update(self, name: str, model: _Model) -> None:
        found, before = self._find(name, model), model.state
        if found is None:
            return
        found = replace(found, labels={**found.labels, **model.labels})
        now = time.monotonic()
        # Take these first: which version is chosen depends on those that have failed.
        versions = {**before.versions, **self._take_loaded(name, model, found)}
        chosen = {*_chosen(model, found), found.default, *found.labels.values()}
        wanted = sorted(number for number in chosen if number is not None and number in found.versions)
        model.is_expected = model.is_expected or bool(before.versions if model.is_added else found.versions)
        if not wanted and not model.lacks_versions:
            there = ", ".join(map(str, sorted(found.versions))) or "none"
            logger.warning(
                "Model %s has no version to serve: %s chooses none of the versions in %s, which are: %s%s.",
                name,
                model.policy,
                model.source.where,
                there,
                "" if found.versions else saved_model_hint(model.source.where),
            )
        model.lacks_versions = not wanted
        model.failures = {number: one for number, one in model.failures.items() if number in found.versions}
        for number in wanted:
            failure = model.failures.get(number)
            is_due = failure is None or now >= failure.retry_at
            # A changed path may hold the same numbers.
            is_loaded = number in versions and versions[number].directory == found.versions[number]
            if not is_loaded and number not in model.loads and is_due:
                load = self._loader.submit(partial(self._load, name, number, found.versions[number]))
                model.loads[number] = load
                load.add_done_callback(lambda done: self._wake.set())
        slow = {number: secs for number, load in model.loads.items() if (secs := self._loader.seconds_of_slow(load))}
        for number in slow.keys() - before.slow:
            message = "Model %s has been loading version %d for %.0f s; other versions do not wait for it."
            logger.warning(message, name, number, slow[number])
        default, labels = found.default, {}
        if default is not None:
            # Do not answer with a version that nobody has chosen. Keep the one before until the new one is loaded.
            default = next((number for number in (default, before.default) if number in versions), None)
        for label, number in found.labels.items():
            was = before.labels.get(label)
            labels[label] = was if was in versions and number not in versions else number
        kept = {*wanted, *labels.values(), default}
        loaded = {number: version for number, version in versions.items() if number in kept}
        if model.loads.keys() - slow.keys() or (wanted and not loaded):
            # Unload no version before those that are wanted instead have been loaded, which may fail.
            loaded = versions
        if found.default is None:
            default = max(loaded, default=None)
        if default != before.default and default is not None:
            logger.info("Model %s answers with version %d by default.", name, default)
        gone = before.versions.keys() - loaded.keys()
        for number in gone:
            logger.info("Model %s: unloaded version %d.", name, number)
        states = {number: one for number, one in before.states.items() if number in found.versions}
        states.update(dict.fromkeys(gone, ("END", "")))
        states.update({number: ("END", failure.problem) for number, failure in model.failures.items()})
        states.update(dict.fromkeys(model.loads, ("LOADING", "")))
        states.update({number: ("LOADING", f"it has been loading for {secs:.0f} s") for number, secs in slow.items()})
        states.update(dict.fromkeys(loaded, ("AVAILABLE", "")))
        model.state = ModelState(loaded, default, labels, states, frozenset(slow))

    def _find(self, name: str, model: _Model) -> Found | None:
        """Return what the source of a model holds; None while it does not answer, so that no other model waits."""
        begins = model.finding is None
        if model.finding is None:
            # Between two looks, only sources that do not answer are being asked. Models are often on one mount, so wait
            # long for the first of them only.
            is_first = all(other.finding is None for other in self._models.values())
            model.finding = in_thread(model.source.find, "find")
            wait([model.finding], timeout=_MOST_SECS_OF_A_LOOK if is_first else _MOST_SECS_OF_A_FURTHER_LOOK)
        if not model.finding.done():
            if begins:
                logger.warning("The versions of model %s are not found: %s does not answer.", name, model.source.where)
            return None
        found, model.finding = model.finding, None
        return found.result()

    def _take_loaded(self, name: str, model: _Model, found: Found) -> dict[int, Version]:
        """Return the versions that have been loaded since the last look; log those that could not be loaded."""
        loaded = {}
        for number in [number for number, load in model.loads.items() if load.done()]:
            load = model.loads.pop(number)
            try:
                loaded[number] = load.result()
                model.failures.pop(number, None)
            except Exception as error:
                problem = str(error) if isinstance(error, UserError) else files.reason(error)
                failure = model.failures.get(number)
                if failure is None or failure.problem != problem:
                    logger.error("Cannot load version %d of model %s: %s", number, name, problem)
                sizes = _sizes(found.versions.get(number))
                pause_secs = self._retry_secs
                if failure is None:
                    pause_secs = min(_FIRST_RETRY_SECS, pause_secs)
                elif sizes != failure.sizes:
                    pause_secs = min(2 * failure.pause_secs, pause_secs)
                model.failures[number] = _Failure(problem, sizes, pause_secs, time.monotonic() + pause_secs)
        return loaded

    def _load(self, name: str, number: int, directory: str) -> Version:
        began = time.monotonic()
        version = Version(
            name,
            number,
            directory,
            threads=self._threads,
            limits=self._limits,
            executor=self._executor,
            observe=partial(self._observe, name, number),
            executed=self._executed(name, number),
            ignore_unknown=self._ignore_unknown,
            observe_unknown=partial(self._observe_unknown, name, number),
        )
        logger.info("Model %s has loaded version %d in %.2f s.", name, number, time.monotonic() - began)
        return version


def _sizes(directory: str | None) -> dict[str, int]:
    """Return the size of each file of a version; an empty dict if they cannot be read."""
    try:
        return {} if directory is None else files.all_files(directory)
    except Exception:
        # A file may vanish meanwhile, and stores raise errors of their own kinds.
        return {}


def _chosen(model: _Model, found: Found) -> list[int]:
    """Return the versions that the policy chooses. If none of them can be loaded, it also chooses from the others."""
    chosen = model.policy.chosen(list(found.versions))
    if all(number in model.failures for number in chosen):
        chosen += model.policy.chosen([number for number in found.versions if number not in model.failures])
    return chosen


def _renewed(before: _Model | None, model: ServedModel, source: Source) -> _Model:
    """Return what serves a model by its settings, with the versions that are loaded."""
    if before is None:
        return _Model(source, model.policy, model.labels, is_added=True)
    if (type(source), source.where) != (type(before.source), before.source.where):
        before.source, before.finding, before.failures = source, None, {}
        before.loads = {number: load for number, load in before.loads.items() if not load.cancel()}
        # What could not be loaded from the path before says nothing about this one.
        loaded = {number: one for number, one in before.state.states.items() if number in before.state.versions}
        before.state = replace(before.state, states=loaded)
    before.policy, before.labels = model.policy, model.labels
    return before


def source_of(model: ServedModel, registry: str | None) -> Source:
    """Return where to find the versions of a model that is named."""
    if model.path is not None:
        return DirectorySource(model.path)
    assert registry is not None
    return RegistrySource(Registry(registry), model.name)


def checked_sources(models: Sequence[ServedModel], registry: str | None) -> list[tuple[ServedModel, Source]]:
    """Return models that are named with their sources; raise if a directory, a registry or a model is missing."""
    if registry is not None and files.is_local(registry) and not files.exists(registry):
        raise RegistryError(f"the registry {registry} does not exist; 'estimator models create' makes one.")
    found = [(model, source_of(model, registry)) for model in models]
    for model, source in found:
        if model.path is not None and not files.exists(model.path):
            raise ExportError(f"{model.place}the directory of model {model.name}, {model.path}, does not exist.")
        if model.path is None:
            try:
                source.find()
            except RegistryError as error:
                raise RegistryError(f"{model.place}{error}") from error
    return found
