"""Before the first step: whether all replicas are about to do the same."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch_estimator import files
from torch_estimator.distributed.description import Description, difference, digest_of
from torch_estimator.distributed.errors import PeerLost
from torch_estimator.errors import ClusterError
from torch_estimator.run_config import RunConfig

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

_TOKEN_NAME = "cluster.token"


def _agree_on_model_dir(group: Group, model_dir: str) -> None:
    """Raises on all replicas where one of them does not see the chief's model directory.

    Raises:
        ClusterError: It is not the same.
    """
    path, token = files.join(model_dir, _TOKEN_NAME), ""
    if group.rank == 0:
        token = uuid.uuid4().hex
        files.makedirs(model_dir)
        files.write_atomic(path, token.encode())
    token = group.all_gather_texts(token)[0]
    for rank, problem in enumerate(group.all_gather_texts(_problem(path, token, model_dir))):
        if problem:
            raise ClusterError(f"{group.name(rank)} does not see the chief's model_dir: {problem}")
    if group.rank == 0:
        files.remove_tree(path)


def agree_on_training(
    group: Group,
    *,
    description: Description,
    model_dir: str | None,
    config: RunConfig,
    strategy_settings: Mapping[str, Any],
    begins_with: str | None = None,
    last_step: int | None = None,
) -> None:
    """Raises on all replicas where what one of them is about to do is not what the chief is to do.

    Args:
        group: The replicas.
        description: Of the training, from its beginning.
        model_dir: Where the chief saves checkpoints; None where all of them are copies of the chief's process.
        config: Of the training.
        strategy_settings: The settings of the strategy that have to be the same everywhere, as JSON.
        begins_with: The checkpoint to start from; None where there is none, or others are under way.
        last_step: To end at; None where it is not known, or others are under way.

    Raises:
        ClusterError: It is not the same; names the first difference.
    """
    if model_dir is not None:
        _agree_on_model_dir(group, model_dir)
    start = {
        "the checkpoint to start from": begins_with,
        "the last step": last_step,
        "the settings": {
            "compile": config.compile,
            "mixed_precision": config.mixed_precision,
            **strategy_settings,
        },
    }
    agree_on(group, {**start, **description})


def agree_on(group: Group, description: Mapping[str, Any]) -> None:
    """Raises on all replicas where one of them describes what it does otherwise than the chief.

    Digests are exchanged first, the descriptions only where these differ.

    Args:
        group: The replicas.
        description: JSON by section.

    Raises:
        ClusterError: It is not the same; names the first difference.
        PeerLost: It is that of one that has come to a training under way, which goes on without it.
    """
    digests = group.all_gather_texts(digest_of(description))
    if len({digests[rank] for rank in group.present}) == 1:
        return
    texts = group.all_gather_texts(json.dumps(description))
    described = {rank: json.loads(texts[rank]) for rank in group.present}
    for rank, other in described.items():
        if problem := difference(group.name(rank), other, group.name(0), described[0]):
            newcomers = [one for one in (0, rank) if not group.statuses[one]] if group.is_training_under_way else []
            if newcomers and group.rank not in newcomers:
                raise PeerLost(problem)
            raise ClusterError(problem)


def _problem(path: str, token: str, model_dir: str) -> str:
    try:
        if files.read_text(path) == token:
            return ""
        return f"another one's files are in its {model_dir}; give all of them the same one."
    except OSError as error:
        return (
            f"in its {model_dir} there is no file that the chief has just written ({files.reason(error)}); give all "
            "of them one that they share."
        )
