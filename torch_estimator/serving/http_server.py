"""uvicorn's server on a shared socket: accept fairly between processes, and shut down without failed requests.

uvicorn alone falls short in two places. A process that accepts takes all connections that wait, so that of 16
connections that arrive together one process gets 16 and its neighbour none. And a process that ends closes its idle
connections at once, just when a client may be sending the next request. Here a process takes one connection at a time
and leaves it to a process with fewer, and before it ends it answers for a moment with ``Connection: close``.

None of this costs anything in a request, except to a process that is about to end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, MutableMapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from torch_estimator.serving.scoreboard import NodeReport, Scoreboard
from torch_estimator.web.http import Application, Receive, Scope, Send

logger = logging.getLogger("torch_estimator")

# Time that a process leaves a new connection to one with fewer connections. It then takes it itself, because the other
# one may be busy for longer.
_YIELD_SECS = 0.002

# Connections that a process may have more than the one with the fewest before it leaves new ones to that one. With 0, a
# process would wait after each of several that arrive together until the other one has taken one.
_SLACK = 1

# Time in which a connection that is about to be closed may bring another request.
_LINGER_SECS = 1.0

# Time until the next attempt after the process had too many files open.
_RETRY_SECS = 1.0

# uvicorn calls `on_tick` ten times a second.
_TICKS_PER_BALANCE = 10

# A process hands connections to others only if it is at least this busy, as a part of one core.
_BUSY = 0.5

# Most connections that are accepted in one turn of the event loop.
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a process among those that share a socket.

    `slot` is its row on the board, and `parent` the id of the process that started them.
    """

    board: Scoreboard
    slot: int
    parent: int


class HttpServer(uvicorn.Server):
    """uvicorn's server on a socket that other processes may accept from, too; without others, `place` is None.

    SIGTERM and Ctrl-C end it. One process of several also ends on SIGUSR1, as `retire` says.

    `running` returns how many requests are not answered yet; `ready` is called when connections are taken.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        place: Place | None,
        *,
        running: Callable[[], int],
        ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._place = place
        self._running = running
        self._ready = ready
        self._is_retiring = False
        self._work = WorkClock()
        self._balanced = (time.monotonic(), 0.0)
        self._last_answer: LastAnswer | None = None
        if place is not None:
            # The parent may send a signal before uvicorn has set its handlers. And when uvicorn has ended, it raises
            # the signal once more, which by default would end the process before it has cleaned up.
            signal.signal(signal.SIGTERM, self.handle_exit)
            signal.signal(signal.SIGUSR1, lambda number, frame: self.retire())

    def retire(self) -> None:
        """Exit after all running requests are answered, however long that takes; other processes go on accepting."""
        self._is_retiring = True
        self.config.timeout_graceful_shutdown = None
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._last_answer = LastAnswer(self.config.loaded_app)
        self._acceptor = Acceptor(
            self._listener, self._connect, self._place, lambda: len(self.server_state.connections)
        )
        self._report(is_accepting=True)
        self._ready()

    async def _connect(self, connection: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(self._new_protocol, connection, ssl=self.config.ssl)

    def _new_protocol(self) -> asyncio.Protocol:
        made: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _connections(self) -> list[HttpToolsProtocol]:
        return [one for one in self.server_state.connections if isinstance(one, HttpToolsProtocol)]

    async def on_tick(self, counter: int) -> bool:
        if self._place is not None:
            if os.getppid() != self._place.parent:
                os._exit(1)
            self._report(is_accepting=not self.should_exit)
            if counter % _TICKS_PER_BALANCE == 0:
                self._balance(self._place)
        return await super().on_tick(counter)

    def _report(self, *, is_accepting: bool) -> None:
        if self._place is None:
            return
        state = self.server_state
        report = NodeReport(
            float(is_accepting), len(state.connections), state.total_requests, self._running(), self._work.secs()
        )
        self._place.board.write(self._place.slot, report)

    def _balance(self, place: Place) -> None:
        """Close some connections after their next answer if this process has more than its share, and much to do.

        Clients keep their connections. So a process that has been started because of the load, or again after it was
        killed, would otherwise have nothing to do.
        """
        (before, worked_before), now, worked = self._balanced, time.monotonic(), self._work.secs()
        self._balanced = now, worked
        nodes = place.board.accepting()
        if worked - worked_before < _BUSY * (now - before) or len(nodes) < 2:
            return
        own = self._connections()
        excess = len(own) - math.ceil(sum(node.connections for node in nodes) / len(nodes))
        last = self._last_answer
        excess -= sum(connection.app is last for connection in own)
        # One more or less is no imbalance, and would be passed to and fro.
        for connection in [one for one in own if one.app is not last][: excess if excess > 1 else 0]:
            connection.app = last

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if not self._is_retiring:
            # The whole server ends, so nobody else will take these.
            self._acceptor.accept_waiting()
        self._acceptor.close()
        self._report(is_accepting=False)
        # Connections that are being made take the application from here.
        self.config.loaded_app = self._last_answer
        for connection in self._connections():
            connection.app = self._last_answer
            if connection.cycle is not None:
                connection.cycle.keep_alive = False
        deadline = time.monotonic() + _LINGER_SECS
        while (self.server_state.connections or self._acceptor.is_connecting) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await super().shutdown()


class LastAnswer:
    """ASGI application that adds ``Connection: close`` to the answers of another one."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_close(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await self._application(scope, receive, send_and_close)


