"""Who of a group keeps the others waiting."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from torch.distributed import Store  # type: ignore[attr-defined]  # documented

logger = logging.getLogger("torch_estimator")

_MOST_BETWEEN_SECS = 2.0


class Watch:
    """A thread that tells the others how often this process has come to an exchange, and names who has not.

    Args:
        store: What all of the group see.
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
        self._count = 0
        self._waits_since: float | None = None
        self._named_at = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def arrive(self) -> None:
        """To be called where this process comes to an exchange."""
        self._count += 1
        self._waits_since = time.monotonic()

    def go_on(self) -> None:
        """To be called where the exchange is over."""
        self._waits_since = None

    def end(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(min(self._silence_secs / 4, _MOST_BETWEEN_SECS)):
            try:
                self._store.set(f"arrived {self._rank}", str(self._count))
                self._look()
                self._look_around()
            except RuntimeError:
                # The chief is gone, which the exchange itself tells.
                return

    def _look(self) -> None:
        since, count = self._waits_since, self._count
        if since is None or time.monotonic() < since + self._silence_secs or self._named_at == count:
            return
        self._named_at = count
        late = [rank for rank in self._others if self._arrivals_of(rank) < count]
        for rank in late:
            logger.warning(
                "%s has been waiting for %s for %.0f s; see what that does, or start it again.",
                self._name(self._rank),
                self._name(rank),
                time.monotonic() - since,
            )

    def _arrivals_of(self, rank: int) -> int:
        key = f"arrived {rank}"
        return int(self._store.get(key)) if self._store.check([key]) else 0
