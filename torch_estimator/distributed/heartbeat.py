"""Who of a group keeps the others waiting."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]  # documented

logger = logging.getLogger("torch_estimator")

_MOST_BETWEEN_SECS = 2.0
# Who has not told anything in so many rounds is taken for stopped.
_ROUNDS = 3
_MOST_SECS_TO_END = 1.0


class Watch:
    """Tells the others, beside what this process does, how often it has come to an exchange, and names who has not.

    Whoever is stopped altogether is named, too: it tells nothing any more; and a chief that is does not even answer.

    Args:
        store: What all of the group see; the chief may be who serves it.
        rank: Of this process.
        ranks: Of all of them.
        name: What the cluster calls the process of a rank.
        silence_secs: How long to wait for one before it is named.
        look: Called every now and then.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: Sequence[int],
        name: Callable[[int], str],
        silence_secs: float,
        look: Callable[[], None],
    ) -> None:
        self._store = store
        self._rank = rank
        self._others = [other for other in ranks if other != rank]
        self._look_around = look
        self._name = name
        self._silence_secs = silence_secs
        self._every_secs = min(silence_secs / 4, _MOST_BETWEEN_SECS)
        self._count = self._rounds = 0
        self._waits_since: float | None = None
        self._asked_at: float | None = None
        self._named_at = 0
        # When all of them had come to the exchange at hand, and the rounds they had told by then.
        self._all_came: tuple[int, float, dict[int, int]] | None = None
        self._ended = threading.Event()
        # Whoever asks a chief that is stopped waits for as long as it is.
        self._threads = [
            threading.Thread(target=target, name="watch", daemon=True)
            for target in ((self._tell, self._look_at_chief) if rank else (self._tell,))
        ]
        for thread in self._threads:
            thread.start()

    def arrive(self) -> None:
        """To be called where this process comes to an exchange."""
        self._count += 1
        self._waits_since = time.monotonic()

    def go_on(self) -> None:
        """To be called where the exchange is over."""
        self._waits_since = None

    def end(self) -> None:
        """Ends the threads."""
        self._ended.set()
        for thread in self._threads:
            thread.join(_MOST_SECS_TO_END)

    def _tell(self) -> None:
        try:
            store: Store | None = None
            while not self._ended.wait(self._every_secs):
                self._asked_at = time.monotonic()
                # Those who wait for an answer hold up all others that ask the same one.
                store = store or _of_its_own(self._store)
                self._rounds += 1
                store.set(f"arrived {self._rank}", f"{self._count} {self._rounds}")
                self._look(store)
                self._look_around()
                self._asked_at = None
        except RuntimeError:
            # The chief is gone, which the exchange itself tells.
            self._asked_at = None

    def _look_at_chief(self) -> None:
        while not self._ended.wait(self._every_secs):
            asked_at = self._asked_at
            since = self._too_late()
            if since and asked_at and time.monotonic() > asked_at + _ROUNDS * self._every_secs:
                self._say([0], since)

    def _look(self, store: Store) -> None:
        since = self._too_late()
        if since is None:
            return
        count, told = self._count, {rank: _told_by(store, rank) for rank in self._others}
        late = [rank for rank, (came, _) in told.items() if came < count]
        if not late:
            now, rounds = time.monotonic(), {rank: one for rank, (_, one) in told.items()}
            if self._all_came is None or self._all_came[0] != count:
                self._all_came = count, now, rounds
            _, then, before = self._all_came
            if now > then + _ROUNDS * self._every_secs:
                late = [rank for rank in self._others if rounds[rank] == before[rank]]
        if late:
            self._say(late, since)

    def _too_late(self) -> float | None:
        """Since when this process has waited, where that is too long and was not told yet."""
        since = self._waits_since
        is_long = since is not None and time.monotonic() > since + self._silence_secs
        return since if is_long and self._named_at != self._count else None

    def _say(self, late: Sequence[int], since: float) -> None:
        self._named_at = self._count
        for rank in late:
            logger.warning(
                "%s has been waiting for %s for %.0f s; see what that does, or start it again.",
                self._name(self._rank),
                self._name(rank),
                time.monotonic() - since,
            )


def _of_its_own(store: Store) -> Store:
    """Another way to the same store; a file has one, and leaves it to who has opened it."""
    served = store
    while isinstance(served, PrefixStore):
        served = served.underlying_store
    return store if isinstance(served, FileStore) else store.clone()  # type: ignore[attr-defined]  # documented


def rounds_of(store: Store, rank: int) -> int:
    """How often one has told the others something; who does so again lives."""
    return _told_by(store, rank)[1]


def _told_by(store: Store, rank: int) -> tuple[int, int]:
    """How often one has come to an exchange, and how often it has told so."""
    key = f"arrived {rank}"
    if not store.check([key]):
        return 0, 0
    came, _, rounds = store.get(key).decode().partition(" ")
    return int(came), int(rounds)
