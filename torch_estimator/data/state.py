"""Saved positions and whether they fit a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_estimator.data.file_identity import files_difference
from torch_estimator.errors import InvalidValueError

Signature = dict[str, Any]
"""What must be equal for a position to mean the same: JSON, small."""


class StateMismatch(InvalidValueError):
    """A saved input position belongs to another input."""


def check_signature(saved: Any, own: Signature) -> None:
    """Raises StateMismatch, saying what differs, unless a saved signature equals a pipeline's own."""
    if not isinstance(saved, Mapping):
        raise StateMismatch("The saved input position is not one that this version can read.")
    for key in (*own, *saved):
        if saved.get(key) == own.get(key):
            continue
        if key == "files" and key in own and saved.get("source") == own["source"]:
            difference = files_difference(saved.get(key), own[key])
            raise StateMismatch(f"The saved position belongs to another input: {difference}.")
        raise StateMismatch(f"The saved position belongs to another input: {_difference(key, saved, own)}.")


def _difference(key: str, saved: Mapping[str, Any], own: Signature) -> str:
    before, now = _shown(saved.get(key)), _shown(own.get(key))
    if key == "steps":
        return f"the operations of the Dataset were {before!r}, but are {now!r}"
    return f"its {key} was {before}, but is {now}"


def _shown(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
