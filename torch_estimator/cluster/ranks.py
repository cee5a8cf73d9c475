"""``RANK`` and ``WORLD_SIZE``: torchrun, Ray Train's TorchTrainer, Kubeflow's PyTorchJob, ``mpirun`` wrappers."""

from __future__ import annotations

from collections.abc import Mapping

from torch_estimator.cluster.addresses import bracketed, split_address
from torch_estimator.cluster.json_text import shown
from torch_estimator.cluster.task import WORKER, Task
from torch_estimator.errors import InvalidValueError

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST_DIGITS = 18


def task_from_ranks(environ: Mapping[str, str]) -> Task | None:
    """Reads the variables that torch.distributed's ``env://`` takes; None where there is no rank or no number of them.

    Raises:
        InvalidValueError: Another one is missing, or one is not such a number.
    """
    if not (environ.get("RANK") and environ.get("WORLD_SIZE")):
        return None
    missing = [name for name in _NEEDED if not environ.get(name)]
    ranks = whole_number(environ, "WORLD_SIZE", at_least=1)
    rank = whole_number(environ, "RANK", below=ranks)
    if ranks == 1:
        return Task(source="RANK and WORLD_SIZE")
    if missing:
        raise InvalidValueError(
            f"WORLD_SIZE is {ranks}, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; name "
            "the host and a free port of rank 0, as torchrun does."
        )
    rendezvous = f"{bracketed(environ['MASTER_ADDR'])}:{environ['MASTER_PORT']}"
    split_address(rendezvous, "MASTER_ADDR:MASTER_PORT")
    return task_of_rank(rank, ranks, rendezvous, "RANK and WORLD_SIZE")


def check_trains_alone(environ: Mapping[str, str]) -> None:
    """Raises where there are other processes of this training, but not enough is told to find them.

    A rank of 0 and a size of 1 are nobody else's business, as what some tools set for every process.

    Raises:
        InvalidValueError: There are.
    """
    for name, other, alone in (("RANK", "WORLD_SIZE", "0"), ("WORLD_SIZE", "RANK", "1")):
        given = environ.get(name)
        if not given or environ.get(other):
            continue
        if given != alone or (name == "RANK" and environ.get("MASTER_ADDR")):
            raise InvalidValueError(
                f"{name} is {shown(given)}, but {other} is not set, without which every process would train alone; set "
                f"both, as torchrun does, or unset {name} where this is the only process."
            )


def task_of_rank(rank: int, ranks: int, rendezvous: str, source: str) -> Task:
    """Returns the chief for rank 0, and worker n - 1 for rank n; they evaluate themselves."""
    type, index = ("chief", 0) if rank == 0 else (WORKER, rank - 1)
    return Task(type=type, id=index, ranks=ranks, rendezvous=rendezvous, source=source)


def whole_number(environ: Mapping[str, str], name: str, *, at_least: int = 0, below: int | None = None) -> int:
    """Reads a variable.

    Raises:
        InvalidValueError: It is not such a number.
    """
    text = environ[name]
    wanted = f"at least {at_least}" if below is None else f"from {at_least} to {below - 1}"
    number = int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else -1
    if number < at_least or (below is not None and number >= below):
        raise InvalidValueError(f"{name} must be a whole number {wanted}, but got {shown(text)}.")
    return number
