"""Locks: one writer at a time, where writers may be killed, forked, or on other machines.

- On a local path, `FileLock` is a lock on a file or a directory (flock). The kernel releases it when the process ends,
  in whatever way, so that nobody has to wait for a killed process.
- On an object store, which has no locks, `ObjectLock` is an object that only one process can create. A thread rewrites
  it regularly, and a lock that has not changed for `EXPIRES_SECS` may be taken over. The waiting process measures this
  time with its own clock, so clocks of different machines are never compared.
- Where neither is possible, both raise `NotImplementedError`. Callers log a warning and go on without a lock.

`held` chooses between the two, and describes the holder in the file or object, for the error messages of others. The
model directory (`lease`), the registry, exports, shards of batch prediction, and the caches of datasets and of compiled
code are locked with it; GPUs of jobs with a `FileLock`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch_estimator import files
from torch_estimator.errors import UserError
from torch_estimator.json_text import parse_json
from torch_estimator.runs.state_file import encoded, from_json

try:
    import fcntl
except ImportError:  # Windows has no fcntl.
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("torch_estimator")

EXPIRES_SECS = 60.0
"""Seconds without a renewal after which another process may take over a lock on an object store."""

_RENEW_SECS = EXPIRES_SECS / 4
_POLL_SECS = 1.0
_FILE_POLL_SECS = 0.005
# A locked file that is empty or names an ended process was locked just now: its holder has not written its name yet.
# The file is then read again for this many seconds.
_UNNAMED_SECS = 2.0

# Locks on files that this process holds. A forked child closes its copies, because they would keep the locks.
_held_files: set[FileLock] = set()
# Ids of the locks that this process holds on object stores.
# A lock with this process's pid but another id was left by an earlier process that had the same pid.
_own_ids: set[str] = set()


class FileLock:
    """Lock on a local file or directory, until `release` or the end of this process. Forked processes do not hold it.

    A file is created if absent. Links are not followed, since another user could have put one there.

    Raise a BlockingIOError if another process, or another `FileLock` of this one, holds the lock, an OSError if the
    file cannot be opened, and a NotImplementedError if the system or the file system has no locks.
    """

    def __init__(self, path: str, *, directory: bool = False, wait_secs: float = 0.0, mode: int = 0o666) -> None:
        if fcntl is None:
            raise NotImplementedError("this system has no flock")
        self._path = path
        flags = os.O_RDONLY if directory else os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        ends = time.monotonic() + wait_secs
        while True:
            self._descriptor = os.open(path, flags, mode)
            # Add it before it is locked, because another thread may fork at any time.
            _held_files.add(self)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous holder may have removed the file between `open` and `flock`. Then the lock has no effect.
                if self._is_at_path():
                    return
                os.close(self.detach())
            except BlockingIOError:
                os.close(self.detach())
                if time.monotonic() >= ends:
                    raise
                time.sleep(_FILE_POLL_SECS)
            except OSError as error:
                os.close(self.detach())
                raise NotImplementedError(files.reason(error)) from error

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def write(self, content: bytes) -> None:
        """Replace the content of the locked file."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    def detach(self) -> int:
        """Return the descriptor of the file. Forked processes then hold the lock, too, until all have closed it."""
        _held_files.discard(self)
        return self._descriptor

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, and remove the file if asked to. Do nothing if this process does not hold the lock."""
        if self not in _held_files:
            return
        if remove:
            with contextlib.suppress(OSError):
                if self._is_at_path():
                    os.unlink(self._path)
        os.close(self.detach())

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False


def _close_all() -> None:
    for lock in list(_held_files):
        os.close(lock.detach())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Description of a process that holds a lock; without a `pid` if it cannot be read.

    `place` is the id of the running kernel and of the pid namespace (each container has its own), or None if unknown.
    Two processes with equal pids are the same only if their places are equal, too. `lease` is the id of a lock on an
    object store, and `renewals` how often that was renewed.
    """

    pid: int | None = None
    host: str | None = None
    since: str | None = None
    program: str | None = None
    place: str | None = None
    lease: str | None = None
    renewals: int = 0

    @classmethod
    def this_process(cls) -> Holder:
        """Return the description of this process."""
        since = time.strftime("%Y-%m-%d %H:%M:%S %z")
        program = sys.argv[0] or "python"
        return cls(pid=os.getpid(), host=socket.gethostname(), since=since, program=program, place=_place())

    @classmethod
    def read(cls, path: str) -> Holder:
        """Return the holder that a file names. A description that cannot be read does not make the lock free."""
        with contextlib.suppress(ValueError):
            holder: Holder = from_json(cls, parse_json(files.read_text(path)))
            return holder
        return cls()

    def __str__(self) -> str:
        if self.pid is None:
            return "another process"
        return f"{self.program} (process {self.pid} on {self.host}, since {self.since})"

    def has_ended(self) -> bool:
        """Return whether the holder has certainly ended: it ran in this pid namespace, and its pid is not in use.

        A process that has ended stays a zombie, with its pid, until its parent asks for its status.
        """
        if self.pid is None or self.place is None or self.place != _place():
            return False
        if self.pid == os.getpid():
            return self.lease is not None and self.lease not in _own_ids
        try:
            with contextlib.suppress(PermissionError):
                os.kill(self.pid, 0)
            state = files.read_text(f"/proc/{self.pid}/stat").rpartition(")")[2].split()[0]
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            return False
        return state in "ZX"


