"""The parent of several processes that serve: starts them, follows the load, and replaces those that die.

The parent holds the listening socket, and every node accepts from it. With no node at all a connection waits in the
kernel's queue, so no request is refused while a node starts. It costs little to leave the parent running: it imports
the standard library only, and without nodes it sleeps until there is a connection, or looks at the file of --config.
`run_in_parent` replaces the process of the command line, which has imported more.

A node ends in steps. It takes no more connections, answers what its connections still bring for a moment, closes them
when they are silent, and exits. Whatever arrives meanwhile waits in the kernel's queue for another node.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from torch_estimator.errors import INTERRUPTED
from torch_estimator.processes.child import Child, signal_name
from torch_estimator.processes.events import Events
from torch_estimator.processes.restarts import Restarts
from torch_estimator.runs.state_file import StateFile
from torch_estimator.serving.options import ServingOptions
from torch_estimator.serving.reload import Command, has_terminal
from torch_estimator.serving.scoreboard import BOARD_FILE, COMMAND_FILE, SETTINGS_FILE, Scoreboard

logger = logging.getLogger("torch_estimator")

_LOOK_SECS = 0.5

# A node that has lived for this many seconds does not count as one that dies right after its start.
_LONG_SECS = 5.0

# Most seconds until a node that dies again and again is started again.
_LONGEST_PAUSE_SECS = 30.0

# Seconds beyond ``drain_secs`` until a node that does not end is killed.
_KILL_SECS = 5.0


def run_in_parent(options: ServingOptions, command: Command, listener: socket.socket, sentence: str) -> NoReturn:
    """Replace this process with the parent.

    It takes over the listening socket, and prints `sentence` when the server is ready.
    """
    import tempfile

    directory = tempfile.mkdtemp(prefix="torch-estimator-serve-")
    with open(os.path.join(directory, SETTINGS_FILE), "w", encoding="utf-8") as file:
        file.write(options.to_json())
    StateFile(os.path.join(directory, COMMAND_FILE), Command).write(command)
    os.set_inheritable(listener.fileno(), True)
    sys.stdout.flush()
    program = _python("torch_estimator.serving.nodes", str(listener.fileno()), directory, sentence)
    os.execv(program[0], program)


def _python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this interpreter."""
    # -m puts the current directory in front of the search path, where a file of the user could hide a module. Keep it
    # out unless it is there already.
    safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
    return [sys.executable, *safe, "-m", module, *arguments]


@dataclass(slots=True)
class Scaling:
    """How many nodes the load needs, from `least` to `most`.

    A node is started when the running ones use most of a core each, and ended when fewer would have been enough for
    `idle_secs`. In between is a gap, so that a steady load does not start and end nodes in turn.

    >>> scaling = Scaling(least=0, most=2, idle_secs=60.0)
    >>> scaling.restart(0.0)
    >>> [scaling.wanted(at, 1, busy_cores=0.9, has_requests=True, has_backlog=False) for at in (0.5, 1.0)]
    [1, 2]
    >>> [scaling.wanted(at, 2, busy_cores=0.1, has_requests=True, has_backlog=False) for at in (2.0, 62.0)]
    [2, 1]
    >>> scaling.wanted(122.0, 1, busy_cores=0.0, has_requests=False, has_backlog=False)
    0
    """

    least: int
    most: int
    idle_secs: float
    _enough_since: list[float] = field(default_factory=list)
    _full_looks: int = 0

    # Parts of a core per node.
    _FULL = 0.7
    _ENOUGH = 0.4
    _FULL_LOOKS = 2

    def restart(self, now: float) -> None:
        """Forget the load so far."""
        self._enough_since = [now] * (self.most + 1)
        self._full_looks = 0

    def wanted(self, now: float, nodes: int, *, busy_cores: float, has_requests: bool, has_backlog: bool) -> int:
        """Return how many nodes there should be at the time `now`, in seconds, when there are `nodes`.

        `busy_cores` are the cores that they have used, or waited for, since the last call, and `has_requests` says
        whether they had any request since then. `has_backlog` says whether connections wait to be accepted.
        """
        for number in range(self.most + 1):
            if busy_cores > self._ENOUGH * number if number else has_requests or has_backlog:
                self._enough_since[number] = now
        is_full = busy_cores >= self._FULL * nodes or has_backlog
        self._full_looks = self._full_looks + 1 if is_full else 0
        if self._full_looks >= self._FULL_LOOKS and nodes < self.most:
            self.restart(now)
            return nodes + 1
        enough = (number for number in range(self.least, nodes) if now - self._enough_since[number] >= self.idle_secs)
        return next(enough, nodes)


