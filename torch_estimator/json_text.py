"""Parsing of JSON that users or other programs have written, in files, requests and environment variables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError

MOST_DEPTH = 100
"""Maximum nesting of lists and objects. It keeps functions that walk the result far from Python's recursion limit."""

_MOST_SHOWN = 200

# Match each string as one token, so that brackets inside strings do not count.
# An unterminated string extends to the end of the text, so that the search takes linear time.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(
    text: str,
    *,
    most_depth: int = MOST_DEPTH,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse a JSON text and return its value. Limit how deep lists and objects may nest.

    Args:
        text: The JSON.
        most_depth: How deep lists and objects may nest.
        object_pairs_hook: As in `json.loads`.

    Raises:
        json.JSONDecodeError: The text is not JSON, or nests deeper than `most_depth`. The message names the line and
            the column.

    >>> parse_json('{"loss": 0.5}')
    {'loss': 0.5}
    """
    place = too_deep_at(text, most_depth)
    if place is not None:
        raise json.JSONDecodeError(f"Nested deeper than {most_depth} levels", text, place)
    return json.loads(text, object_pairs_hook=object_pairs_hook)


def json_object(text: str, name: str) -> dict[str, Any]:
    """Parse the value of an environment variable, which must be a JSON object, and return the object as a dict.

    Args:
        text: Value of the variable.
        name: Name of the variable, for messages.

    Raises:
        InvalidValueError: The text is not JSON, or an object in it has a key twice.
        InvalidTypeError: The text is JSON, but not an object.

    >>> json_object('{"task": {"index": 0}}', "TF_CONFIG")
    {'task': {'index': 0}}
    """

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InvalidValueError(f"{name} has {twice!r} twice in one object; remove one of them.")
        return found

    try:
        value = parse_json(text, object_pairs_hook=without_duplicates)
    except InvalidValueError:
        raise
    except ValueError as error:
        raise InvalidValueError(f"{name} is not JSON ({error}): {shortened(text)}.") from error
    if not isinstance(value, dict):
        raise InvalidTypeError(f"{name} must be a JSON object, but got {shortened(text)}.")
    return value


def shortened(value: object) -> str:
    """Return the repr of a value for a message, cut after 200 characters.

    >>> len(shortened("x" * 1000))
    201
    """
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def too_deep_at(text: str, most_depth: int = MOST_DEPTH) -> int | None:
    """Return the position of the first list or object in a JSON text that is nested too deep; None if there is none.

    Args:
        text: The JSON text.
        most_depth: How deep lists and objects may nest.

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