def kernel() -> str:
    """Return the id of the running kernel, which all containers on a machine share; '' if unknown."""
    try:
        return files.read_text("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return ""


def _place() -> str | None:
    try:
        return f"{kernel()} {os.readlink('/proc/self/ns/pid')}" if kernel() else None
    except OSError:
        return None


Check = Callable[[], None]
"""Function that raises an error if this process has lost its lock."""

InUse = Callable[[Holder], UserError]
"""Function that returns the error that another process holds a lock."""


@contextlib.contextmanager
def held(path: str, in_use: InUse) -> Iterator[Check | None]:
    """Hold the lock at a path or URL while the body runs, and describe the holder there. Remove it at the end.

    A lock on an object store can be lost, so a function to call before each write is yielded; else None.

    Raise the error of `in_use` if another process holds the lock, an OSError if the file cannot be opened, and a
    NotImplementedError if there are no locks.
    """
    if not files.is_local(path):
        with ObjectLock(path, in_use).renewed() as check:
            yield check
        return
    lock = _named_lock(path, in_use)
    try:
        yield None
    finally:
        lock.release(remove=True)


def _named_lock(path: str, in_use: InUse) -> FileLock:
    """Lock a file and write into it who holds it.

    While another process holds it, wait up to two seconds for the name of that process, then raise `in_use`.
    """
    ends = time.monotonic() + _UNNAMED_SECS
    while True:
        try:
            lock = FileLock(path)
        except BlockingIOError:
            holder = Holder()
            with contextlib.suppress(OSError):
                holder = Holder.read(path)
            if (holder.pid is not None and not holder.has_ended()) or time.monotonic() >= ends:
                raise in_use(holder) from None
            time.sleep(_FILE_POLL_SECS)
        else:
            # Ignore errors, because the content is only for error messages of other processes.
            with contextlib.suppress(OSError):
                lock.write(encoded(Holder.this_process()))
            return lock


class ObjectLock:
    """Lock on an object store: it belongs to the process that created the object.

    The constructor waits until the lock is free, which takes `EXPIRES_SECS` if the holder was killed on another
    machine. It and all methods raise the error of `in_use` if another process holds the lock, and it raises
    `NotImplementedError` if the store cannot create an object exclusively.
    """

    def __init__(
        self,
        path: str,
        in_use: InUse,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._in_use = in_use
        self._id = secrets.token_hex(8)
        self._holder = replace(Holder.this_process(), lease=self._id)
        # Add the id before the object exists: another thread would take the lock for one of an ended process.
        _own_ids.add(self._id)
        try:
            self._create(clock, sleep)
        except BaseException:
            _own_ids.discard(self._id)
            raise

    def check(self) -> None:
        """Raise `in_use` if another process has taken over the lock, as while this process was suspended for long.

        If the object is gone or cannot be read, nothing is known, and nothing is raised.
        """
        with contextlib.suppress(OSError):
            if (found := Holder.read(self._path)).lease != self._id:
                raise self._in_use(found)

    def renew(self) -> None:
        """Rewrite the object with a higher count, so that other processes see that this process is alive."""
        self.check()
        self._holder = replace(self._holder, renewals=self._holder.renewals + 1)
        files.write_atomic(self._path, encoded(self._holder))

    def release(self) -> None:
        """Release the lock by removing the object, unless another process has taken over the lock."""
        _own_ids.discard(self._id)
        with contextlib.suppress(OSError):
            if Holder.read(self._path).lease == self._id:
                files.remove_tree(self._path)

    @contextlib.contextmanager
    def renewed(self) -> Iterator[Check]:
        """Renew the lock regularly while the body runs, and release it at the end; yield `check`."""
        process, ended = os.getpid(), threading.Event()

        def renew() -> None:
            while not ended.wait(_RENEW_SECS):
                # Errors are ignored: while the object store is unreachable, no other process can take over the lock.
                with contextlib.suppress(Exception):
                    self.renew()

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield self.check
        finally:
            # A process that was forked in the body reaches this line too. Only its parent may release the lock.
            if os.getpid() == process:
                ended.set()
                # The wait is limited, so that the process can end even if the object store does not answer.
                thread.join(_RENEW_SECS)
                self.release()

    def _create(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        before: Holder | None = None
        since = clock()
        while not files.create(self._path, encoded(self._holder)):
            try:
                found = Holder.read(self._path)
            except FileNotFoundError:
                continue
            was_renewed = before is not None and before != found and before.lease == found.lease
            if found.lease in _own_ids or was_renewed:
                raise self._in_use(found)
            if found.has_ended() or (found == before and clock() >= since + EXPIRES_SECS):
                files.remove_tree(self._path)
                continue
            if found != before:
                since = clock()
                message = "%s has leased %s; waiting %g s at most to see whether it still renews that lease."
                logger.info(message, found, files.parent(self._path), EXPIRES_SECS)
            before = found
            sleep(_POLL_SECS)