class Acceptor:
    """Accepts connections from a listening socket; `count` returns how many are open in this process."""

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[socket.socket], Coroutine[Any, Any, None]],
        place: Place | None,
        count: Callable[[], int],
    ) -> None:
        self._listener = listener
        self._connect = connect
        self._place = place
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._loop.add_reader(listener, self._on_readable)

    @property
    def is_connecting(self) -> bool:
        """Whether a connection is being set up, which with TLS takes a moment."""
        return bool(self._connecting)

    def accept_waiting(self) -> None:
        """Take all connections that wait."""
        while self._accept():
            pass

    def close(self) -> None:
        """Take no more connections. Those that wait are left to other processes, if there are any."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _on_readable(self) -> None:
        for _ in range(_AT_ONCE):
            if self._is_others_turn():
                self._resume_after(_YIELD_SECS)
                return
            if not self._accept():
                return

    def _is_others_turn(self) -> bool:
        """Return whether another process has clearly fewer connections."""
        if self._place is None:
            return False
        fewest = self._place.board.fewest_connections_beside(self._place.slot)
        return fewest is not None and self._open > fewest + _SLACK

    @property
    def _open(self) -> int:
        return self._count() + len(self._connecting)

    def _resume_after(self, secs: float) -> None:
        def resume() -> None:
            self._pause = None
            self._loop.add_reader(self._listener, self._on_readable)
            if secs == _YIELD_SECS:
                self._accept()

        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(secs, resume)

    def _accept(self) -> bool:
        """Take one connection; return whether there may be another one."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                # The client has gone already.
                return True
            if self._pause is None:
                logger.error("No connection can be accepted (%s); trying again in %g s.", error.strerror, _RETRY_SECS)
                self._resume_after(_RETRY_SECS)
            return False
        connection.setblocking(False)
        task = self._loop.create_task(self._set_up(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        if self._place is not None:
            self._place.board.write_connections(self._place.slot, self._open)
        return True

    async def _set_up(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._connect(connection)
        except OSError as error:
            # The client has gone, or does not speak TLS.
            logger.debug("A connection was not set up: %s", error)
            connection.close()


class WorkClock:
    """Clock of the time that this process has used a core, or has waited for one.

    Waiting counts because on a machine that others use as well, a server gets only a part of a core and still has too
    much to do.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        try:
            self._file = os.open("/proc/self/schedstat", os.O_RDONLY)
            self.secs()
        except (OSError, ValueError, IndexError):
            # Only Linux has it, and not every container shows it. Then count the work alone.
            self._file = None

    def secs(self) -> float:
        """Return the seconds since the start of the process."""
        worked = time.process_time()
        if self._file is not None:
            # The second number is how long the main thread, which runs the event loop, has waited, in nanoseconds.
            worked += int(os.pread(self._file, 100, 0).split()[1]) / 1e9
        return worked
