"""Meeting those who train together, and those who hold parameters."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from torch_estimator.cluster.task import PARAMETER_SERVER
from torch_estimator.errors import ClusterError
from torch_estimator.run_config import RunConfig
from torch_estimator.strategies.mirrored import MirroredStrategy
from torch_estimator.strategies.strategies import FullyShardedStrategy, MultiWorkerMirroredStrategy

if TYPE_CHECKING:
    from torch_estimator.distributed.forked_replicas import Replicas
    from torch_estimator.distributed.group import Group
    from torch_estimator.parameter_server.client import Links

logger = logging.getLogger("torch_estimator")

_MOST_SECS_TO_END = 10.0

_open: list[None] = []


@contextmanager
def forked_replicas(config: RunConfig) -> Iterator[Replicas | None]:
    """Runs the body in every replica of a `MirroredStrategy`; gives None where there is no such strategy.

    Raises:
        UserError: Another replica has failed, or cannot be forked.
    """
    strategy = config.train_distribute
    if not isinstance(strategy, MirroredStrategy):
        yield None
        return
    from torch_estimator.distributed.forked_replicas import Replicas

    with Replicas(strategy.torch_devices()) as replicas:
        yield replicas


@contextmanager
def meeting_nobody() -> Iterator[None]:
    """While this process is in a group or a job, whatever it evaluates besides is its own business."""
    _open.append(None)
    try:
        yield
    finally:
        _open.pop()


def may_meet() -> bool:
    """Whether this process is free to meet others."""
    return not _open


@contextmanager
def joined_group(
    config: RunConfig, replicas: Replicas | None = None, *, purpose: str = "train"
) -> Iterator[Group | None]:
    """Waits for all processes that train together with this one; gives None where it trains alone.

    Args:
        config: Of the training.
        replicas: What this process is one of, or None.
        purpose: What they meet for: ``train`` or ``evaluate``.

    Raises:
        ClusterError: They did not come.
    """
    task = config._task if replicas is None else replicas.task
    if task.num_workers <= 1 or task.num_ps:
        yield None
        return
    from torch_estimator.distributed.group import Group
    from torch_estimator.parameter_server.key import KEY_FILE

    if KEY_FILE in os.environ and replicas is None:
        logger.warning("%s is set, but this cluster has no parameter servers: it encrypts nothing here.", KEY_FILE)
    evaluates = purpose == "evaluate"
    given = config.eval_distribute if evaluates else config.train_distribute
    strategy = given if isinstance(given, MultiWorkerMirroredStrategy) else MultiWorkerMirroredStrategy()
    backend = "gloo" if replicas is not None and task.device == "cpu" else strategy.backend
    if replicas is None:
        wait = "This process is %s; waiting at %s for all %d that %s."
        logger.info(wait, task, task.rendezvous, task.num_workers, purpose)
    wait_secs, silence_secs = config.session_creation_timeout_secs, (given or strategy).silence_secs
    watch = replicas.watch if replicas is not None else lambda: None
    with (
        Group(
            task,
            backend,
            wait_secs=wait_secs,
            silence_secs=silence_secs,
            watch=watch,
            replaceable=not (evaluates or isinstance(given, FullyShardedStrategy)),
            elastic=strategy.elastic and not evaluates,
            purpose=purpose,
        ) as group,
        meeting_nobody(),
    ):
        yield group


@contextmanager
def connected_servers(config: RunConfig, *, most_secs: float = math.inf) -> Iterator[Links | None]:
    """Connects to the parameter servers of the cluster; gives None where it has none.

    Args:
        config: Of the training.
        most_secs: How long to wait for a server at most, whatever the configuration allows.
    """
    task = config._task
    if not task.num_ps:
        yield None
        return
    from torch_estimator.parameter_server.client import Links
    from torch_estimator.parameter_server.key import key_from_environment

    addresses, key = task.cluster[PARAMETER_SERVER], key_from_environment()
    with_key = f", with the key in {key.path}" if key else ""
    logger.info("This process is %s; parameters are at %s%s.", task, ", ".join(addresses), with_key)
    wait_secs = min(config.session_creation_timeout_secs, most_secs)
    links = Links(str(task), task.rank, addresses, wait_secs=wait_secs, key=key)
    try:
        yield links
    finally:
        links.close()


def end_servers(config: RunConfig, *, is_over: bool = False) -> None:
    """Has the chief end parameter servers that nobody needs: not those that train on, or another model.

    Args:
        config: Of the chief.
        is_over: Whether the last training in its model directory is known to be over.
    """
    if not (config._task.is_chief and config._task.num_ps):
        return
    from torch_estimator.parameter_server.messages import Kind
    from torch_estimator.parameter_server.token import LAST_STEP, WORD, Token

    # They may have ended with the training that is over.
    logger.info("Ending the parameter servers, where they have not ended before (%g s at most).", _MOST_SECS_TO_END)
    with connected_servers(config, most_secs=_MOST_SECS_TO_END) as servers, suppress(ClusterError):
        if servers is None:
            return
        word = Token(str(config.model_dir), servers.name).known()
        answers = servers.tell_all(Kind.HELLO)
        # The first one counts steps.
        first, last = answers[0][0], answers[0][1].get(LAST_STEP)
        is_over = is_over or first.kind is Kind.EMPTY or (last is not None and first.step >= last)
        unused = [
            index
            for index, (header, about) in enumerate(answers)
            if header.kind is Kind.EMPTY or (is_over and about.get(WORD) == word)
        ]
        servers.ask({index: [servers.header(Kind.END).pack()] for index in unused})
