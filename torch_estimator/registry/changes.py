"""Changes of a registered model: one at a time, each complete or not made, each in the history.

A change is one small file, ``MODEL/history/<number>.json``, written before anything else. It holds who changed what and
when, and the state of the model after the change. After that the change is carried out: a new version gets its final
name or a deleted one disappears, and ``MODEL/model.json`` is replaced. If the process is killed in between, the next
writer finds a change with a higher number than that of ``model.json``, and carries it out first.

What keeps two writers apart depends on where the registry is:

- On a local path, a lock on the file ``.lock`` of the registry (flock). A second writer waits.
- On a store that can create an object exclusively, as S3, Google Cloud Storage and Azure can, only one writer can
  create the change of a number. The other one reads the new state and makes its change after it. A slow writer can
  still replace ``model.json`` by an older state, so that readers look for changes with higher numbers, too.
- Elsewhere, nothing does, and a warning says so.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch_estimator import files
from torch_estimator.errors import RegistryError
from torch_estimator.export.directory import OWNER, remove_leftovers
from torch_estimator.runs.locks import FileLock
from torch_estimator.runs.state_file import StateFile, dataclass_from_json, encoded, from_json

logger = logging.getLogger("torch_estimator")

T = TypeVar("T")

MODEL_FILE = "model.json"
HISTORY = "history"
MANIFEST_FILE = "manifest.json"

FORMAT_VERSION = 1

_LOCK = ".lock"
# Changes take milliseconds, so that a lock which is held this long belongs to a process that is stuck or suspended.
_LOCK_SECS = 60.0
_DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """State of a model in a registry, which is the content of ``model.json``.

    Attributes:
        name: Name of the model.
        description: Text for people.
        default: The version that answers if a caller names none; None while there is no version.
        labels: Version by label.
        created: When the model was created, such as ``2026-11-24T12:30:00Z``.
        changes: Number of the last change. It grows with each change, so that a reader can tell states apart.

    >>> registry = te.registry.Registry("memory://ModelInfo")
    >>> registry.create_model("prices", description="Prices of houses")
    >>> info = registry.read_model("prices")
    >>> info.name, info.default, info.labels
    ('prices', None, {})
    >>> te.registry.ModelInfo.from_json(info.to_json()) == info
    True
    """

    name: str
    description: str = ""
    default: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    created: str = ""
    changes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "description": self.description,
            "default": self.default,
            "labels": dict(sorted(self.labels.items())),
            "created": self.created,
            "changes": self.changes,
        }

    @classmethod
    def from_json(cls, content: Any) -> ModelInfo:
        """Return the state that `to_json` returned.

        Args:
            content: What `to_json` returned.

        Raises:
            ValueError: The content is something else.
        """
        return known_format(cls, content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a model, as its history has it.

    Attributes:
        number: Number of the change, from 1.
        time: When it was made, such as ``2026-11-24T12:30:00Z``.
        who: User and host.
        change: What was done: ``create-model``, ``set-default``, ….
        version: The version that was created, deleted, labelled or made the default; None for changes of the model.
        after: State of the model after the change; None if it was deleted.
        manifest: Content of the manifest, if a version was created.

    >>> registry = te.registry.Registry("memory://Change")
    >>> registry.create_model("prices")
    >>> [change] = registry.history("prices")
    >>> change.number, change.change, change.after.name
    (1, 'create-model', 'prices')
    >>> change.to_json()["change"]
    'create-model'
    """

    number: int
    time: str
    who: str
    change: str
    version: int | None
    after: ModelInfo | None
    manifest: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the change as JSON."""
        content = {
            "number": self.number,
            "time": self.time,
            "who": self.who,
            "change": self.change,
            "version": self.version,
            "after": None if self.after is None else self.after.to_json(),
        }
        return content if self.manifest is None else {**content, "manifest": dict(self.manifest)}


class ModelHistory:
    """State and history of one model."""

    def __init__(self, root: str, model: str) -> None:
        self.directory = files.join(root, model)
        self._root = root
        self._model = model
        self._model_file = state_file(files.join(self.directory, MODEL_FILE), ModelInfo)

    def read(self) -> ModelInfo | None:
        """Return the state of the model; None if there is no such model."""
        state = self._model_file.read()
        if files.is_local(self._root):
            return state
        # A slow writer may have replaced model.json by an older state; see the comment at the top.
        while state is not None and (later := self._read_change(state.changes + 1)) is not None:
            state = later.after
        return state

    def changes(self) -> list[Change]:
        """Return all changes, the oldest first."""
        found = (self._read_change(number) for number in self._numbers())
        return [change for change in found if change is not None]

    def change(
        self,
        what: str,
        make: Callable[[ModelInfo | None], ModelInfo | None],
        *,
        version: int | None = None,
        manifest: Mapping[str, Any] | None = None,
    ) -> ModelInfo | None:
        """Make a change; return the state after it.

        `make` maps the state before (None if there is no model) to the state after it; it may be called several times,
        and raises an error to refuse the change. `manifest` describes a new version, whose files are at `staged`.
        """
        with one_writer(self._root):
            while True:
                before, number = self._settle()
                after = make(before)
                if after is not None:
                    after = replace(after, changes=number + 1)
                change = Change(
                    number=number + 1,
                    time=now(),
                    who=user(),
                    change=what,
                    version=version,
                    after=after,
                    manifest=manifest,
                )
                if self._append(change):
                    self._carry_out(change)
                    return after

    def finish(self) -> None:
        """Carry out changes whose writer was killed, and remove the files of versions that were not finished."""
        with one_writer(self._root):
            self._settle()
            if files.is_local(self._root):
                remove_leftovers(self.directory, time.time())

    def staged(self, version: int) -> str:
        """Return the directory into which the files of a new version are written.

        On a local path this is not yet the version's own directory. On a store, which cannot rename, it is, and the
        manifest is missing.
        """
        name = f"temp-{version}" if files.is_local(self._root) else str(version)
        return files.join(self.directory, name)

    def _settle(self) -> tuple[ModelInfo | None, int]:
        """Carry out changes whose writer was killed; return the state and the number of the last change."""
        state = self._model_file.read()
        # Without model.json, the last change either created the model and was not carried out, or deleted it.
        number = state.changes if state is not None else max((0, *(one - 1 for one in self._numbers())))
        while (change := self._read_change(number + 1)) is not None:
            self._carry_out(change)
            state, number = change.after, change.number
        return state, number

    def _append(self, change: Change) -> bool:
        """Add a change to the history; return False if another writer has added one with the same number."""
        path = self._change_path(change.number)
        data = encoded(change)
        files.makedirs(files.parent(path))
        if files.can_create(path):
            return files.create(path, data)
        files.write_atomic(path, data)
        return True

    def _carry_out(self, change: Change) -> None:
        """Do what a change says, which may be done already, in part or as a whole."""
        if change.change == "create-version" and change.version is not None and change.manifest is not None:
            self._publish(change.version, change.manifest)
        elif change.change == "delete-version" and change.version is not None:
            self._remove_version(change.version)
        # Replace model.json last, because its number says which changes have been carried out.
        if change.after is None:
            self._model_file.remove()
        else:
            self._model_file.write(change.after)

    def _publish(self, version: int, manifest: Mapping[str, Any]) -> None:
        staged, final = self.staged(version), files.join(self.directory, str(version))
        if not files.is_local(self._root):
            files.write_atomic(files.join(final, MANIFEST_FILE), encoded(manifest))
        elif not files.exists(final) and files.exists(staged):
            files.remove_tree(files.join(staged, OWNER))
            files.commit_dir(staged, final)

    def _remove_version(self, version: int) -> None:
        directory = files.join(self.directory, str(version))
        if files.is_local(self._root):
            # Rename the directory first, so that readers see the version as a whole or not at all. If this process is
            # killed before everything is removed, the next `create_version` removes what has such a name.
            gone = files.join(self.directory, f"temp-{time.time_ns()}")
            with contextlib.suppress(FileNotFoundError):
                os.rename(directory, gone)
                files.remove_tree(gone)
            return
        files.remove_tree(files.join(directory, MANIFEST_FILE))
        files.remove_tree(directory)

    def _read_change(self, number: int) -> Change | None:
        return state_file(self._change_path(number), Change).read()

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in files.listdir(files.join(self.directory, HISTORY)))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _change_path(self, number: int) -> str:
        return files.join(self.directory, HISTORY, f"{number:0{_DIGITS}}.json")


def now() -> str:
    """Return the time as registries write it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def user() -> str:
    """Return the user and the host of this process."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        # The user has no name, as in a container that runs with any user id.
        name = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"{name}@{socket.gethostname()}"


@contextlib.contextmanager
def one_writer(root: str) -> Iterator[None]:
    """Keep other writers of a registry out during the body, where the changes themselves cannot; see the top."""
    with contextlib.ExitStack() as stack:
        if files.is_local(root):
            files.makedirs(root)
            path = files.join(root, _LOCK)
            try:
                stack.enter_context(FileLock(path, wait_secs=_LOCK_SECS))
            except BlockingIOError:
                raise RegistryError(
                    f"another process has locked {path} for {_LOCK_SECS:g} s; end that process, and try again."
                ) from None
            except NotImplementedError as error:
                _warn(root, str(error))
        elif not files.can_create(root):
            _warn(root, "its store cannot create an object only if it does not exist")
        yield


@functools.cache
def _warn(root: str, reason: str) -> None:
    logger.warning("Another writer of the registry %s at the same time would not be noticed: %s.", root, reason)


def state_file(path: str, kind: type[T]) -> StateFile[T]:
    """Return a state file of a registry."""
    return StateFile(path, kind, error=RegistryError, cure="restore it from a copy")


def known_format(kind: type[T], content: Any) -> T:
    """Return what the ``to_json`` of a class with a ``format_version`` returned.

    Raise a ValueError for other content.
    """
    version = from_json(int, from_json(dict[str, Any], content).get("format_version"), "'format_version'")
    if version > FORMAT_VERSION:
        raise ValueError(f"format_version {version} is newer than this version reads")
    return dataclass_from_json(kind, content)
