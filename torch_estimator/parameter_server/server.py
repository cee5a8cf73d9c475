"""A parameter server: a loop that receives requests of workers and replies to them, until training ends.

    serve                  receive a request, or nothing for half a second
      _reply               reply to it, or hold it back
        _answer            refuse it if it is malformed, of another training, or of a process that was replaced
          _handle          what each kind of request does
      _check_periodically  look for workers that are gone
      _retry_held_back     try again to reply to requests that were held back

A server holds one training at a time, identified by its run id. The chief's START replaces that training by another
one, and later messages from processes of the replaced one are refused. A server that was restarted holds nothing, and
replies EMPTY until the chief has given it its parameters again.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, TypeVar

import zmq

from torch_estimator import activity, files
from torch_estimator.cluster.addresses import LOOPBACK, split_address
from torch_estimator.cluster.task import WAIT_SECS
from torch_estimator.errors import RESTART_ME, CheckpointError, ClusterError
from torch_estimator.parameter_server.encryption import Key, Refusal
from torch_estimator.parameter_server.large_table import check_room
from torch_estimator.parameter_server.membership import IdleWatch
from torch_estimator.parameter_server.plan import PACKAGE, Start
from torch_estimator.parameter_server.protocol import (
    OTHER_RUN,
    PULLS,
    SAVED,
    STEP,
    STOP_ALL,
    STOPPING,
    VARIABLE,
    ExchangeBuffer,
    Header,
    Kind,
    join_frames,
    pack_arrays,
    pack_json,
    pack_parameters,
    unpack_arrays,
    unpack_exchange,
)
from torch_estimator.parameter_server.router import WAIT_MS, Router
from torch_estimator.parameter_server.run import MOST_UNDER_WAY, OtherRunError, Run
from torch_estimator.parameter_server.run_id import MODEL_DIR
from torch_estimator.parameter_server.shard import NotFiniteGradientError, Shard
from torch_estimator.versions import version_and_sources

logger = logging.getLogger("torch_estimator")

# If two periodic checks are further apart than this, this process itself was stopped in between.
_MOST_SECS_BETWEEN_CHECKS = 2.0

# Maximum number of waiting requests per worker. A worker has at most MOST_UNDER_WAY exchanges without a reply. It sends
# all of these once more if it has lost its connection.
_MOST_HELD_BACK = 2 * MOST_UNDER_WAY

_WARN_EVERY_SECS = 60.0

# After SIGTERM the server keeps serving for at most this long, so that the chief can save the server's parameters.
_STAY_SECS = 20.0
# After the chief has read the parameters, stay only this long: the chief may still be reading from other servers.
_STAY_AFTER_READ_SECS = 5.0

# After END the server keeps replying for at most this long to workers that do not know yet that training is over.
_LINGER_SECS = 10.0

_Made = TypeVar("_Made")

Recording = Callable[[Mapping[str, Any], int], AbstractContextManager[None]]


class ParameterServer:
    """A parameter server. The constructor binds its address; `serve` replies to the requests of workers.

    It waits ``wait_secs`` for the chief's parameters, and for workers to come back. `is_over` says whether the training
    had ended before this server started; it is called while the server waits for the chief. With `serves_until_sigterm`
    it waits for another training when one has ended, until `shut_down` is called. `recording` gets what the chief says
    about its training, and the run id; the training is served within what it returns. `may_write` gets a model
    directory and a run id, and says whether this server may write rows of large tables there.
    """

    def __init__(
        self,
        name: str,
        address: str,
        key: Key | None = None,
        *,
        wait_secs: float = WAIT_SECS,
        serves_until_sigterm: bool = False,
        is_over: Callable[[], bool] = lambda: False,
        recording: Recording = lambda about, run_id: nullcontext(),
        may_write: Callable[[str, int], bool] = lambda model_dir, run_id: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._key = key
        self._serves_until_sigterm = serves_until_sigterm
        self._is_over_before = is_over
        self._recording = recording
        self._may_write = may_write
        self._recorded = ExitStack()
        self._clock = clock
        self._router = Router(name, address, key)
        # The training that the server holds. It is kept after END, to reply to workers that do not know of the end yet.
        self._run: Run | None = None
        self._started_by: tuple[int, int] | None = None
        self._ended_at: float | None = None
        self._has_served = False
        self._watch = IdleWatch(name, address, wait_secs, clock)
        # By worker, requests whose replies have to wait; see `_reply`.
        self._held_back: dict[int, deque[tuple[Any, list[Any]]]] = defaultdict(lambda: deque(maxlen=_MOST_HELD_BACK))
        self._buffer = ExchangeBuffer()
        self._stop_signal = "SIGTERM"
        self._stops_at: float | None = None
        self._checked_at = 0.0
        self._warned_at: dict[Refusal | str, float] = {}
        where = "" if split_address(address, name)[0] in LOOPBACK else " (all interfaces, *)"
        peers = f" for peers with the key in {key.path}" if key else ""
        logger.info("%s listens on %s%s%s.", name, address, where, peers)

    def serve(self) -> None:
        """Reply to requests until training has ended and all workers have left.

        Raise SystemExit when the server has to shut down, and no worker needs it any more.
        """
        while True:
            with activity.OTHERS:
                message = self._router.receive()
            if message:
                self._reply(*message)
            self._check_periodically()
            self._retry_held_back()
            if self._ended_at is not None:
                is_late = self._clock() > self._ended_at + _LINGER_SECS
                if self._is_needed() and not is_late and self._stops_at is None:
                    continue
                logger.info("%s ends: training is over.", self._name)
                activity.note_end("training is over")
                self._recorded.close()
                if not self._serves_until_sigterm:
                    return
                self._run, self._ended_at, self._has_served = None, None, True
                self._held_back.clear()
            elif self._stops_at is not None and (not self._is_needed() or self._clock() >= self._stops_at):
                how_to_go_on = "" if self._has_served and self._run is None else "; start again to go on"
                logger.info("%s: shutting down on %s%s.", self._name, self._stop_signal, how_to_go_on)
                raise SystemExit(RESTART_ME)

    def shut_down(self, stop_signal: str = "SIGTERM") -> None:
        """Make `serve` end once the chief has saved the parameters or no worker is left, at the latest after 20 s."""
        self._stop_signal = stop_signal
        if self._stops_at is None:
            self._stops_at = self._clock() + _STAY_SECS
            # The signal may be repeated more often than twice a second.
            self._router.shorten_waits()

    def looked_at(self) -> float:
        """Return the time on the server's clock of its last look for workers that are gone, twice a second."""
        return self._checked_at

    def step(self) -> int | None:
        """Return the global step that this server has counted; None if it holds no training."""
        run = self._run
        return None if run is None else run.step

    def close(self) -> None:
        """Close the server's socket, so that another process can use its address."""
        self._recorded.close()
        self._router.close()

    def _reply(self, identity: Any, frames: list[Any], *, again: bool = False) -> None:
        """Reply to a request. If the reply has to wait, store the request (hold it back) to try again later.

        A request is held back for one of two reasons: its worker is too far ahead of the slowest worker, or has not
        read earlier replies, so that ZeroMQ's queue for the worker is full. For the second reason only exchanges are
        held back, because they may be pipelined. Workers send all other requests one at a time. A full queue is then a
        fault of the peer, and the reply is dropped to limit the server's memory. Requests that are held back are tried
        again after each message and every half second.
        """
        reply = self._answer(frames, identity, again=again)
        if reply is None or (self._router.send(identity, reply) == zmq.EAGAIN and _is_exchange(frames, reply)):
            self._held_back[Header.unpack(frames[0]).worker].append((identity, frames))

    def _retry_held_back(self) -> None:
        if not self._held_back or self._run is None:
            return
        held_back = [request for requests in self._held_back.values() for request in requests]
        self._held_back.clear()
        for identity, frames in held_back:
            # Gradients in the request are not applied twice: their number was stored. Only the reply is missing.
            header = Header.unpack(frames[0])
            if self._run.members.keep_waiting(header.worker, header.incarnation):
                self._reply(identity, frames, again=True)

    def _answer(self, frames: list[Any], identity: Any = None, *, again: bool = False) -> list[Any] | None:
        """Return the reply to a request; None if the reply must wait until slower workers have caught up.

        No request may end the server. If anything goes wrong, the reply is a refusal, and the server goes on. `again`
        says whether the request was held back before.
        """
        try:
            header = Header.unpack(frames[0])
            if header.kind is Kind.WRITTEN:
                return self._progress_of_writing(header)
            if self._run is not None and header.kind is not Kind.START:
                self._run.check(header)
            reply = self._handle(header, frames, identity)
            if not again and self._run is not None and self._run.is_of(header):
                self._run.members.note_message(header.worker, identity)
            return reply
        except NotFiniteGradientError as error:
            return self._refuse(error, **{VARIABLE: error.variable, STEP: header.step + 1})
        except OtherRunError as error:
            return self._refuse(error, **{OTHER_RUN: True})
        except ClusterError as error:
            return self._refuse(error)
        # Refuse requests that fail in any other way, such as a request that needs more memory than there is.
        except Exception as error:
            kind = type(error).__name__
            place = traceback.extract_tb(error.__traceback__)[-1]
            sentence = f"{self._name} cannot answer a message ({kind}), and goes on without."
            self._warn(f"{kind} {place.filename} {place.lineno}", sentence, error)
            return pack_json(Header(Kind.REFUSED, 0), {"reason": f"It cannot answer ({kind}); see its log."})

    def _refuse(self, error: ClusterError, **content: Any) -> list[Any]:
        # Remove numbers from the key of the warning: refusals that differ only in numbers are logged once a minute.
        self._warn(re.sub(r"\d+", "", str(error)), f"{self._name} has refused a message: {error}")
        return pack_json(Header(Kind.REFUSED, 0), {"reason": str(error), **content})

    def _handle(self, header: Header, frames: list[Any], identity: Any) -> list[Any] | None:
        run, worker = self._run, header.worker
        match header.kind:
            case Kind.HELLO:
                if run is not None and run.is_of(header):
                    run.members.join(worker)
                content = {} if run is None else run.greeting(worker)
                return pack_json(self._header(header, self._kind_for(worker)), content)
            case Kind.STATUS:
                if run is not None and run.is_of(header):
                    run.staleness.forget(worker)
                    if self._stops_at is not None and header.flags & SAVED:
                        # The checkpoint is saved, so end now. Later steps would be lost with this server.
                        self._stops_at = self._clock()
                status = {} if run is None else run.members.status()
                return pack_json(self._header(header, self._kind_for(worker)), status)
            case Kind.START:
                if worker:
                    raise ClusterError(
                        f"Only the chief gives {self._name} what it holds, and process {worker + 1} of the "
                        "cluster tried to; see whether two processes have the same TF_CONFIG."
                    )
                # The chief sends START again where the connection broke before the reply came.
                if run is None or (header.incarnation, header.number) != self._started_by:
                    self._start(header.run_id, join_frames(frames))
                    self._started_by = header.incarnation, header.number
                return [self._header(header, Kind.OK).pack()]
            case Kind.END:
                if run is not None:
                    run.members.leave(worker)
                self._ended_at = self._ended_at or self._clock()
                return [self._header(header, Kind.OK).pack()]
            case Kind.EXCHANGE | Kind.STATE | Kind.WRITE | Kind.CURSOR | Kind.LEAVE if run is None:
                return [self._header(header, Kind.EMPTY).pack()]
            case Kind.EXCHANGE if run is not None:
                push, pull = unpack_exchange(self._buffer.join(frames, run.plan), run.plan, header.flags)
                kind = run.exchange(header, push, identity, over=self._is_over())
                if kind is None:
                    return None
                reply = self._header(header, kind)
                if kind is Kind.OVER or not header.flags & PULLS:
                    return [reply.pack()]
                return [pack_parameters(reply, *run.shard.parameters(pull))]
            case Kind.STATE if run is not None:
                if self._stops_at is not None and not run.shard.has_large_tables:
                    # The chief has this server's parameters now. Stay a little longer: the chief may still be reading
                    # the parameters of other servers that are shutting down.
                    self._stops_at = min(self._stops_at, self._clock() + _STAY_AFTER_READ_SECS)
                return pack_arrays(self._header(header, Kind.OK), {"cursors": run.cursors()}, run.shard.snapshot())
            case Kind.WRITE if run is not None:
                content, _ = unpack_arrays(join_frames(frames))
                model_dir = str(run.about.get(MODEL_DIR))
                self._check_may_write(model_dir, run.run_id)
                directory = files.join(model_dir, os.path.basename(str(content["directory"])))
                run.writing = run.shard.write_rows(directory, int(content["server"]))
                return [self._header(header, Kind.OK).pack()]
            case Kind.CURSOR if run is not None:
                run.report_cursor(worker, unpack_arrays(join_frames(frames))[0])
                return [self._header(header, Kind.OK).pack()]
            case Kind.LEAVE if run is not None:
                run.members.leave(worker)
                run.stop_requested = run.stop_requested or bool(header.flags & STOP_ALL)
                return [self._header(header, Kind.OK).pack()]
        raise ClusterError(f"A process of the cluster has sent a reply, {header.kind.name}, in place of a request.")

    def _progress_of_writing(self, header: Header) -> list[Any]:
        """Return the reply to WRITTEN: the files with rows of large tables, or EMPTY if nothing is being written."""
        run = self._run
        if run is None or not run.is_of(header) or run.writing is None:
            return [self._header(header, Kind.EMPTY).pack()]
        return pack_json(self._header(header, Kind.OK), run.writing.progress())

    def _check_may_write(self, model_dir: str, run_id: int) -> None:
        if not self._may_write(model_dir, run_id):
            raise ClusterError(
                f"{self._name} must write its rows of large tables into {model_dir}, and does not see the chief's file "
                "there; give it the same model_dir on a shared file system, where it may write."
            )

    def _start(self, run_id: int, frames: list[Any]) -> None:
        start = _unpacked(frames, lambda content, _: Start.from_json(content))
        own, chiefs = version_and_sources(), start.about.get(PACKAGE, version_and_sources())
        if chiefs != own:
            raise ClusterError(
                f"the chief has torch-estimator {chiefs}, and {self._name} has {own}; install the same version "
                "everywhere."
            )
        before = None if self._run is None else self._run.run_id
        if any(table.large is not None for table in start.plan.tables):
            model_dir = str(start.about.get(MODEL_DIR))
            self._check_may_write(model_dir, run_id)
            # There is no memory for two large tables.
            self._run = None
            check_room(self._name, start.plan, model_dir, is_resumed=bool(start.sources))
        shard = _unpacked(frames, lambda _, arrays: Shard(start.plan, arrays, start.sources))
        if before not in (None, run_id) and self._ended_at is None:
            logger.warning("%s drops its training: the chief of another training has connected.", self._name)
        if before != run_id:
            self._recorded.close()
            self._recorded.enter_context(self._recording(start.about, run_id))
        self._run, self._ended_at = Run(self._name, run_id, start, shard, self._clock), None
        # Drop the requests of the previous training, whose ranks and parameters may differ.
        self._held_back.clear()
        logger.info("%s holds %d numbers, from global step %d on.", self._name, shard.size(), start.step)

    def _is_needed(self) -> bool:
        """Return whether any reachable worker still trains with this server."""
        return self._run is not None and bool(self._run.members.reachable())

    def _is_over(self) -> bool:
        return self._ended_at is not None or (self._run is not None and self._run.is_over)

    def _kind_for(self, worker: int) -> Kind:
        """Return the type of a reply to a worker: OK if the server holds parameters to train with, otherwise EMPTY.

        After the last step, workers get EMPTY. The chief gets OK until END, because it must still save that step.
        """
        is_over = self._is_over() if worker else self._ended_at is not None
        return Kind.EMPTY if self._run is None or is_over else Kind.OK

    def _header(self, request: Header, kind: Kind) -> Header:
        flags = request.flags | (STOPPING if self._stops_at is not None and request.kind is Kind.EXCHANGE else 0)
        if self._run is None:
            return request._replace(kind=kind, flags=flags, step=0, run_id=0)
        step = 0 if kind is Kind.EMPTY else self._run.step
        return request._replace(kind=kind, flags=flags, step=step, run_id=self._run.run_id)

    def _check_periodically(self) -> None:
        """Twice a second, log failed handshakes, check time limits, and find silent or disconnected workers."""
        now = self._clock()
        if now <= self._checked_at + WAIT_MS / 1000:
            return
        run, was_stopped = self._run, self._checked_at and now > self._checked_at + _MOST_SECS_BETWEEN_CHECKS
        self._checked_at = now
        for why in self._router.failed_handshakes():
            if self._warn(why, why.for_server(self._name, self._key)):
                # ZeroMQ may report the same handshake once more, without the reason. Do not log the second report.
                self._warned_at[Refusal.GONE] = now
        if run is None:
            if self._ended_at is None and self._watch.check_wait_for_chief(
                now, self._is_over_before, logs=not self._has_served
            ):
                self._ended_at = now
            return
        if was_stopped:
            run.members.restart_silence_clocks()
        if self._stops_at is not None:
            # Log this here and not in the signal handler, which may have interrupted another write to the log.
            self._warn("stops", f"{self._name} stays, for {_STAY_SECS:g} s at most, until what it holds is saved.")
        if self._ended_at is None:
            self._watch.check_wait_for_workers(
                now,
                run.step,
                connections=len(self._router.connections),
                is_active=bool(run.members.active()),
                is_over=run.is_over,
            )
        gone = run.members.find_silent()
        if self._held_back or self._ended_at is not None or self._stops_at is not None:
            # Look for closed connections only if a held-back request, or the end of this server, waits for workers.
            gone |= run.members.find_disconnected(self._router.is_connected)
        for worker in gone:
            run.staleness.forget(worker)

    def _warn(self, about: Refusal | str, sentence: str, error: Exception | None = None) -> bool:
        """Log a warning, at most once a minute for the same `about`; return whether it was logged."""
        now = self._clock()
        if now <= self._warned_at.get(about, -math.inf) + _WARN_EVERY_SECS:
            return False
        self._warned_at[about] = now
        logger.warning("%s", sentence, exc_info=error)
        return True


def _unpacked(frames: Sequence[Any], make: Callable[[dict[str, Any], dict[str, Any]], _Made]) -> _Made:
    """Make something of the content and the arrays of the chief's START message."""
    content, arrays = unpack_arrays(frames)
    try:
        return make(content, arrays)
    except (CheckpointError, ClusterError) as error:
        raise ClusterError(str(error)) from error
    # A malformed message can raise any error. Refuse the message, and keep the training that the server held before.
    except Exception as error:
        raise ClusterError(f"A process of the cluster has sent a malformed START ({type(error).__name__}).") from error


def _is_exchange(request: list[Any], reply: list[Any]) -> bool:
    return Header.unpack(reply[0]).kind is Kind.OK and Header.unpack(request[0]).kind is Kind.EXCHANGE