@dataclass(slots=True)
class _Node:
    """A process that serves, its row of the scoreboard, and the report that was read there last."""

    slot: int
    child: Child
    # The process writes a line into this pipe when it is ready or cannot serve.
    pipe: int
    said: bytes = b""
    ready_at: float | None = None
    # Whether the process has been asked to end, or will be once it is ready.
    is_ending: bool = False
    looked_at: float = 0.0
    busy_secs: float = 0.0
    requests: float = 0.0

    def __str__(self) -> str:
        return f"node {self.slot + 1} (process {self.child.pid})"


class Parent:
    """Keeps as many nodes as the settings or the load ask for; calls `ready` once, when the server takes requests.

    `directory`, which the processes share, holds the settings; they are made of `command` again when its file changes.
    """

    def __init__(
        self,
        options: ServingOptions,
        command: Command,
        listener: socket.socket,
        directory: str,
        ready: Callable[[], None],
    ) -> None:
        self._options = options
        self._watch = command.watch(options.poll_secs)
        self._had_terminal = has_terminal()
        self._listener = listener
        self._directory = directory
        self._ready: Callable[[], None] | None = ready
        # Nodes that are ending keep their rows while others start.
        self._slots = range(2 * options.most_nodes)
        self._board = Scoreboard.create(os.path.join(directory, BOARD_FILE), len(self._slots))
        self._nodes: list[_Node] = []
        self._wanted = options.least_nodes
        self._scaling = Scaling(options.least_nodes, options.most_nodes, options.idle_secs)
        self._restarts = Restarts(longest_pause_secs=_LONGEST_PAUSE_SECS, forget_secs=_LONG_SECS)
        self._start_at = 0.0
        self._look_at = 0.0
        self._was_ready = False
        self._kill_at: float | None = None
        self._status = 0
        self._events = Events()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._events, selectors.EVENT_READ)

    def run(self) -> int:
        """Run nodes until a signal comes; return the exit status.

        The status is 2 if the models cannot be served at all, 1 if the first node has failed, 0 if SIGTERM came and
        everything was answered, and otherwise the negative number of the signal that ended the server.
        """
        self._listener.setblocking(False)
        with self._events.on_signals(self._handle_signal):
            self._watch.start(self._read_again)
            self._run()
        return self._status

    def _run(self) -> None:
        while self._kill_at is None or self._nodes:
            now = time.monotonic()
            if self._kill_at is None:
                self._measure_load(now)
                self._start_missing(now)
                self._report_ready()
            elif now >= self._kill_at:
                self._kill_all()
            self._watch_listener()
            for key, _ in self._selector.select(self._sleep_secs(time.monotonic())):
                if key.fileobj is self._listener:
                    self._wanted = 1
                    logger.info("A connection has come, and no node is there to take it.")
                elif key.fileobj is not self._events:
                    self._read_pipe(key.data)
            while self._events.handle_one():
                pass

    def close(self) -> None:
        """Remove the directory."""
        # A child that reads the settings may be writing there still; it ends with this process.
        shutil.rmtree(self._directory, ignore_errors=True)

    def _read_again(self) -> None:
        """Read the file of --config in a child. The thread that calls this lives longer than the child."""
        Child(_python("torch_estimator.serving.reload", self._directory), os.environ).wait()

    def _active(self) -> list[_Node]:
        return [node for node in self._nodes if not node.is_ending]

    def _sleep_secs(self, now: float) -> float | None:
        """Return how long to wait for the next event; None waits for ever."""
        times = []
        if self._kill_at is not None:
            times.append(self._kill_at)
        elif len(self._active()) < self._wanted:
            times.append(self._start_at)
        if self._kill_at is None and self._options.follows_load and self._nodes:
            times.append(self._look_at)
        return max(0.0, min(times) - now) if times else None

    def _watch_listener(self) -> None:
        """Watch for connections only when no node does."""
        wants = self._kill_at is None and not self._active() and not self._wanted
        is_watched = self._listener in self._selector.get_map() if self._listener.fileno() >= 0 else False
        if wants and not is_watched:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif is_watched and not wants:
            self._selector.unregister(self._listener)

    def _start_missing(self, now: float) -> None:
        while len(self._active()) < self._wanted and now >= self._start_at:
            used = {node.slot for node in self._nodes}
            slot = next((one for one in self._slots if one not in used), None)
            if slot is None:
                # All rows belong to nodes that run or are ending. The next node that exits frees its row.
                return
            self._start(slot)

    def _start(self, slot: int) -> None:
        self._board.clear(slot)
        reads, writes = os.pipe()
        descriptor = self._listener.fileno()
        child = Child(
            _python(
                "torch_estimator.serving.worker", *map(str, (os.getpid(), slot, descriptor, writes)), self._directory
            ),
            {**os.environ, "PROMETHEUS_MULTIPROC_DIR": self._directory},
            pass_fds=(descriptor, writes),
        )
        os.close(writes)
        node = _Node(slot, child, reads)
        self._nodes.append(node)
        self._selector.register(reads, selectors.EVENT_READ, node)
        child.watch(lambda status: self._events.put(lambda: self._handle_exit(node, status)))

    def _read_pipe(self, node: _Node) -> None:
        """Read what a node says through its pipe."""
        said = os.read(node.pipe, 65536)
        node.said += said
        if said and not node.said.endswith(b"\n"):
            return
        self._selector.unregister(node.pipe)
        os.close(node.pipe)
        node.pipe = -1
        if node.said != b"ready\n":
            return
        node.ready_at = node.looked_at = time.monotonic()
        report = self._board.read(node.slot)
        node.busy_secs, node.requests = report.busy_secs, report.requests
        self._scaling.restart(node.ready_at)
        self._was_ready = True
        logger.info("%s is ready.", str(node).capitalize())
        if node.is_ending:
            node.child.send(signal.SIGTERM)

    def _report_ready(self) -> None:
        if self._ready is not None and sum(node.ready_at is not None for node in self._nodes) >= self._wanted:
            self._ready()
            self._ready = None

    def _measure_load(self, now: float) -> None:
        """Measure how busy the nodes are, and adjust how many are wanted."""
        active = self._active()
        if not (self._options.follows_load and active and now >= self._look_at):
            return
        self._look_at = now + _LOOK_SECS
        if len(active) != self._wanted or any(node.ready_at is None for node in active):
            return
        busy_cores, has_requests = 0.0, False
        for node in active:
            report = self._board.read(node.slot)
            busy_cores += max(0.0, report.busy_secs - node.busy_secs) / max(1e-3, now - node.looked_at)
            has_requests |= report.requests != node.requests or report.running > 0
            node.looked_at, node.busy_secs, node.requests = now, report.busy_secs, report.requests
        self._wanted = self._scaling.wanted(
            now, len(active), busy_cores=busy_cores, has_requests=has_requests, has_backlog=self._has_backlog()
        )
        if self._wanted > len(active):
            logger.info("%d %s busy; starting another.", len(active), "node is" if len(active) == 1 else "nodes are")
        for node in sorted(active, key=lambda one: self._board.read(one.slot).connections):
            if len(self._active()) > self._wanted:
                logger.info(
                    "%s has not been needed for %g s and ends.", str(node).capitalize(), self._options.idle_secs
                )
                node.is_ending = True
                node.child.send(signal.SIGUSR1)

    def _has_backlog(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            return bool(selector.select(0))

    def _handle_exit(self, node: _Node, status: int) -> None:
        if node.pipe >= 0:
            self._read_pipe(node)
        self._nodes.remove(node)
        self._board.clear(node.slot)
        self._remove_gauges(node.slot)
        if node.is_ending:
            self._log_end(node)
        else:
            self._replace(node, status)

    def _log_end(self, node: _Node) -> None:
        if self._kill_at is None:
            left = len(self._active())
            logger.info("%s has ended; %s.", str(node).capitalize(), f"{left} left" if left else _NONE_LEFT)

    def _replace(self, node: _Node, status: int) -> None:
        """Schedule the start of another node for one that has died, or end the server if that cannot help."""
        now = time.monotonic()
        problem = node.said.decode(errors="replace").strip() if node.ready_at is None else ""
        if status > 0 and not self._was_ready:
            # It would end the same way again.
            print(f"estimator: error: {problem or 'a process has failed, as said above.'}", file=sys.stderr)
            self._end(status)
            return
        pause = self._restarts.next_pause(0.0 if node.ready_at is None else now - node.ready_at)
        self._start_at = now + pause
        how = f"was killed by {signal_name(status)}" if status < 0 else f"has ended with status {status}"
        when = f"in {pause:g} s" if pause else "now"
        logger.error(
            "%s %s%s; starting another %s.", str(node).capitalize(), how, f" ({problem})" * bool(problem), when
        )

    def _remove_gauges(self, slot: int) -> None:
        """Remove the gauges of a node that has died, as prometheus_client's ``mark_process_dead`` does."""
        for entry in os.scandir(self._directory):
            if entry.name.startswith("gauge_live") and entry.name.endswith(f"_{slot}.db"):
                os.unlink(entry.path)

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGHUP and has_terminal() == self._had_terminal:
            self._watch.wake()
        elif self._kill_at is None:
            logger.info("The server answers what it has, and ends; a second signal ends it at once.")
            self._end(0 if number == signal.SIGTERM else -number)
        else:
            self._kill_all()

    def _end(self, status: int) -> None:
        """Shut down all nodes; the parent exits after the last one."""
        self._status = status
        self._kill_at = time.monotonic() + self._options.drain_secs + _KILL_SECS
        for node in self._nodes:
            # One that is not ready yet is asked later: it may be there for a connection that waits.
            if node.ready_at is not None and not node.is_ending:
                node.child.send(signal.SIGTERM)
            node.is_ending = True
        self._watch_listener()
        self._listener.close()

    def _kill_all(self) -> None:
        self._status = self._status or -signal.SIGTERM
        for node in self._nodes:
            node.child.send(signal.SIGKILL)
        self._kill_at = time.monotonic() + _KILL_SECS


_NONE_LEFT = "none is left until the next connection"


def main(arguments: list[str]) -> int:
    """Run the parent.

    The arguments are the number of the inherited socket, the directory with the settings, and a sentence to print when
    the server is ready.
    """
    descriptor, directory, sentence = arguments
    with open(os.path.join(directory, SETTINGS_FILE), encoding="utf-8") as file:
        options = ServingOptions.from_json(file.read())
    command = StateFile(os.path.join(directory, COMMAND_FILE), Command).read()
    assert command is not None
    listener = socket.socket(fileno=int(descriptor))
    parent = Parent(options, command, listener, directory, lambda: print(sentence, flush=True))
    try:
        status = parent.run()
    finally:
        parent.close()
    if status == -signal.SIGINT:
        return INTERRUPTED
    if status < 0:
        # End by the same signal, as a single process would, so that its sender sees the effect.
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
