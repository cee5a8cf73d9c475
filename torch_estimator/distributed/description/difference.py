"""What two descriptions of trainings differ in, as a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

_MOST = 4096

CLUSTER = "how many there are"
"""The section that is not about the program."""


def bounded(description: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns a description in which the settings that come late in a long section are one digest."""
    found = {}
    for section, settings in description.items():
        items = list(settings.items())
        found[section] = dict(items[:_MOST])
        if items[_MOST:]:
            found[section][f"what follows the first {_MOST}"] = digest_of(dict(items[_MOST:]))
    return found


def digest_of(value: Any) -> str:
    """Returns a hash that is the same for equal JSON only."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def difference(name: str, own: Mapping[str, Any], other_name: str, other: Mapping[str, Any]) -> str:
    """Says the first difference between two descriptions as JSON gives them back; empty where there is none.

    A section that only one of them has is not compared.

    Args:
        name: Of the process that `own` is of.
        own: By section, and there by setting.
        other_name: Of the process that `other` is of.
        other: Likewise.
    """
    for section in other:
        if section not in own or own[section] == other[section]:
            continue
        where, mine, theirs = "it", own[section], other[section]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            key = next(key for key in (*theirs, *mine) if mine.get(key) != theirs.get(key))
            where, mine, theirs = key, mine.get(key), theirs.get(key)
        same, advice = "run the same program", "start them with the same code and the same arguments"
        if section == CLUSTER:
            same, advice = "be of the same cluster", "start them with the same TF_CONFIG, but for its task"
        return (
            f"{name} and {other_name} must {same}, but differ in {section}: {where} is {_shown(mine)} on {name}, and "
            f"{_shown(theirs)} on {other_name}; {advice}."
        )
    return ""


def _shown(value: Any) -> str:
    return "absent" if value is None else json.dumps(value)
