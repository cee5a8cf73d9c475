"""Registry: models with numbered, immutable versions in a directory or an object store.

The layout is that of TensorFlow Serving and Triton, so that other servers can read a registry as well::

    REGISTRY/census/model.json          description, default version, labels
    REGISTRY/census/history/00000001.json   one file for each change: who changed what, and when
    REGISTRY/census/1/                  an export, and manifest.json
    REGISTRY/census/2/                  the next one

The history of a deleted model stays.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError, RegistryError
from torch_estimator.export.directory import owned
from torch_estimator.export.exported_model import find_export
from torch_estimator.json_text import shortened
from torch_estimator.registry.changes import (
    HISTORY,
    MANIFEST_FILE,
    MODEL_FILE,
    Change,
    ModelHistory,
    ModelInfo,
    now,
)
from torch_estimator.registry.check import check_export
from torch_estimator.registry.manifest import VersionInfo, copy_version, read_version
from torch_estimator.runs.locks import held
from torch_estimator.runs.state_file import encoded

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_VERSION = re.compile(r"v?([0-9]{1,19})")
_LARGEST_VERSION = 2**63 - 1
_MOST_DESCRIPTION = 10_000
# Requests to an object store that run at the same time, when many manifests are read.
_REQUESTS = 16


class Registry:
    """Models and their versions in a directory.

    Methods that change something wait for another writer. On stores that cannot create an object exclusively another
    writer is not noticed, and a warning says so. Readers never wait and never see half a change.

    Args:
        url: Local path or fsspec URL of the registry. It need not exist.

    Attributes:
        url: Path or URL of the registry.

    >>> x = fc.numeric_column("x")
    >>> estimator = te.LinearRegressor([x], "memory://Registry/run")
    >>> estimator = estimator.train(lambda: ({"x": [1.0, 2.0]}, [2.0, 4.0]), steps=1)
    >>> export = estimator.export_saved_model("memory://Registry/exports", te.serving_input.raw_features([x]))
    >>> registry = te.registry.Registry("memory://Registry/registry")
    >>> registry.create_model("prices", description="Prices of houses")
    >>> for version in (1, 2):
    ...     info = registry.create_version("prices", version, export)
    >>> registry.set_default("prices", 2)
    >>> registry.update("prices", 1, labels=["old"])
    >>> registry.models(), registry.versions("prices")
    (['prices'], [1, 2])
    >>> model = registry.read_model("prices")
    >>> model.default, model.labels
    (2, {'old': 1})
    >>> te.ExportedModel.load(registry.version_dir("prices", 2)).predict({"x": [3.0]})["predictions"].shape
    (1, 1)
    >>> registry.read_version("prices", 2).global_step, len(registry.read_versions("prices"))
    (1, 2)
    >>> registry.delete_version("prices", 1)
    >>> [change.change for change in registry.history("prices")]
    ['create-model', 'create-version', 'create-version', 'set-default', 'update-labels', 'delete-version']
    """

    def __init__(self, url: files.PathLike) -> None:
        self.url = files.as_url(url)

    def models(self) -> list[str]:
        """Return the names of the models, sorted.

        Raises:
            RegistryError: The registry cannot be read.
        """
        with self._reading():
            names = (name.strip("/") for name in files.listdir(self.url))
            return sorted(
                name for name in names if _is_name(name) and files.exists(files.join(self.url, name, MODEL_FILE))
            )

    def read_model(self, model: str) -> ModelInfo:
        """Return the state of a model: its default version, labels and description.

        This is cheap enough to be called every second by a server. On an object store the default may be a version
        that `versions` does not have yet, for the moment in which its first version is being created.

        Args:
            model: Name of the model.

        Raises:
            RegistryError: There is no such model, or it cannot be read.
        """
        with self._reading():
            return self._found(model, self._history(model).read())

    def history(self, model: str) -> list[Change]:
        """Return all changes of a model, the oldest first, also those of a deleted model.

        Args:
            model: Name of the model.

        Raises:
            RegistryError: There has never been such a model, or it cannot be read.
        """
        with self._reading():
            changes = self._history(model).changes()
        if not changes:
            self._found(model, None)
        return changes

    def versions(self, model: str) -> list[int]:
        """Return the numbers of a model's versions, ascending.

        Args:
            model: Name of the model.

        Raises:
            RegistryError: There is no such model, or it cannot be read.
        """
        self.read_model(model)
        with self._reading():
            return self._versions(model)

    def version_dir(self, model: str, version: int | str) -> str:
        """Return the directory of a version, which `ExportedModel.load` takes.

        Args:
            model: Name of the model.
            version: Number of the version; ``v1`` is read as 1.

        Raises:
            RegistryError: There is no such version.
        """
        number = as_version(version)
        directory = files.join(self.url, checked_name(model), str(number))
        with self._reading():
            if not files.exists(files.join(directory, MANIFEST_FILE)):
                self._check_version(model, number, self.versions(model))
        return directory

    def read_version(self, model: str, version: int | str) -> VersionInfo:
        """Return the manifest of a version.

        Args:
            model: Name of the model.
            version: Number of the version; ``v1`` is read as 1.

        Raises:
            RegistryError: There is no such version, or its manifest is damaged.
        """
        directory = self.version_dir(model, version)
        with self._reading():
            info = read_version(directory)
        if info is None:
            raise RegistryError(f"{directory} has no {MANIFEST_FILE} any more; it has just been deleted.")
        return info

    def read_versions(self, model: str) -> list[VersionInfo]:
        """Return the manifests of all versions, in the order of their numbers.

        Args:
            model: Name of the model.

        Raises:
            RegistryError: There is no such model, or a manifest is damaged.
        """
        directories = [files.join(self.url, model, str(version)) for version in self.versions(model)]
        with self._reading():
            if files.is_local(self.url):
                found = list(map(read_version, directories))
            else:
                with ThreadPoolExecutor(_REQUESTS) as threads:
                    found = list(threads.map(read_version, directories))
        # Leave out a version that was deleted since its directory was listed.
        return [info for info in found if info is not None]

    def create_model(self, name: str, *, description: str = "") -> None:
        """Create a model without versions.

        Args:
            name: Name of the model: a letter, then letters, digits, ``_``, ``-`` and ``.``, 128 characters at most.
            description: Text for people.

        Raises:
            InvalidValueError: The name or the description cannot be used.
            RegistryError: The model exists, or the registry cannot be written.
        """
        checked = _checked_description(description)

        def create(before: ModelInfo | None) -> ModelInfo:
            if before is not None:
                raise RegistryError(f"the model {name!r} exists already in {self.url}; choose another name.")
            return ModelInfo(name=name, description=checked, created=now())

        with self._writing():
            self._history(name).change("create-model", create)

    def delete_model(self, name: str) -> None:
        """Delete a model that has no versions. Its history stays.

        Args:
            name: Name of the model.

        Raises:
            RegistryError: There is no such model, it has versions, or the registry cannot be written.

        >>> registry = te.registry.Registry("memory://delete_model")
        >>> registry.create_model("prices")
        >>> registry.delete_model("prices")
        >>> registry.models()
        []
        """

        def delete(before: ModelInfo | None) -> None:
            self._found(name, before)
            there = self._versions(name)
            if there:
                raise RegistryError(
                    f"the model {name!r} has {_listed(there)}; delete {'it' if len(there) == 1 else 'them'} first."
                )

        with self._writing():
            self._history(name).change("delete-model", delete)

    def create_version(
        self, model: str, version: int | str, origin: files.PathLike, *, description: str = ""
    ) -> VersionInfo:
        """Copy an export into the registry as a new version; return its manifest.

        The export is checked first, as ``estimator check`` does. The first version of a model becomes its default.

        Args:
            model: Name of the model.
            version: Number of the version, from 1; ``v1`` is read as 1.
            origin: Directory or URL of an export, or a directory of numbered exports, of which the newest is taken.
            description: Text for people.

        Raises:
            InvalidValueError: The number or the description cannot be used.
            ExportError: The export does not load, or does not reproduce the predictions that it has recorded.
            RegistryError: There is no such model, the version exists, or the registry cannot be written.
        """
        number, text = as_version(version), _checked_description(description)
        history = self._history(model)
        self._check_free(model, number)
        directory, _ = find_export(origin)
        source = os.path.abspath(directory) if files.is_local(directory) else directory
        check_export(source, latency=False)

        def create(before: ModelInfo | None) -> ModelInfo:
            state = self._found(model, before)
            self._check_free(model, number)
            return replace(state, default=number) if state.default is None else state

        with self._writing():
            history.finish()
            with self._staging(history, model, number) as staged:
                info = copy_version(source, staged, model=model, version=number, description=text)
                manifest = info.to_json()
                if files.is_local(staged):
                    files.write_file(files.join(staged, MANIFEST_FILE), [encoded(manifest)])
                history.change("create-version", create, version=number, manifest=manifest)
        return info

    def delete_version(self, model: str, version: int | str) -> None:
        """Delete a version, and the labels that name it.

        Args:
            model: Name of the model.
            version: Number of the version; ``v1`` is read as 1.

        Raises:
            RegistryError: There is no such version, it is the default of several, or the registry cannot be written.
        """
        number = as_version(version)

        def delete(before: ModelInfo | None) -> ModelInfo:
            state, there = self._found(model, before), self._versions(model)
            self._check_version(model, number, there)
            if number == state.default and len(there) > 1:
                raise RegistryError(
                    f"version {number} is the default of the model {model!r}, which has {_listed(there)}; make another "
                    "version the default first."
                )
            labels = {label: one for label, one in state.labels.items() if one != number}
            return replace(state, labels=labels, default=None if number == state.default else state.default)

        with self._writing():
            self._history(model).change("delete-version", delete, version=number)

    def set_default(self, model: str, version: int | str) -> None:
        """Make a version the one that answers if a caller names none.

        Args:
            model: Name of the model.
            version: Number of the version; ``v1`` is read as 1.

        Raises:
            RegistryError: There is no such version, or the registry cannot be written.
        """
        number = as_version(version)

        def choose(before: ModelInfo | None) -> ModelInfo:
            state = self._found(model, before)
            self._check_version(model, number, self._versions(model))
            return replace(state, default=number)

        with self._writing():
            self._history(model).change("set-default", choose, version=number)

    def update(
        self, model: str, version: int | str, *, labels: Iterable[str] = (), remove_labels: Iterable[str] = ()
    ) -> None:
        """Change the labels of a version.

        Args:
            model: Name of the model.
            version: The version.
            labels: Labels that name this version from now on; each is taken from the version that has it.
            remove_labels: Labels that no longer name this version.

        Raises:
            InvalidValueError: A label cannot be used.
            RegistryError: There is no such version, it has no such label, or the registry cannot be written.
        """
        number = as_version(version)
        added, removed = _checked_labels(labels), _checked_labels(remove_labels)
        if not added and not removed:
            raise InvalidValueError("no label to add or to remove is given; give at least one.")

        def label(before: ModelInfo | None) -> ModelInfo:
            state = self._found(model, before)
            self._check_version(model, number, self._versions(model))
            for name in removed:
                if state.labels.get(name) != number:
                    raise RegistryError(
                        f"version {number} of the model {model!r} has no label {name!r}; its labels are "
                        f"{[name for name, one in state.labels.items() if one == number]}."
                    )
            kept = {name: one for name, one in state.labels.items() if name not in removed}
            return replace(state, labels={**kept, **dict.fromkeys(added, number)})

        with self._writing():
            self._history(model).change("update-labels", label, version=number)

    def _history(self, model: str) -> ModelHistory:
        return ModelHistory(self.url, checked_name(model))

    def _versions(self, model: str) -> list[int]:
        directory = files.join(self.url, model)
        if files.is_local(directory):
            names = (name for name in files.listdir(directory) if _is_version(name))
            found = (name for name in names if files.exists(files.join(directory, name, MANIFEST_FILE)))
        else:
            # List all files in one request, instead of asking for the manifest of each version.
            listed = (name.split("/") for name in files.all_files(directory) if not name.startswith(HISTORY))
            found = (parts[0] for parts in listed if parts[1:] == [MANIFEST_FILE] and _is_version(parts[0]))
        return sorted(map(int, found))

    def _found(self, model: str, state: ModelInfo | None) -> ModelInfo:
        if state is None:
            raise RegistryError(
                f"there is no model {model!r} in the registry {self.url}, which has "
                f"{', '.join(self.models()) or 'none'}; 'estimator models create' makes one."
            )
        return state

    def _check_version(self, model: str, version: int, there: list[int]) -> None:
        if version not in there:
            raise RegistryError(f"the model {model!r} in {self.url} has no version {version}; it has {_listed(there)}.")

    def _check_free(self, model: str, version: int) -> None:
        if version in self.versions(model):
            raise RegistryError(
                f"version {version} of the model {model!r} exists already, and versions do not change; choose another "
                f"number, such as {max(self.versions(model)) + 1}."
            )

    @contextlib.contextmanager
    def _staging(self, history: ModelHistory, model: str, version: int) -> Iterator[str]:
        """Reserve the directory for the files of a new version; remove it if the version was not created."""
        staged = history.staged(version)

        def in_use(holder: object) -> RegistryError:
            return RegistryError(
                f"{holder} is creating version {version} of the model {model!r}; choose another number, or try again."
            )

        with contextlib.ExitStack() as stack:
            if files.is_local(staged):
                try:
                    os.mkdir(staged)
                except FileExistsError:
                    raise RegistryError(
                        f"another process is creating version {version} of the model {model!r}; choose another number, "
                        f"or remove {staged} if there is no such process."
                    ) from None
                stack.enter_context(owned(staged))
            else:
                # Where objects cannot be created exclusively, `history.finish` has logged a warning.
                with contextlib.suppress(NotImplementedError):
                    stack.enter_context(held(f"{staged}.lease", in_use))
                # Remove what a killed process has uploaded, but not what another one has finished in the meantime.
                self._check_free(model, version)
                files.remove_tree(staged)
            try:
                yield staged
            except BaseException:
                with contextlib.suppress(OSError, RegistryError):
                    # If the change is in the history already, the files become the version, in spite of the error.
                    history.finish()
                    if files.is_local(staged) or not files.exists(files.join(staged, MANIFEST_FILE)):
                        files.remove_tree(staged)
                raise

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failed("read", error) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failed("written", error) from error

    def _failed(self, done: str, error: OSError) -> RegistryError:
        where = f" ({error.filename})" if error.filename else ""
        return RegistryError(f"the registry {self.url} cannot be {done}: {files.reason(error)}{where}.")


def checked_name(name: str) -> str:
    """Return the name of a model, which becomes the name of a directory, or raise if it cannot be used."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"the name of a model must be a string, but got {shortened(name)}.")
    if not _is_name(name):
        raise InvalidValueError(
            f"the name of a model must be a letter, then letters, digits, '_', '-' and '.', 128 characters at most and "
            f"without '..', but got {shortened(name)}."
        )
    return name


