"""The file of ``--config`` while a server runs: it is read again when it changes, and at SIGHUP.

A look compares the content of the file, which sees it written in place, replaced, and reached by another symbolic link,
as Kubernetes does with a ConfigMap. Of several processes, the parent looks, and runs this module as a child, because it
imports no library itself. The child replaces the file of settings that the processes share, at which each node looks in
the same way.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_estimator import files
from torch_estimator.errors import InvalidValueError, UserError
from torch_estimator.runs.state_file import StateFile
from torch_estimator.serving.options import ServingOptions
from torch_estimator.serving.scoreboard import COMMAND_FILE, SETTINGS_FILE

if TYPE_CHECKING:
    from torch_estimator.serving.service import PredictionService

logger = logging.getLogger("torch_estimator")

_CHANGING = ("models", "registry", "policy")
"""Settings that a running server takes from a changed file."""

# Each look at a store is a request.
_LEAST_SECS_OF_A_STORE = 10.0


class Watch:
    """Thread that calls a function when the content of a file is no longer `known`, and after each `wake`.

    A change counts once two looks, `secs` apart, have found the same, because a file may be written piece by piece. A
    pipe never changes, nor does a path of None.
    """

    def __init__(self, path: str | None, known: str, secs: float) -> None:
        self._path = path
        self._known = known
        self._secs = None if path is None else secs if files.is_local(path) else max(secs, _LEAST_SECS_OF_A_STORE)
        # Its put may be called in a signal handler, which no lock of `threading` allows.
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self, changed: Callable[[], object]) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, args=(changed,), name="settings", daemon=True).start()

    def wake(self) -> None:
        """Have the function called soon; signal handlers may call this."""
        self._asked.put(None)

    def wake_on_sighup(self) -> None:
        """Wake at SIGHUP, unless that is ignored, as under nohup. When the terminal is closed, it ends the process."""
        had_terminal = has_terminal()

        def handle(number: int, frame: object) -> None:
            if had_terminal and not has_terminal():
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self.wake()

        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, handle)

    def _run(self, changed: Callable[[], object]) -> None:
        seen = self._known
        while True:
            is_asked = False
            with contextlib.suppress(queue.Empty):
                self._asked.get(timeout=self._secs)
                is_asked = True
                # Several signals that have come meanwhile ask for one look.
                while True:
                    self._asked.get_nowait()
            before, seen = seen, content_of(self._path)
            if is_asked or seen == before != self._known:
                self._known = seen
                try:
                    changed()
                except Exception as error:
                    logger.error("The changed settings cannot be read: %s.", files.reason(error))


def content_of(path: str | None) -> str:
    """Return the content of a file, or why it cannot be read; nothing if it can be read once only, as a pipe."""
    try:
        if path is None or (files.is_local(path) and files.exists(path) and not os.path.isfile(files.as_url(path))):
            return ""
        return files.read_bytes(path).decode(errors="replace")
    except Exception as error:
        return files.reason(error)


def has_terminal() -> bool:
    """Return whether this process has a terminal; one that is closed is none."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line of ``estimator serve``: its options, and what its file held when the server started.

    `fixed` are the settings of the start that stay.
    """

    options: dict[str, Any]
    content: str
    fixed: dict[str, Any]

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> tuple[Command, ServingOptions]:
        """Return the command with these options, and its settings."""
        from torch_estimator.serving.config import settings_of

        plain = {name: value for name, value in options.items() if not callable(value)}
        # Before the settings are read, so that no later change is missed.
        content = content_of(plain["config"])
        settings = settings_of(plain)
        fixed = {name: value for name, value in asdict(settings).items() if name not in _CHANGING}
        return cls(options=plain, content=content, fixed=fixed), settings

    def watch(self, secs: float) -> Watch:
        """Return what looks at the file."""
        return Watch(self.options["config"], self.content, secs)

    def apply_again(self, service: PredictionService) -> None:
        """Have a server take the models of the file, if it is right."""
        settings = self.read_again(service.options)
        if settings is not None:
            service.apply(settings)

    def read_again(self, running: ServingOptions) -> ServingOptions | None:
        """Return the settings of a server with what may change in them; log why if the file cannot be used."""
        from torch_estimator.serving.config import settings_of

        path = self.options["config"]
        if path is None:
            logger.warning("SIGHUP has the file of --config read again, and this server has none: it goes on as it is.")
            return None
        try:
            wanted = settings_of(self.options)
            _check_changes(wanted, running)
        except Exception as error:
            # Stores raise errors of their own kinds.
            problem = str(error) if isinstance(error, UserError) else files.reason(error)
            where = "" if problem.startswith(path) else f"{path}: "
            logger.error("%s%s; what is served stays as it is.", where, problem.removesuffix("."))
            return None
        changed = [name for name, value in self.fixed.items() if getattr(wanted, name) != value]
        if changed:
            logger.warning(
                "%s: a server takes %s when it starts only, so restart it for that; the rest of the file is served.",
                path,
                " and ".join(f"{name}: {getattr(wanted, name)}" for name in changed),
            )
        logger.info("%s has been read again.", path)
        return replace(running, **{name: getattr(wanted, name) for name in _CHANGING})


def _check_changes(wanted: ServingOptions, running: ServingOptions) -> None:
    """Check models that are new or changed; raise if one is missing, or would have no version to answer with."""
    from torch_estimator.serving.catalog import checked_sources

    is_same = wanted.registry == running.registry
    changed = [one for one in wanted.models if one not in running.models or not (is_same or one.path)]
    served = {one.name for one in running.models}
    for model, source in checked_sources(changed, wanted.registry):
        versions = source.find().versions
        there = f"the versions in {source.where}, which are: {', '.join(map(str, sorted(versions))) or 'none'}"
        if model.name in served and not model.policy.chosen(list(versions)):
            raise InvalidValueError(f"{model.place}the policy {model.policy} chooses none of {there}.")
        for label, number in model.labels.items():
            if number not in versions:
                raise InvalidValueError(f"{model.place}the label {label} names version {number}, not one of {there}.")


def main(directory: str) -> None:
    """Read the file of the server whose processes share this directory."""
    command = StateFile(os.path.join(directory, COMMAND_FILE), Command).read()
    shared = os.path.join(directory, SETTINGS_FILE)
    assert command is not None
    settings = command.read_again(ServingOptions.from_json(content_of(shared)))
    if settings is not None:
        files.write_atomic(shared, settings.to_json().encode())


if __name__ == "__main__":
    main(sys.argv[1])
