"""The reader of JSON that comes from outside: files, instances and variables of the environment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

MOST_DEPTH = 100
"""How deep lists and objects may nest; functions that walk the result recursively need far fewer frames than there
are."""

# A string is matched whole, and to the end of the text where nothing ends it: brackets in it do not count, and every
# text takes one pass.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(
    text: str,
    *,
    most_depth: int = MOST_DEPTH,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return what a JSON text holds.

    Args:
        text: The JSON.
        most_depth: How deep lists and objects may nest.
        object_pairs_hook: As in `json.loads`.

    Raises:
        json.JSONDecodeError: It is not JSON, or nests deeper than `most_depth`. The message names line and column.

    >>> parse_json('{"loss": 0.5}')
    {'loss': 0.5}
    """
    place = too_deep_at(text, most_depth)
    if place is not None:
        raise json.JSONDecodeError(f"Nested deeper than {most_depth} levels", text, place)
    return json.loads(text, object_pairs_hook=object_pairs_hook)


def too_deep_at(text: str, most_depth: int = MOST_DEPTH) -> int | None:
    """Return where the first list or object begins that lies deeper than `most_depth`, or None.

    >>> too_deep_at("[" * 101)
    100
    """
    if text.count("[") + text.count("{") <= most_depth:
        return None
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > most_depth:
                return token.start()
        elif token[0] in "]}":
            depth -= 1
    return None
