"""Parser for JSON that comes from outside the program: files, requests and environment variables.

Python's parser recurses, so deeply nested input would end it with a RecursionError; this one limits the depth first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

MOST_DEPTH = 100
"""Default limit of nesting; functions that walk a parsed value recursively stay far below Python's recursion limit."""

# A string is matched as one token, so that brackets inside it do not count. An unterminated string matches up to the
# end of the text, which keeps the scan linear for every input.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(
    text: str,
    *,
    most_depth: int = MOST_DEPTH,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The JSON text.
        most_depth: Deepest allowed nesting of lists and objects.
        object_pairs_hook: Passed to `json.loads`.

    Raises:
        json.JSONDecodeError: The text is not JSON, or nests deeper than `most_depth`; the message has line and column.

    >>> parse_json('{"loss": 0.5}')
    {'loss': 0.5}
    """
    position = too_deep_at(text, most_depth)
    if position is not None:
        raise json.JSONDecodeError(f"Nested deeper than {most_depth} levels", text, position)
    return json.loads(text, object_pairs_hook=object_pairs_hook)


def too_deep_at(text: str, most_depth: int = MOST_DEPTH) -> int | None:
    """Return the position of the first list or object that nests deeper than `most_depth`, or None.

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
