"""Heartbeat: each process publishes its progress, and logs which peers keep it waiting.

A collective returns only when every process of the group has called it. If one process hangs, all others hang with it,
and their logs would not say which process to look at. So a thread of each process writes two counters to the group's
store every few seconds:

    arrived <rank> = "<collectives entered> <heartbeats published>"

A process that has waited in a collective for longer than ``silence_secs`` reads its peers' counters and logs a warning
that names

1. every peer that has entered fewer collectives: the peer is still computing, or hangs in user code;
2. if all peers have entered this collective, every peer whose heartbeats have stopped: its whole process is suspended,
   and only a part of its message was sent;
3. the chief, if the store does not answer: the chief's process serves the store, so that process is suspended.

The warning is repeated after twice the time, and so on; when the collective completes, a line says that the peers are
back. The heartbeat only logs. It never ends a process, because a peer may be slow for a good reason, such as a long
evaluation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]  # documented

logger = logging.getLogger("torch_estimator")

_MAX_PERIOD_SECS = 2.0
# A peer counts as suspended if it has published nothing for this number of periods.
_MISSED_BEATS = 3
_JOIN_SECS = 1.0


class Heartbeat:
    """Threads that publish the progress of this process and log which peers keep it waiting in a collective.

    After `silence_secs` in a collective they log which peers this process waits for. `on_beat` is called after each
    heartbeat, in the heartbeat's thread.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: Sequence[int],
        name: Callable[[int], str],
        silence_secs: float,
        on_beat: Callable[[], None],
    ) -> None:
        self._store = store
        self._rank = rank
        self._peers = [peer for peer in ranks if peer != rank]
        self._on_beat = on_beat
        self._name = name
        self._silence_secs = silence_secs
        self._period_secs = min(silence_secs / 4, _MAX_PERIOD_SECS)
        self._collectives = self._beats = 0
        self._waiting_since: float | None = None
        self._request_sent_at: float | None = None
        # The next warning is due after this number of seconds in the collective; each warning doubles it.
        self._warn_after_secs = silence_secs
        # Peers that keep this process waiting in the current collective; None until they are known.
        self._late: Sequence[int] | None = None
        # Set once all peers have entered a collective: its number, the time when this was first seen, and the number of
        # heartbeats that each peer had published by then.
        self._complete: tuple[int, float, dict[int, int]] | None = None
        self._stopped = threading.Event()
        # Start a second thread, except on the chief, which serves the store itself. A request to the store of a
        # suspended chief blocks until the chief runs again. The second thread makes no requests, so it can notice that
        # the first one is blocked.
        targets = (self._publish, self._check_store_answers) if rank else (self._publish,)
        self._threads = [threading.Thread(target=target, name="heartbeat", daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def enter_collective(self) -> None:
        """Record that this process enters a collective, and begin to measure how long the process waits there."""
        self._collectives += 1
        self._warn_after_secs = self._silence_secs
        self._waiting_since = time.monotonic()

    def leave_collective(self) -> None:
        """Record that the collective has completed, so that this process no longer waits."""
        since, self._waiting_since = self._waiting_since, None
        if self._late and since is not None:
            secs, own = time.monotonic() - since, self._name(self._rank)
            for peer in self._late:
                logger.info("%s is back; %s had waited for it for %.0f s.", self._name(peer), own, secs)
        self._late = None

    def waits_for(self) -> list[str]:
        """Return the peers that this process waits for in a collective: those that are late, or all until it knows.

        Other threads may call this.
        """
        late = self._peers if self._late is None else self._late
        return [] if self._waiting_since is None else [self._name(peer) for peer in late]

    def stop(self) -> None:
        """End the threads. A thread that is blocked in a request to the store is left running."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(_JOIN_SECS)

    def _publish(self) -> None:
        try:
            store: Store | None = None
            while not self._stopped.wait(self._period_secs):
                self._request_sent_at = time.monotonic()
                # Open a separate connection for this thread: a request that waits for its answer blocks all other
                # requests on the same connection, including requests of other threads.
                store = store or _own_connection(self._store)
                self._beats += 1
                store.set(_key(self._rank), f"{self._collectives} {self._beats}")
                self._warn_of_late_peers(store)
                self._on_beat()
                self._request_sent_at = None
        except RuntimeError:
            # End the thread without an error: the chief and the store are gone. The collective that the main thread
            # calls fails, too, and raises an error.
            self._request_sent_at = None

    def _check_store_answers(self) -> None:
        while not self._stopped.wait(self._period_secs):
            sent_at, since = self._request_sent_at, self._overdue_since()
            if since and sent_at and time.monotonic() > sent_at + _MISSED_BEATS * self._period_secs:
                self._warn([0], since)

    def _warn_of_late_peers(self, store: Store) -> None:
        since = self._overdue_since()
        if since is None:
            return
        current, published = self._collectives, {peer: _published_by(store, peer) for peer in self._peers}
        late = [peer for peer, (entered, _) in published.items() if entered < current]
        if not late:
            late = self._stopped_peers(current, {peer: beats for peer, (_, beats) in published.items()})
        if late:
            self._warn(late, since)
        elif self._waiting_since == since:
            self._late = late

    def _stopped_peers(self, current: int, beats: dict[int, int]) -> list[int]:
        """Return peers without a heartbeat for `_MISSED_BEATS` periods after all have entered this collective."""
        now = time.monotonic()
        if self._complete is None or self._complete[0] != current:
            self._complete = current, now, beats
        _, seen_at, beats_then = self._complete
        if now <= seen_at + _MISSED_BEATS * self._period_secs:
            return []
        return [peer for peer in self._peers if beats[peer] == beats_then[peer]]

    def _overdue_since(self) -> float | None:
        """Return since when this process waits, if a warning is due; else None."""
        since = self._waiting_since
        return since if since is not None and time.monotonic() > since + self._warn_after_secs else None

    def _warn(self, late: Sequence[int], since: float) -> None:
        if self._waiting_since != since:
            return  # The collective has completed meanwhile.
        self._late, self._warn_after_secs = late, 2 * (time.monotonic() - since)
        for peer in late:
            logger.warning(
                "%s has been waiting for %s for %.0f s; see what that does, or start it again.",
                self._name(self._rank),
                self._name(peer),
                time.monotonic() - since,
            )


def beats_of(store: Store, rank: int) -> int:
    """Return the number of heartbeats that a process has published. While the number grows, the process is alive."""
    return _published_by(store, rank)[1]


def _published_by(store: Store, rank: int) -> tuple[int, int]:
    """Return the numbers of collectives entered and of heartbeats published by a process."""
    if not store.check([_key(rank)]):
        return 0, 0
    entered, _, beats = store.get(_key(rank)).decode().partition(" ")
    return int(entered), int(beats)


def _key(rank: int) -> str:
    return f"arrived {rank}"


def _own_connection(store: Store) -> Store:
    """Return another connection to the same store.

    A file store is returned as it is, because it has no connection, and the object that opened the file also deletes
    it.
    """
    served = store
    while isinstance(served, PrefixStore):
        served = served.underlying_store
    return store if isinstance(served, FileStore) else store.clone()  # type: ignore[attr-defined]  # documented
