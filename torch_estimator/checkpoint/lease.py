"""Lease of a model directory: a lock that lets only one training at a time write into the directory.

Two trainings in one directory, as when a scheduler starts a job twice, would remove each other's unfinished checkpoints
and export different models. The process that saves checkpoints takes the lease; evaluators and other readers do not
need it.

- On a local path the lease is a lock on a file (flock). The kernel releases it when the process ends, in whatever way,
  so that a restarted job never has to wait.
- On an object store, which has no locks, the lease is an object that only one process can create. A background thread
  rewrites it regularly, and a lease that has not changed for `EXPIRES_SECS` may be taken over. The waiting process
  measures this time with its own clock, so clocks of different machines are never compared.
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
except ImportError:  # Windows has no fcntl.
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("torch_estimator")

NAME = "training.lease"

EXPIRES_SECS = 60.0
"""Seconds without a renewal after which another process may take over a lease on an object store."""

_RENEW_SECS = EXPIRES_SECS / 4
_POLL_SECS = 1.0
# A locked file that is empty or names an ended process was locked just now: its holder has not written its name yet.
# Locking is then tried `_TRIES` times, with a pause of `_RETRY_SECS` seconds after each try.
_TRIES, _RETRY_SECS = 100, 0.02

Check = Callable[[], None]
"""Function that raises `ModelDirInUseError` if this process has lost its lease."""

# File descriptors of the locks of this process. A forked child closes its copies, because they would keep the lock.
_locked: set[int] = set()
# Ids of the leases that this process holds on object stores.
# A lease with this process's pid but another id was left by an earlier process that had the same pid.
_own_leases: set[str] = set()


@contextlib.contextmanager
def leased(model_dir: str) -> Iterator[Check | None]:
    """Hold the lease of a model directory while the body runs.

    On an object store the lease can be lost, so a function to call before each save is yielded; else None. If the file
    system supports neither locks nor exclusive creation, a warning is logged and the body runs without a lease.

    Raises:
        ModelDirInUseError: Another training holds the lease.
    """
    path = files.join(model_dir, NAME)
    take = _file_lease if files.is_local(model_dir) else _object_lease
    with contextlib.ExitStack() as stack:
        check = None
        try:
            files.makedirs(model_dir)
            check = stack.enter_context(take(path))
        except (OSError, NotImplementedError) as error:
            # A model_dir that is a file is an error that follows.
            if not isinstance(error, FileExistsError):
                logger.warning(
                    "Another training in model_dir %s at the same time would not be noticed: it cannot be leased (%s).",
                    model_dir,
                    files.reason(error),
                )
        yield check


@contextlib.contextmanager
def _file_lease(path: str) -> Iterator[None]:
    if fcntl is None:
        raise NotImplementedError("this system has no flock")
    process, descriptor = os.getpid(), _lock(path)
    try:
        with contextlib.suppress(OSError):
            # Ignore errors, because the content is only for error messages of other processes.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _document(_this_process()), 0)
        yield
    finally:
        # A process that was forked in the body reaches this line too. Only its parent may release the lease.
        if os.getpid() == process:
            with contextlib.suppress(OSError):
                if _is_same_file(path, descriptor):
                    os.unlink(path)
            _close(descriptor)


def _lock(path: str) -> int:
    """Lock the lease file and return its descriptor.

    Raises:
        ModelDirInUseError: A running process holds the lock.
    """
    holder: dict[str, Any] = {}
    for _ in range(_TRIES):
        # Do not follow links (O_NOFOLLOW). The file will be truncated, and another user could put a link here.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        _locked.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file between `open` and `flock`. Then the lock has no effect.
            if _is_same_file(path, descriptor):
                return descriptor
            _close(descriptor)
        except BlockingIOError:
            holder = _parsed(os.pread(descriptor, 4096, 0))
            _close(descriptor)
            # Raise only if the holder that the file names is alive. A file that was locked just now is empty or
            # still names a killed process, so it is read again after a pause.
            if holder and not _has_ended(holder):
                raise _in_use(path, holder) from None
            time.sleep(_RETRY_SECS)
        except BaseException:
            _close(descriptor)
            raise
    raise _in_use(path, holder)


def _is_same_file(path: str, descriptor: int) -> bool:
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
def _object_lease(path: str) -> Iterator[Check]:
    lease = ObjectLease(path)
    process, ended = os.getpid(), threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEW_SECS):
            # Errors are ignored: while the object store is unreachable, no other process can take over the lease.
            with contextlib.suppress(Exception):
                lease.renew()

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield lease.check
    finally:
        # A process that was forked in the body reaches this line too. Only its parent may release the lease.
        if os.getpid() == process:
            ended.set()
            # The wait is limited, so that training can end even if the object store does not answer.
            thread.join(_RENEW_SECS)
            lease.release()


class ObjectLease:
    """Lease on an object store: it belongs to the process that created the object.

    The constructor waits until the lease is free, which takes `EXPIRES_SECS` if the holder was killed on another
    machine.

    Args:
        path: URL of the object.
        clock: Monotonic clock, in seconds.
        sleep: Function that waits for a number of seconds.

    Raises:
        ModelDirInUseError: Another process holds the lease and renews it.
        NotImplementedError: The store cannot create an object exclusively.
    """

    def __init__(
        self,
        path: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._id = secrets.token_hex(8)
        self._holder = _this_process()
        self._renewals = 0
        found: dict[str, Any] = {}
        since = clock()
        while not files.create(path, self._content()):
            before, found = found, self._read()
            if not found:
                continue
            was_renewed = bool(before) and before != found and before["lease"] == found["lease"]
            if found["lease"] in _own_leases or was_renewed:
                raise _in_use(path, found)
            if _has_ended(found) or (found == before and clock() >= since + EXPIRES_SECS):
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
            sleep(_POLL_SECS)
        _own_leases.add(self._id)

    def check(self) -> None:
        """Check that no other process has taken over the lease. That happens if this process was suspended for long.

        Raises:
            ModelDirInUseError: Another process holds the lease.
        """
        with contextlib.suppress(OSError):
            if (found := self._read()) and found["lease"] != self._id:
                raise _in_use(self._path, found)

    def renew(self) -> None:
        """Rewrite the lease object with a higher count, so that other processes see that this process is alive.

        Raises:
            ModelDirInUseError: Another process holds the lease.
        """
        self.check()
        self._renewals += 1
        files.write_atomic(self._path, self._content())

    def release(self) -> None:
        """Release the lease by removing the object, unless another process has taken over the lease."""
        _own_leases.discard(self._id)
        with contextlib.suppress(OSError):
            if self._read().get("lease") == self._id:
                files.remove_tree(self._path)

    def _content(self) -> bytes:
        return _document({**self._holder, "lease": self._id, "renewals": self._renewals})

    def _read(self) -> dict[str, Any]:
        """Return the description of the holder from the object, or an empty dict if there is no object."""
        try:
            found = _parsed(files.read_bytes(self._path))
        except FileNotFoundError:
            return {}
        return {"lease": None, **found}


def _this_process() -> dict[str, Any]:
    """Return a description of this process, to be written into its lease."""
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    program = sys.argv[0] or "python"
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "program": program, "place": _pid_space()}


def _document(holder: dict[str, Any]) -> bytes:
    return json.dumps(holder).encode() + b"\n"


def _parsed(content: bytes) -> dict[str, Any]:
    """Return the description of the holder from a lease's content, or an empty dict if the content is not valid."""
    try:
        found = parse_json(content.decode())
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("pid"), int) else {}


def _pid_space() -> str | None:
    """Return an id of the running kernel and of the pid namespace (each container has its own); None if unknown.

    Two leases with equal pids are of the same process only if their ids of the pid namespace are equal too.
    """
    try:
        return f"{files.read_text('/proc/sys/kernel/random/boot_id').strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _has_ended(holder: dict[str, Any]) -> bool:
    """Return whether the holder has certainly ended: it ran in this pid namespace, and its pid is not in use."""
    if holder.get("place") is None or holder["place"] != _pid_space():
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
