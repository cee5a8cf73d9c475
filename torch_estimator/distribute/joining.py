"""Waiting for those who train together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch_estimator.distribute.strategies import MultiWorkerMirroredStrategy
from torch_estimator.run_config import RunConfig

if TYPE_CHECKING:
    from torch_estimator.distribute.group import Group

logger = logging.getLogger("torch_estimator")


@contextmanager
def joined_group(config: RunConfig) -> Iterator[Group | None]:
    """Waits for all processes that train together with this one; gives None where it trains alone.

    Raises:
        ClusterError: They did not come.
    """
    task = config._task
    if task.num_workers <= 1:
        yield None
        return
    from torch_estimator.distribute.group import Group

    logger.info("This process is %s; waiting at %s for all %d that train.", task, task.rendezvous, task.num_workers)
    strategy = config.train_distribute or MultiWorkerMirroredStrategy()
    with Group(task, strategy.backend, wait_secs=config.session_creation_timeout_secs) as group:
        yield group