def as_version(version: int | str) -> int:
    """Return the number of a version; ``v1`` is read as 1.

    >>> as_version("v12")
    12
    """
    if isinstance(version, bool) or not isinstance(version, int | str):
        raise InvalidTypeError(f"a version must be a number, or a string such as 'v1', but got {shortened(version)}.")
    match = _VERSION.fullmatch(str(version))
    number = int(match[1]) if match else 0
    if not 1 <= number <= _LARGEST_VERSION:
        raise InvalidValueError(
            f"a version must be a whole number from 1 to {_LARGEST_VERSION}, or such a number after 'v', but got "
            f"{shortened(version)}."
        )
    return number


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and ".." not in name


def _is_version(name: str) -> bool:
    """Return whether the name of a directory is that of a version, which has no leading zeros."""
    return name.isascii() and name.isdigit() and not name.startswith("0") and int(name) <= _LARGEST_VERSION


def _checked_labels(labels: Iterable[str]) -> list[str]:
    found = [labels] if isinstance(labels, str) else list(labels)
    for label in found:
        if not isinstance(label, str) or not _is_name(label) or _VERSION.fullmatch(label):
            raise InvalidValueError(
                f"a label must be a letter, then letters, digits, '_', '-' and '.', 128 characters at most, and not "
                f"look like a version such as 'v1', but got {shortened(label)}."
            )
    return found


def _checked_description(text: str) -> str:
    if not isinstance(text, str):
        raise InvalidTypeError(f"a description must be a string, but got {shortened(text)}.")
    if len(text) > _MOST_DESCRIPTION:
        raise InvalidValueError(
            f"a description must have {_MOST_DESCRIPTION} characters at most, but this one has {len(text)}."
        )
    # Replace what a terminal in another encoding has sent, because it cannot be written as UTF-8.
    return text.encode(errors="replace").decode()


def _listed(versions: list[int]) -> str:
    if not versions:
        return "no version"
    shown = [str(one) for one in versions[-5:]]
    more = f"… and {len(versions) - len(shown)} more" if len(versions) > len(shown) else ""
    return f"the version{'s' if len(versions) > 1 else ''} {', '.join(shown)}{f' {more}' if more else ''}"
