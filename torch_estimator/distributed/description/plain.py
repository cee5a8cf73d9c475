"""Settings as values of JSON, without what may differ from process to process."""

from __future__ import annotations

import enum
import functools
import math
import re
from collections.abc import Collection
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from torch_estimator.compile.cache_key.walk import PLAIN

_LONG = 120
# A list of more words is a vocabulary, whatever the words look like.
_FEW = 8
# What a process is called and where it computes and keeps its files are its own.
_OWN_NAME = re.compile(
    r"(?:^|_)(?:rank|chief|master|main|task|worker|replica|role|job|shard|index|seed|process|proc|pid|device|gpu|node|host"
    r"|hostname|ip|port|address|dir|directory|path|file|filename|time|created|started|uuid|run)s?(?:_|$)"
)
_OWN_TEXT = re.compile(r"[/\\]|^(?:cpu|cuda|mps|xpu|meta)(?::\d+)?$")


@functools.cache
def is_own(name: str) -> bool:
    """Whether a setting of this name says which process this is, or where, such as ``local_rank`` and ``log_dir``."""
    return _OWN_NAME.search(name.lower()) is not None


def plain(value: Any) -> Any:
    """Returns a setting as JSON that is the same for the same setting only; None where it is not to be compared.

    Those are objects, containers of objects, paths and devices.
    """
    kind = type(value)
    if kind is bool or kind is int:
        return value
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        value = value.item()
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, str):
        return None if _OWN_TEXT.search(value) else _short(str(value), f"{len(value)} characters")
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple | set | frozenset) and PLAIN.issuperset(map(type, value)):
        return _items(value)
    return None


def _items(value: Collection[Any]) -> str | None:
    if len(value) <= _FEW and any(isinstance(one, str) and _OWN_TEXT.search(one) for one in value):
        return None
    words = sorted(map(repr, value)) if isinstance(value, set | frozenset) else map(repr, value)
    return _short(f"[{', '.join(words)}]", f"{len(value)} items") if value else None


def _short(text: str, count: str) -> str:
    if len(text) <= _LONG:
        return text
    return f"{count} (digest {sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]})"
