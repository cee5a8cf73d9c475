"""``RANK`` and ``WORLD_SIZE``: torchrun, Ray Train's TorchTrainer, Kubeflow's PyTorchJob, ``mpirun`` wrappers."""

from __future__ import annotations

from collections.abc import Mapping

from torch_estimator.cluster.addresses import split_address
from torch_estimator.cluster.task import WORKER, Task
from torch_estimator.errors import InvalidValueError

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def task_from_ranks(environ: Mapping[str, str]) -> Task | None:
    """Reads the variables that torch.distributed's ``env://`` takes; None where they are not there.

    Raises:
        InvalidValueError: One of them is missing, or is not such a number.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    missing = [name for name in _NEEDED if name not in environ]
    ranks = whole_number(environ, "WORLD_SIZE", at_least=1)
    rank = whole_number(environ, "RANK", below=ranks)
    if ranks == 1:
        return Task(source="RANK and WORLD_SIZE")
    if missing:
        raise InvalidValueError(
            f"WORLD_SIZE is {ranks}, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; name "
            "the host and a free port of rank 0, as torchrun does."
        )
    rendezvous = f"{_bracketed(environ['MASTER_ADDR'])}:{environ['MASTER_PORT']}"
    split_address(rendezvous, "MASTER_ADDR:MASTER_PORT")
    return task_of_rank(rank, ranks, rendezvous, "RANK and WORLD_SIZE")


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
    if not text.isdecimal() or int(text) < at_least or (below is not None and int(text) >= below):
        raise InvalidValueError(f"{name} must be a whole number {wanted}, but got {text!r}.")
    return int(text)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
