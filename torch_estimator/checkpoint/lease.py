"""Lease of a model directory: one training at a time writes into it.

Two that write at once, as when a scheduler starts a job twice, would remove each other's unfinished checkpoints and
export different models. Only the process that saves takes the lease; evaluators and other readers do without.

On a local path it is a locked file: the kernel frees the lock when the process ends, however that comes, so a restart
never waits. On an object store it is an object that only one process can create, and renews in a background thread: an
object that has not changed for `EXPIRES_SECS` is free. Its age is measured by the process that waits, so that the
clocks of machines need not agree.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch_estimator import files
from torch_estimator.errors import ModelDirInUseError
from torch_estimator.json_text import parse_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("torch_estimator")

NAME = "training.lease"

EXPIRES_SECS = 60.0
"""How long a process must not renew its lease on an object store before another one takes it over."""

_RENEW_SECS = EXPIRES_SECS / 4
_LOOK_EVERY_SECS = 1.0
# Between its lock and its content, a file is empty, or names a process that was killed.
_TRIES, _RETRY_SECS = 100, 0.02

Check = Callable[[], None]
"""Raises `ModelDirInUseError` where the lease is lost."""

# Inherited by a forked process, these would keep the lock after the one that took it has ended.
_locked: set[int] = set()
# Of this process; what else names it was taken by a process of the same number before.
_own_leases: set[str] = set()


@contextlib.contextmanager
def leased(model_dir: str) -> Iterator[Check | None]:
    """Hold the lease of a model directory; give a function to call before each save, where the lease may be lost.

    Where the file system has neither locks nor exclusive creation this is a warning.

    Raises:
        ModelDirInUseError: Another training has it.
    """
    path = files.join(model_dir, NAME)
    take = _locked_file if files.is_local(model_dir) else _object
    with contextlib.ExitStack() as stack:
        check = None
        try:
            files.makedirs(model_dir)
            check = stack.enter_context(take(path))
        except (OSError, NotImplementedError) as error:
            logger.warning(
                "Another training in model_dir %s at the same time would not be noticed: it cannot be leased (%s).",
                model_dir,
                files.reason(error),
            )
        yield check


@contextlib.contextmanager
def _locked_file(path: str) -> Iterator[None]:
    if fcntl is None:
        raise NotImplementedError("this system has no flock")
    process, descriptor = os.getpid(), _lock(path)
    try:
        with contextlib.suppress(OSError):
            # Without room for it the lock still counts.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _document(_holder()), 0)
        yield
    finally:
        # A forked process that comes here has no part in the lease.
        if os.getpid() == process:
            with contextlib.suppress(OSError):
                if _is_at(path, descriptor):
                    os.unlink(path)
            _close(descriptor)


def _lock(path: str) -> int:
    holder: dict[str, Any] = {}
    for _ in range(_TRIES):
        # It is truncated and written: a link in a directory that another user made must not lead to a file elsewhere.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        _locked.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that had it may have removed the file after it was opened here.
            if _is_at(path, descriptor):
                return descriptor
            _close(descriptor)
        except BlockingIOError:
            holder = _parsed(os.pread(descriptor, 4096, 0))
            _close(descriptor)
            if holder and not _is_gone(holder):
                raise _in_use(path, holder) from None
            time.sleep(_RETRY_SECS)
        except BaseException:
            _close(descriptor)
            raise
    raise _in_use(path, holder)


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _close(descriptor: int) -> None:
    _locked.discard(descriptor)
    os.close(descriptor)


def _close_all() -> None:
    for descriptor in list(_locked):
        _close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


@contextlib.contextmanager
def _object(path: str) -> Iterator[Check]:
    lease = ObjectLease(path)
    process, ended = os.getpid(), threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEW_SECS):
            # While the store cannot be reached, another process cannot take the lease over, either.
            with contextlib.suppress(Exception):
                lease.renew()

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield lease.check
    finally:
        # A forked process that comes here has no part in the lease.
        if os.getpid() == process:
            ended.set()
            # A store that does not answer must not keep training from ending.
            thread.join(_RENEW_SECS)
            lease.release()


class ObjectLease:
    """An object that names its holder, which alone could create it.

    Args:
        path: URL of the object.
        clock: Seconds that only go forward.
        sleep: Lets so many of them pass.

    Raises:
        ModelDirInUseError: Another process has it, and renews it.
        NotImplementedError: The store cannot create an object only where there is none.
    """

    def __init__(
        self,
        path: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._id = secrets.token_hex(8)
        self._holder = _holder()
        self._renewals = 0
        found, since = None, clock()
        while not files.create(path, self._content()):
            before, found = found, self._read()
            if not found:
                continue
            if found["lease"] in _own_leases or (before and before != found and before["lease"] == found["lease"]):
                raise _in_use(path, found)
            if _is_gone(found) or (found == before and clock() >= since + EXPIRES_SECS):
                files.remove_tree(path)
                continue
            if found != before:
                since = clock()
                logger.info(
                    "%s has leased %s; waiting %g s at most to see whether it still renews that lease.",
                    _described(found),
                    files.parent(path),
                    EXPIRES_SECS,
                )
            sleep(_LOOK_EVERY_SECS)
        _own_leases.add(self._id)

    def check(self) -> None:
        """Raise where another process has taken the lease over, as after this one was stopped for long."""
        with contextlib.suppress(OSError):
            if (found := self._read()) and found["lease"] != self._id:
                raise _in_use(self._path, found)

    def renew(self) -> None:
        """Show that this process still runs."""
        self.check()
        self._renewals += 1
        files.write_atomic(self._path, self._content())

    def release(self) -> None:
        """Remove the object, unless it is another process's by now."""
        _own_leases.discard(self._id)
        with contextlib.suppress(OSError):
            if self._read().get("lease") == self._id:
                files.remove_tree(self._path)

    def _content(self) -> bytes:
        return _document({**self._holder, "lease": self._id, "renewals": self._renewals})

    def _read(self) -> dict[str, Any]:
        """The holder; empty where there is none."""
        try:
            found = _parsed(files.read_bytes(self._path))
        except FileNotFoundError:
            return {}
        return {"lease": None, **found}


def _holder() -> dict[str, Any]:
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    program = sys.argv[0] or "python"
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "program": program, "place": _place()}


def _document(holder: dict[str, Any]) -> bytes:
    return json.dumps(holder).encode() + b"\n"


def _place() -> str | None:
    """Name the running kernel and its numbering of processes, which differs between containers; None if unknown."""
    try:
        return f"{files.read_text('/proc/sys/kernel/random/boot_id').strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _parsed(content: bytes) -> dict[str, Any]:
    """The holder; empty where the content is of no use."""
    try:
        found = parse_json(content.decode())
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("pid"), int) else {}


def _is_gone(holder: dict[str, Any]) -> bool:
    """Return whether the holder is known to have ended: it was on this host, where no process has its number."""
    if holder.get("place") is None or holder["place"] != _place():
        return False
    if holder["pid"] == os.getpid():
        return "lease" in holder and holder["lease"] not in _own_leases
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _described(holder: dict[str, Any]) -> str:
    if "pid" not in holder:
        return "another process"
    return f"{holder.get('program')} (process {holder['pid']} on {holder.get('host')}, since {holder.get('since')})"


def _in_use(path: str, holder: dict[str, Any]) -> ModelDirInUseError:
    return ModelDirInUseError(
        f"model_dir {files.parent(path)} is in use: {_described(holder)} trains in it; let that end first, end it, or "
        "use another model_dir."
    )
